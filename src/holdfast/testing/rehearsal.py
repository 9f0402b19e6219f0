"""Rehearses a job: runs it on a small local network, undisturbed and with its machines killed, and compares the output.

    with Rehearsal(told=print) as rehearsal:
        report = rehearsal.play(JobRequest(["python3", "work.py"]), kills=2)
        assert report.finding == "same", report.advice

The job runs undisturbed first. Then it runs again, and the node that runs it is killed (SIGKILL of its whole process
tree) at a random moment, `kills` times. If the output differs, the job runs undisturbed once more, to distinguish a job
whose output always varies from one that does not survive an interruption.

Everything is in one folder, whose name identifies the process that it belongs to. If that process is killed, the next
rehearsal ends the processes that it left and removes the folder.
"""

import contextlib
import hashlib
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from holdfast.client import Client
from holdfast.errors import WaitExpired
from holdfast.node.attempt import attempt_folders
from holdfast.node.runtimes import trials
from holdfast.quantities import counted, spoken_ms
from holdfast.testing.processes import LocalNetwork, NodeProcesses, NotInTime, wait_for
from holdfast.wire.errors import FailureView
from holdfast.wire.http import AttemptView, JobRequest, JobView

SPARE = 1
"""Machines in addition to those that will be killed."""
EARLIEST, LATEST = 0.15, 0.85
"""The range for the moment of a kill, as a fraction of the working time of the undisturbed run."""
PATIENCE_S = 6 * 3600.0
HURRY_MAX = 4
"""A job may end before the planned kill. Then it runs again with the kill moments divided by 2, and so on up to this
divisor."""
QUIET_S, QUIET_S_MAX = 10.0, 600.0
"""The first and the longest interval between two messages that the job still runs, in seconds. It doubles each time."""
DETAILS, DETAIL_BYTES = 5, 1 << 20
"""How many differences are described, and how many bytes of each file are compared for that."""
LAST_LINES = 10
"""How many lines of a failed job's output are shown."""
SHORTEST_S = 0.5
"""A run shorter than this, in seconds, is over before a machine could be killed at a chosen moment."""


class Kill(msgspec.Struct, frozen=True):
    node: str
    after_s: float
    """Seconds since the body of the attempt started."""
    recovered_s: float | None
    """Seconds until the body ran again elsewhere; None: it never did."""


class RehearsalRun(msgspec.Struct, frozen=True):
    job: str
    verdict: str
    seconds: float
    attempts: int
    files: dict[str, str]
    """Path -> sha256 of the files that the job made."""
    stdout: str
    """sha256 of the accepted attempt's stdout."""
    failure: str = ""
    worked_s: float = 0.0
    """How much of `seconds` the last attempt worked, without waiting and preparation."""
    printed: tuple[str, ...] = ()
    """The last lines of the output of a failed job."""
    manifest: str = ""
    """The manifest of its files."""
    accepted: str = ""
    """The accepted attempt."""


class RehearsalReport(msgspec.Struct, frozen=True):
    finding: str
    """same | differs | unsteady | failed | undisturbed"""
    says: str
    advice: str
    differences: tuple[str, ...]
    calm: RehearsalRun
    torn: RehearsalRun | None = None
    again: RehearsalRun | None = None
    """The third run, undisturbed, if the second one differed."""
    kills: tuple[Kill, ...] = ()
    details: tuple[str, ...] = ()
    """The first differing line of some of the differences."""

    @property
    def good(self) -> bool:
        return self.finding == "same"


