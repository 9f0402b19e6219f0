"""A rehearsal: one job on a small network of this machine, in peace and with its machines killed under it. Same output?

    with Rehearsal(told=print) as rehearsal:
        report = rehearsal.play(JobRequest(["python3", "work.py"]), kills=2)
        assert report.finding == "same", report.advice

The job runs undisturbed first; then again, and the node that runs it is killed (SIGKILL of its whole process tree) at
a random moment, as often as was asked. Where what it made differs, it runs undisturbed once more: a job whose output
differs by itself is told apart from one that does not bear being cut.
"""

import hashlib
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from holdfast.client import Client
from holdfast.quantities import counted
from holdfast.testing.processes import LocalNetwork, NodeProcesses, wait_for
from holdfast.wire.http import JobRequest, JobView

SPARE = 1
"""Machines beside those that will be killed."""
EARLIEST, LATEST = 0.15, 0.85
"""When a kill comes, as a share of how long the undisturbed run worked."""
PATIENCE_S = 6 * 3600.0
HURRY_MAX = 4
"""A job that was slower in peace is over before the kill comes. Then it runs again, and the kill comes twice as soon,
up to so many times as soon."""
SHORTEST_S = 0.5
"""A run shorter than this is over before anybody could be killed at a chosen moment."""


class Kill(msgspec.Struct, frozen=True):
    node: str
    after_s: float
    """Since the body of the attempt began."""
    recovered_s: float | None
    """Until the body ran again elsewhere; None: it never did."""


class Run(msgspec.Struct, frozen=True):
    job: str
    verdict: str
    seconds: float
    attempts: int
    files: dict[str, str]
    """Path -> sha256 of what the job made."""
    stdout: str
    """sha256 of what the attempt that counts printed."""
    failure: str = ""
    worked_s: float = 0.0
    """Of `seconds`, how long its last attempt worked: without the wait before and the preparing."""


class Report(msgspec.Struct, frozen=True):
    finding: str
    """same | differs | unsteady | failed | undisturbed"""
    says: str
    advice: str
    differences: tuple[str, ...]
    calm: Run
    torn: Run | None = None
    again: Run | None = None
    """The third run, undisturbed, where the second one differed."""
    kills: tuple[Kill, ...] = ()

    @property
    def good(self) -> bool:
        return self.finding == "same"


