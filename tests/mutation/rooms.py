"""What is mutated, how much of it must be noticed, and which tests are asked."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"


@dataclass(frozen=True)
class Room:
    name: str
    paths: tuple[str, ...]
    """Folders and files below src/holdfast. A pattern may match nothing, so that a file can move."""
    bar: float
    """The share of all generated mutants that the tests must kill. It only ever rises."""
    tests: tuple[str, ...]
    """Folders and files below tests/, as patterns: what is asked whether it notices a mutant."""

    def files(self) -> list[Path]:
        found: list[Path] = []
        for pattern in self.paths:
            for place in sorted(SOURCE.glob(pattern)):
                found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
        return found

    def test_files(self) -> list[Path]:
        found: list[Path] = []
        for pattern in self.tests:
            for place in sorted((ROOT / "tests").glob(pattern)):
                found += sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
        return found


ROOMS = (
    Room(
        "kernel", ("kernel",), 0.90,
        ("kernel", "scenarios", "unit/test_function_calls.py", "integration/test_glue_owners.py",
         "integration/test_orchestrator_parts.py"),
    ),
    Room("policy", ("policy",), 0.95, ("kernel", "scenarios")),
    Room(
        "node_core", ("node/core",), 0.95,
        ("unit/test_node_core*.py", "unit/test_node_redial.py", "unit/test_recorded_nodes.py",
         "unit/test_attempt_lifecycle.py",
         "unit/test_resource_usage.py", "unit/test_node_machine.py", "unit/test_container_request.py",
         "kernel/test_leases.py", "kernel/test_sim_policy.py", "integration/test_glue_link.py",
         "integration/test_glue_attempt_runner.py"),
    ),
    Room(
        "leader", ("orchestrator/leader/core.py", "orchestrator/leader/dedupe.py", "orchestrator/content/verify.py"),
        0.90,
        ("integration/test_glue_*.py", "integration/test_orchestrator_parts.py", "unit/test_leader*.py",
         "unit/test_verifier.py", "unit/test_function_calls.py"),
    ),
    Room(
        "state", ("state/writing.py", "state/statements.py", "state/records.py"), 0.80,
        ("integration/test_state.py", "integration/test_glue_*.py", "integration/test_orchestrator_parts.py",
         "integration/test_log_retention.py", "integration/test_sweep.py", "unit/test_queries_names.py",
         "unit/test_state_records.py", "unit/test_statements.py"),
    ),
    Room(
        "blobs", ("blobs/verified.py", "blobs/garbage.py", "blobs/manifest.py", "blobs/index.py"), 0.85,
        ("unit/test_blobs_*.py", "integration/test_blobs_stores.py", "integration/test_sweep.py",
         "integration/test_result_uploader.py", "integration/test_glue_attempt_runner.py",
         "integration/test_glue_races.py", "integration/test_glue_verify.py"),
    ),
    Room(
        "identity", ("identity",), 0.90,
        ("unit/test_identity_*.py", "unit/test_glue_identity.py", "unit/test_access_secrets.py",
         "unit/test_wire_link.py", "unit/test_node_link.py",
         "integration/test_glue_link.py", "integration/test_glue_races.py"),
    ),
    Room(
        "logs", ("orchestrator/logs/log_files.py", "node/log_sender.py"), 0.85,
        ("unit/test_node_log_sender.py", "unit/test_log_store.py", "integration/test_log_retention.py",
         "integration/test_orchestrator_parts.py", "integration/test_glue_*.py"),
    ),
)  # fmt: skip
"""Only tests that run inside of one process: what a process of its own does, no mutant here reaches."""

LEFT_OUT = "not postgres and not s3 and not rclone and not moto and not killed_writer"
"""Of these tests: the ones that start a server, which takes longer than most mutants."""
FIRST = ("tests/kernel/test_recorded_worlds.py", "tests/unit/test_recorded_nodes.py")
"""Asked before all others, and beyond the limit of time: one of them takes a few hundredths of a second, and notices
most mutants of what it executes."""