class Rehearsal:
    """A network to rehearse jobs on. Use it with `with`."""

    def __init__(
        self, told: Callable[[str], None] = lambda line: None, chance: random.Random | None = None, preset: str = "lan"
    ) -> None:
        self._told = told
        self._chance = chance or random.Random()
        self._preset = preset
        self._nodes = 0
        self._killed: set[str] = set()
        self._ending = contextlib.ExitStack()
        self.network: LocalNetwork

    def __enter__(self) -> Self:
        self._told("starting an orchestrator and its machines here")
        with contextlib.ExitStack() as ending:
            folder = Path(ending.enter_context(trials.folder_for(WHAT, clear_up)))
            self.network = ending.enter_context(LocalNetwork(folder))
            (folder / MARKED).write_text(self.network.mark)
            self.network.start_orchestrator(preset=self._preset)
            self._told("the orchestrator answers; its first machines join")
            self._have_machines(SPARE)
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    @property
    def client(self) -> Client:
        return self.network.client()

    def play(self, request: JobRequest, *, kills: int = 1) -> RehearsalReport:
        calm, _ = self._run(request, "undisturbed", [])
        if calm.verdict != "succeeded":
            says = f"it fails even when undisturbed: {calm.failure or calm.verdict}"
            return RehearsalReport("failed", says, _of_failure(request, calm), (), calm)
        if calm.seconds < SHORTEST_S:
            says = f"it takes {calm.seconds:.2f} s: it is over before its machine could die at a chosen moment"
            return RehearsalReport("undisturbed", says, "Give it more to do, or trust that it is short.", (), calm)
        torn, struck = self._torn(request, calm, kills)
        if not struck:
            says = "it ended before its machine could be killed"
            return RehearsalReport("undisturbed", says, "Rehearse it again.", (), calm, torn)
        if torn.verdict != "succeeded":
            return self._failed(request, calm, torn, struck)
        different = differences(calm, torn, resumes=resumes(request))
        if not different:
            says = f"the output is the same after {counted(len(struck), 'killed machine')}"
            return RehearsalReport("same", says, _of_lost_work(request, calm, struck), (), calm, torn, None, struck)
        self._told("the output differs: one more undisturbed run shows whether it differs by itself")
        details = self._details(calm, torn, printed=not resumes(request))
        again, _ = self._run(request, "undisturbed, again", [])
        if differences(calm, again, resumes=resumes(request)):
            says = "the output differs from run to run, also when nobody is killed"
            return RehearsalReport("unsteady", says, UNSTEADY, different, calm, torn, again, struck, details)
        says = "the output differs after its machine was killed"
        advice = RESUMED if resumes(request) else RESTARTED
        return RehearsalReport("differs", says, advice, different, calm, torn, again, struck, details)

    def _failed(
        self, request: JobRequest, calm: RehearsalRun, torn: RehearsalRun, struck: tuple[Kill, ...]
    ) -> RehearsalReport:
        says = f"it failed after its machine was killed: {torn.failure or torn.verdict}"
        advice = NEVER if request.recovery == "never" else "`holdfast run` it with --attempts 5 if machines die often."
        return RehearsalReport("failed", says, advice, (), calm, torn, None, struck)

    # --- one run ---

    def _torn(
        self, request: JobRequest, calm: RehearsalRun, kills: int, hurry: int = 1
    ) -> tuple[RehearsalRun, tuple[Kill, ...]]:
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

    def _run(self, request: JobRequest, how: str, spans: list[float]) -> tuple[RehearsalRun, tuple[Kill, ...]]:
        self._told(f"=== {how} ===")
        job = self.client.jobs.submit(msgspec.structs.replace(request, key=None)).id
        struck: list[Kill] = []
        for span in spans:
            kill = self._kill(job, span)
            if kill is None:
                break
            struck.append(kill)
        if not self._until_ended(job, PATIENCE_S):
            raise NotInTime(f"{job} did not end within {PATIENCE_S:g} s")
        run = self._gathered(self.client.jobs.get(job))
        self._told(f"it {run.verdict} after {run.seconds:.1f} s and {counted(run.attempts, 'attempt')}")
        return run, tuple(struck)

    def _until_ended(self, job: str, timeout_s: float) -> bool:
        """Whether the job ends within `timeout_s`. Reports from time to time that it still runs."""
        began, pause = time.monotonic(), QUIET_S
        while (left := began + timeout_s - time.monotonic()) > 0:
            with contextlib.suppress(WaitExpired):
                return self.client.jobs.wait(job, timeout_s=min(pause, left), check=False).phase == "ended"
            passed_ms = round((time.monotonic() - began) * 1000)
            if passed_ms < timeout_s * 1000:
                self._told(f"it is {self.client.jobs.get(job).phase}, {spoken_ms(passed_ms)} on")
            pause = min(2 * pause, QUIET_S_MAX)
        return self._ended(job)

    def _kill(self, job: str, span: float) -> Kill | None:
        """Kill the machine that runs the job, `span` seconds after its body started. None: the job ended first."""

        attempt = self._under_way(job)
        if attempt is None:
            return None
        due = (attempt.started_ms or 0) / 1000 + span
        if due - time.time() > QUIET_S:
            self._told(f"its machine is killed {spoken_ms(round(span * 1000))} into the work")
        if self._until_ended(job, due - time.time()):
            return None
        attempt = self._under_way(job)
        if attempt is None:
            return None
        node = self._machine(attempt.node)
        self._told(f"kill -9: all of {node.name}, {span:.1f} s into the work")
        self._killed.add(attempt.node)
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
            self._told("it had delivered its result before")
            return None
        if recovered is not None:
            self._told(f"it runs again elsewhere, {recovered:.2f} s later")
        return Kill(node.name, span, recovered)

    def _under_way(self, job: str) -> AttemptView | None:
        """Wait until an attempt runs on a live machine; the newest one. None: the job ended first."""

        def found() -> tuple[AttemptView | None] | None:
            view = self.client.jobs.get(job)
            if view.phase == "ended":
                return (None,)
            # An attempt on a killed machine counts as running until the orchestrator revokes it.
            running = [
                a for a in view.attempts
                if a.phase == "running" and not a.revoked and a.started_ms and a.node not in self._killed
            ]  # fmt: skip
            return (running[-1],) if running else None

        attempt = wait_for(found, f"{job} to run on a machine, or to end", PATIENCE_S)
        assert attempt is not None
        return attempt[0]

    def _machine(self, node: str) -> NodeProcesses:
        names = {view.id: view.name for view in self.client.nodes.list()}
        return self.network.nodes[names[node]]

    def _ended(self, job: str) -> bool:
        return self.client.jobs.get(job).phase == "ended"

    def _have_machines(self, number: int) -> None:
        """Have at least this many live machines, all ready for work."""
        living = [name for name, node in self.network.nodes.items() if node.running()]
        while len(living) < number:
            self._nodes += 1
            living.append(f"machine-{self._nodes}")
            self.network.start_node(living[-1], wait=False)
        for name in living:
            self.network.wait_node(name)

    def _gathered(self, view: JobView) -> RehearsalRun:
        seconds = ((view.ended_ms or view.submitted_ms) - view.submitted_ms) / 1000
        failure = _told_of(view.failure) if view.failure else ""
        files: dict[str, str] = {}
        stdout = ""
        if view.verdict == "succeeded":
            with tempfile.TemporaryDirectory(dir=self.network.folder) as folder:
                if view.files is not None:
                    self.client.content.fetch(view.files.manifest, folder)
                    files = hashes(Path(folder))
            stdout = view.result_sha256 or ""
        worked = _worked_s(view)
        last = self._last_lines(view.id) if failure else ()
        manifest = view.files.manifest if view.files else ""
        return RehearsalRun(
            view.id, view.verdict or "", seconds, view.attempts_made, files, stdout, failure, worked, last, manifest,
            view.accepted or "",
        )  # fmt: skip

    def _details(self, one: RehearsalRun, other: RehearsalRun, *, printed: bool) -> tuple[str, ...]:
        """A description of the first few differences between two runs."""
        names = [name for name in sorted(one.files.keys() & other.files.keys()) if one.files[name] != other.files[name]]
        found: list[str] = []
        with tempfile.TemporaryDirectory(dir=self.network.folder) as folder:
            places = [Path(folder) / run.job for run in (one, other)]
            for run, place in zip((one, other), places, strict=True):
                if names:
                    self.client.content.fetch(run.manifest, place)
            for name in names[:DETAILS]:
                found.append(f"{name}: {first_difference(*(_beginning(place / name) for place in places))}")
        if printed and one.stdout != other.stdout:
            found.append(f"what it printed: {first_difference(*(self._printed(run) for run in (one, other)))}")
        return tuple(found)

    def _printed(self, run: RehearsalRun) -> bytes:
        """The beginning of the accepted attempt's stdout."""
        printed = b""
        for piece in self.client.jobs.logs(run.job, stream="stdout"):
            if piece.stream == "stdout" and piece.attempt == run.accepted:
                printed += piece.text.encode()
            if len(printed) > DETAIL_BYTES:
                break
        return printed[:DETAIL_BYTES]

    def _last_lines(self, job: str) -> tuple[str, ...]:
        said = (piece.text for piece in self.client.jobs.logs(job) if piece.stream != "platform")
        return tuple(deque((line for text in said for line in text.splitlines()), LAST_LINES))


