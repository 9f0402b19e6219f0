"""Who is to blame when requirements cannot be installed, and what may be copied from a job's disk (SPEC J7, N5)."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.model import FailureCode
from holdfast.node.attempt import venvs
from holdfast.node.attempt.venv_builder import BuildReport
from holdfast.node.attempt.venvs import VenvFailed, failure_of
from holdfast.node.core.order import Order

pytestmark = pytest.mark.spec("J7", "J1")

ORDER = Order("att_0a.1", 7, "job_0a", ("true",), 60_000, 1, 0, 0, resources={"memory_mib": 64, "disk_mib": 32})


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        (BuildReport(late=True, exit_code=137), FailureCode.TIME_LIMIT, "the job's time limit"),
        (BuildReport(code="oom_job", exit_code=137), FailureCode.OOM_JOB, "64 MiB of memory"),
        (BuildReport(code="oom_node", exit_code=137), FailureCode.OOM_NODE, "the machine ran out of memory"),
        (BuildReport(code="disk_quota", exit_code=1), FailureCode.DISK_QUOTA, "32 MiB of disk"),
        (BuildReport(code="node_disk_full", exit_code=1), FailureCode.NODE_DISK_FULL, "the machine's disk"),
        (BuildReport(code="time_limit", exit_code=137), FailureCode.TIME_LIMIT, "processor time"),
        (BuildReport(fault="no bwrap", exit_code=1), FailureCode.RUNTIME_FAULT, "no bwrap"),
        (BuildReport(said="killed"), FailureCode.RUNTIME_FAULT, "killed"),
        (BuildReport(exit_code=1, guard="build", refused=["x:1"]), FailureCode.BUILD, "not a wheel"),
        (BuildReport(exit_code=1, refused=["x:1", "y:2"], unreachable=["z:3"]), FailureCode.BUILD, "asks for x:1, y:2"),
        (BuildReport(exit_code=1, unreachable=["z:3"], said="no luck"), FailureCode.NETWORK, "reached: no luck"),
        (BuildReport(exit_code=1, said="503 Server Error"), FailureCode.NETWORK, "503 Server Error"),
        (BuildReport(exit_code=1, said="No matching\n[notice] new pip"), FailureCode.BUILD, "be met: No matching"),
    ],
)
def test_blame_follows_the_evidence(report: BuildReport, code: FailureCode, words: str) -> None:
    failure = failure_of(ORDER, report, 600.0)
    assert failure is not None and failure.code is code
    assert words in failure.detail and "notice" not in failure.detail


def test_a_build_that_exceeds_the_time_of_builds_is_not_the_time_limit_of_its_job() -> None:
    late = BuildReport(late=True, exit_code=137)
    for seconds, code in ((59.999, FailureCode.BUILD), (60.0, FailureCode.TIME_LIMIT)):
        failure = failure_of(ORDER, late, seconds)
        assert failure is not None and failure.code is code


def test_a_complete_build_is_no_failure_although_one_index_was_away() -> None:
    assert failure_of(ORDER, BuildReport(exit_code=0, unreachable=["z:3"], said="Retrying"), 600.0) is None


# --- copies ---


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "lib" / "deep").mkdir(parents=True)
    (tree / "lib" / "deep" / "x.py").write_text("x")
    (tree / "run").write_text("run")
    (tree / "run").chmod(0o4777)
    (tree / "lib64").symlink_to("lib")
    (tree / "python3").symlink_to("python3.11")
    (tree / "python3.11").symlink_to(venvs._python())
    return tree


@pytest.mark.spec("N5")
def test_a_copy_has_the_content_and_none_of_the_rights(tree: Path, tmp_path: Path) -> None:
    venvs._copy(tree, copy := tmp_path / "copy")
    assert (copy / "lib" / "deep" / "x.py").read_text() == "x"
    assert stat.S_IMODE((copy / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((copy / "lib" / "deep" / "x.py").stat().st_mode) == 0o644
    assert os.readlink(copy / "lib64") == "lib" and os.readlink(copy / "python3.11") == venvs._python()


@pytest.mark.spec("N5")
@pytest.mark.parametrize("to", ["/etc/passwd", "../x", "/", "python3/../x", "lib/x"])
def test_a_link_that_leads_elsewhere_is_not_copied(tree: Path, tmp_path: Path, to: str) -> None:
    (tree / "lib" / "sly").symlink_to(to)
    with pytest.raises(VenvFailed) as wrong:
        venvs._copy(tree, tmp_path / "copy")
    assert wrong.value.failure.code is FailureCode.BUILD


@pytest.mark.spec("N5")
def test_a_pipe_is_not_copied_and_nobody_waits_for_it(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "lib" / "pipe")
    with pytest.raises(VenvFailed):
        venvs._copy(tree, tmp_path / "copy")