class Rehearsal:
    """The network for it. Use it with `with`."""

    def __init__(
        self, told: Callable[[str], None] = lambda line: None, chance: random.Random | None = None, preset: str = "lan"
    ) -> None:
        self._told = told
        self._chance = chance or random.Random()
        self._preset = preset
        self._nodes = 0
        self.network = LocalNetwork()

    def __enter__(self) -> Self:
        self._told("starting an orchestrator and its machines here")
        try:
            self.network.start_orchestrator(preset=self._preset)
            self._have_machines(SPARE)
        except BaseException:
            self.network.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.network.close()

    @property
    def client(self) -> Client:
        return self.network.client()

    def play(self, request: JobRequest, *, kills: int = 1) -> Report:
        calm, _ = self._run(request, "in peace", [])
        if calm.verdict != "succeeded":
            says = f"it does not end well even in peace: {calm.failure or calm.verdict}"
            return Report("failed", says, "Mend that first; `holdfast run` shows its output.", (), calm)
        if calm.seconds < SHORTEST_S:
            says = f"it takes {calm.seconds:.2f} s: it is over before its machine could die at a chosen moment"
            return Report("undisturbed", says, "Give it more to do, or trust that it is short.", (), calm)
        torn, struck = self._torn(request, calm, kills)
        if not struck:
            says = "it ended before its machine could be killed"
            return Report("undisturbed", says, "Rehearse it again.", (), calm, torn)
        if torn.verdict != "succeeded":
            return self._failed(request, calm, torn, struck)
        different = differences(calm, torn, resumes=resumes(request))
        if not different:
            says = f"the output is the same after {counted(len(struck), 'killed machine')}"
            return Report("same", says, _of_lost_work(request, calm, struck), (), calm, torn, None, struck)
        self._told("the output differs: once more in peace, to see whether it does so by itself")
        again, _ = self._run(request, "in peace again", [])
        if differences(calm, again, resumes=resumes(request)):
            says = "the output differs from run to run, also when nobody is killed"
            return Report("unsteady", says, UNSTEADY, different, calm, torn, again, struck)
        says = "the output is another one after its machine was killed"
        advice = RESUMED if resumes(request) else RESTARTED
        return Report("differs", says, advice, different, calm, torn, again, struck)

    def _failed(self, request: JobRequest, calm: Run, torn: Run, struck: tuple[Kill, ...]) -> Report:
        says = f"after its machine was killed it did not end well: {torn.failure or torn.verdict}"
        advice = NEVER if request.recovery == "never" else "`holdfast run` it with --attempts 5 if machines die often."
        return Report("failed", says, advice, (), calm, torn, None, struck)

    # --- one run ---

    def _torn(self, request: JobRequest, calm: Run, kills: int, hurry: int = 1) -> tuple[Run, tuple[Kill, ...]]:
        self._have_machines(kills + SPARE)
        spans = [self._chance.uniform(EARLIEST, LATEST) * calm.worked_s / hurry for _ in range(kills)]
        torn, struck = self._run(request, f"with {counted(kills, 'machine')} killed under it", spans)
        # What resumes has less to do after each kill, so one may be all that it lives to see.
        enough = 1 if resumes(request) else kills
        if len(struck) >= enough or torn.verdict != "succeeded" or hurry >= HURRY_MAX:
            return torn, struck
        if struck and differences(calm, torn, resumes=resumes(request)):
            return torn, struck
        self._told(f"it ended after {len(struck)} of {counted(kills, 'kill')}: once more, and sooner")
        return self._torn(request, calm, kills, 2 * hurry)

    def _run(self, request: JobRequest, how: str, spans: list[float]) -> tuple[Run, tuple[Kill, ...]]:
        self._told(f"=== {how} ===")
        job = self.client.jobs.submit(msgspec.structs.replace(request, key=None)).id
        struck: list[Kill] = []
        for span in spans:
            kill = self._kill(job, span)
            if kill is None:
                break
            struck.append(kill)
        view = self.client.jobs.wait(job, timeout_s=PATIENCE_S, check=False)
        run = self._gathered(view)
        self._told(f"it {run.verdict} after {run.seconds:.1f} s and {counted(run.attempts, 'attempt')}")
        return run, tuple(struck)

    def _kill(self, job: str, span: float) -> Kill | None:
        """Kill the machine that runs the job, `span` seconds after its body began. None: the job was quicker."""

        def running() -> JobView | None:
            view = self.client.jobs.get(job)
            under_way = [a for a in view.attempts if a.phase == "running" and not a.revoked and a.started_ms]
            return view if under_way or view.phase == "ended" else None

        view = wait_for(running, f"{job} to run", PATIENCE_S)
        assert view is not None
        if view.phase == "ended":
            return None
        attempt = [a for a in view.attempts if a.phase == "running" and not a.revoked][-1]
        due = (attempt.started_ms or 0) / 1000 + span
        wait_for(lambda: time.time() >= due or self._ended(job), "the moment to kill", span + 60)
        if self._ended(job):
            return None
        node = self._machine_of(job)
        if node is None:
            return None
        self._told(f"kill -9: all of {node.name}, {span:.1f} s into the work")
        killed = time.time()
        node.kill_tree()

        def after() -> tuple[JobView, float | None] | None:
            view = self.client.jobs.get(job)
            began = [
                a.started_ms / 1000 - killed for a in view.attempts if a.started_ms and a.started_ms > killed * 1000
            ]
            return (view, began[0] if began else None) if began or view.phase == "ended" else None

        found = wait_for(after, f"{job} to run again", PATIENCE_S)
        assert found is not None
        view, recovered = found
        if recovered is None and view.verdict == "succeeded":
            self._told("it had delivered before")
            return None
        if recovered is not None:
            self._told(f"it runs again elsewhere, {recovered:.2f} s later")
        return Kill(node.name, span, recovered)

    def _machine_of(self, job: str) -> NodeProcesses | None:
        """The one that works on it now. None: the job ended before one was seen to, as a short one may."""

        def at_work() -> tuple[NodeProcesses | None] | None:
            view = self.client.jobs.get(job)
            if view.phase == "ended":
                return (None,)
            under_way = [a.node for a in view.attempts if a.phase == "running" and not a.revoked]
            names = {node.id: node.name for node in self.client.nodes.list()}
            found = self.network.nodes.get(names.get(under_way[-1], "")) if under_way else None
            return (found,) if found is not None else None

        found = wait_for(at_work, f"{job} to run on some machine, or to end", PATIENCE_S)
        assert found is not None
        return found[0]

    def _ended(self, job: str) -> bool:
        return self.client.jobs.get(job).phase == "ended"

    def _have_machines(self, number: int) -> None:
        """So many that live, all ready for work."""
        living = [name for name, node in self.network.nodes.items() if node.running()]
        while len(living) < number:
            self._nodes += 1
            living.append(f"machine-{self._nodes}")
            self.network.start_node(living[-1], wait=False)
        for name in living:
            self.network.wait_node(name)

    def _gathered(self, view: JobView) -> Run:
        seconds = ((view.ended_ms or view.submitted_ms) - view.submitted_ms) / 1000
        failure = view.failure.says if view.failure else ""
        files: dict[str, str] = {}
        stdout = ""
        if view.verdict == "succeeded":
            with tempfile.TemporaryDirectory(prefix="holdfast-rehearsal-") as folder:
                if view.files is not None:
                    self.client.content.fetch(view.files.manifest, folder)
                    files = hashes(Path(folder))
            stdout = view.result_sha256 or ""
        worked = _worked_s(view)
        return Run(view.id, view.verdict or "", seconds, view.attempts_made, files, stdout, failure, worked)