WHAT = "rehearsal"
"""Part of the name of its folder."""
MARKED = "mark"
"""The file in that folder with the mark that its processes have in their environment."""


def clear_up(folder: str) -> None:
    """End the processes that a rehearsal left, and clean up after them; the folder stays."""
    left = LocalNetwork(Path(folder))
    with contextlib.suppress(OSError):
        left.mark = (left.folder / MARKED).read_text() or left.mark
    left.close()
    for attempt in left.folder.glob("node-*/attempts/*"):
        attempt_folders.end_processes(attempt)
        attempt_folders.clean(attempt)
        attempt_folders.remove(attempt)


def _told_of(failure: FailureView) -> str:
    """The failure's text with its exit code, signal and detail."""
    numbers = [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    numbers += [f"signal {failure.signal}"] if failure.signal is not None else []
    more = ", ".join(word for word in (*numbers, failure.detail) if word)
    return f"{failure.says} ({more})" if more else failure.says


def _worked_s(view: JobView) -> float:
    spans = [(a.ended_ms - a.started_ms) / 1000 for a in view.attempts if a.started_ms and a.ended_ms]
    return spans[-1] if spans else 0.0


def hashes(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder, by path; for a link, its target."""
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
    """Whether the next attempt continues where the last one stopped, and so prints only the rest."""
    return request.checkpoint_ms > 0 or request.recovery == "resume"


def differences(one: RehearsalRun, other: RehearsalRun, *, resumes: bool) -> tuple[str, ...]:
    """The differences between two runs, as text for people."""
    found = [f"{name}: only in one of the two runs" for name in sorted(one.files.keys() ^ other.files.keys())]
    found += [f"{name}: different content" for name in sorted(one.files.keys() & other.files.keys())
              if one.files[name] != other.files[name]]  # fmt: skip
    if not resumes and one.stdout != other.stdout:
        found.append("what it printed")
    return tuple(found)


def _beginning(path: Path) -> bytes:
    if path.is_symlink():
        return f"-> {path.readlink()}".encode()
    with path.open("rb") as file:
        return file.read(DETAIL_BYTES)


def first_difference(one: bytes, other: bytes) -> str:
    """The first line that differs, or the first byte if it is not text; for people."""
    if b"\0" in one or b"\0" in other:
        same = next(
            (at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other))
        )
        return f"from byte {same} on"
    for number, (x, y) in enumerate(zip_longest(one.splitlines(), other.splitlines()), 1):
        if x != y:
            return f"line {number}: {_quoted(x)} became {_quoted(y)}"
    return f"somewhere behind its first {min(len(one), len(other))} bytes"


def _quoted(line: bytes | None) -> str:
    if line is None:
        return "nothing"
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")


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


def _of_failure(request: JobRequest, calm: RehearsalRun) -> str:
    seen = "What it printed last stands above" if calm.printed else "It printed nothing"
    network = "" if request.network else ", no network without --network"
    return (
        f"Fix that first. {seen}. On a node it has no standard input{network}, and none of your files but the folder "
        "that is sent with it and what --input names."
    )


def _of_lost_work(request: JobRequest, calm: RehearsalRun, kills: tuple[Kill, ...]) -> str:
    lost = sum(kill.after_s for kill in kills)
    if resumes(request) or lost < 0.25 * calm.seconds:
        return "It can run where machines die."
    return (
        f"It can run where machines die. Each time it starts over: here {lost:.1f} s of work were done again. With "
        "--checkpoint and two lines of code it would go on where it was."
    )