def _worked_s(view: JobView) -> float:
    spans = [(a.ended_ms - a.started_ms) / 1000 for a in view.attempts if a.started_ms and a.ended_ms]
    return spans[-1] if spans else 0.0


def hashes(folder: Path) -> dict[str, str]:
    """Every file in a folder by the hash of its content; links by where they lead."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def resumes(request: JobRequest) -> bool:
    """Whether a further attempt goes on where the last one was, and so prints only the rest."""
    return request.checkpoint_ms > 0 or request.recovery == "resume"


def differences(one: Run, other: Run, *, resumes: bool) -> tuple[str, ...]:
    """What is not the same, for people to read."""
    found = [f"{name}: only in one of them" for name in sorted(one.files.keys() ^ other.files.keys())]
    found += [f"{name}: another content" for name in sorted(one.files.keys() & other.files.keys())
              if one.files[name] != other.files[name]]  # fmt: skip
    if not resumes and one.stdout != other.stdout:
        found.append("what it printed")
    return tuple(found)


UNSTEADY = (
    "Fix what changes by itself: seed every random generator, write no times, paths or job ids into what it makes, "
    "sort what comes from sets, folders or threads. Until then nobody can say whether a kill changed anything."
)
RESTARTED = (
    "A second attempt starts from the same folder and inputs as the first. So something outside of them made the "
    "difference: a service it wrote to, an address whose content changed, or the environment of its attempt."
)
RESUMED = (
    "It went on from a checkpoint, and not everything was in it. Save all that the rest of the work depends on: "
    "counters, random generators, the place in the data, files it appends to. `holdfast.checkpoint` saves it whole."
)
NEVER = (
    "That is what class never means: it is not repeated, because that would not be safe. If it is safe, use restart."
)


def _of_lost_work(request: JobRequest, calm: Run, kills: tuple[Kill, ...]) -> str:
    lost = sum(kill.after_s for kill in kills)
    if resumes(request) or lost < 0.25 * calm.seconds:
        return "It can run where machines die."
    return (
        f"It can run where machines die. Each time it starts over: here {lost:.1f} s of work were done again. With "
        "--checkpoint and two lines of code it would go on where it was."
    )
