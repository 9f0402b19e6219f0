"""Golden transcripts: a scripted fleet drives the production kernel, and every decision is written down in words.

A transcript is prose, then blocks of commands, a line of dashes, and what was decided:

    # Two machines join, and a job comes.
    join n1 cpu=2
    submit j1
    ----
    [0.000] node.ready n1: it joined
    [0.000] = taken

Commands:

    settings NAME=VALUE …             before anything else: differ from the preset `lan`
    join NODE [cpu= gpus= site=]      dial in, with whatever the node still holds
    break NODE | crash NODE           its stream breaks; crash: it also forgets what it held
    forget NODE                       it loses what it held, while nobody looks
    die JOB.N                         its machine reboots: it will say that this is dead when it next speaks
    mute NODE | unmute NODE           it stays connected and says nothing; it speaks again
    stubborn NODE                     it does not do what it is told to discard
    submit JOB [owner= cpu= gpus= recovery= priority= attempts= queue= limit= name= checkpoint=]
    move JOB NODE [key=]              a person wants it there
    works JOB.N | idles JOB.N         from now on its node reports that its body computes, or that it does nothing
    saved JOB.N                       a checkpoint of it was captured and delivered
    stop JOB | explain JOB | drain NODE | undrain NODE | leave NODE
    pause NODE | resume NODE          its own operator wants nothing hosted for now, or something again
    report NODE                       what it holds, in full
    report JOB.N PHASE [NODE]         its node reports, after it reached PHASE (NODE: another one claims it)
    report JOB.N failed CODE [WORDS]
    verified JOB.N [wrong]            what was delivered is, or is not, what was declared
    tick SECONDS                      time passes; nodes report and answer probes; deadlines fire
    frozen SECONDS                    time passes, but the orchestrator stands still meanwhile
    restart                           a new leader rebuilds from the rows, and must find the same state
    show JOB|NODE

NODE may be written @JOB.N: the node of that attempt.

`python tests/scenarios/transcripts.py --rewrite` writes down what is decided now; read the difference.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.kernel.decision import (
    Answer,
    CloseSession,
    Decision,
    Done,
    Explanation,
    Rejected,
    Row,
    Send,
    Taken,
    ToSession,
    Verify,
)
from holdfast.kernel.events import (
    AnyEvent,
    CancelAsked,
    Checkpointed,
    DrainAsked,
    ExplainAsked,
    Led,
    MoveAsked,
    NodeBroke,
    NodeJoined,
    NodeSaid,
    Submitted,
    Tick,
    Verified,
)
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    Attempt,
    AttemptId,
    Entry,
    Failure,
    FailureCode,
    Hardware,
    Instant,
    Job,
    JobId,
    JobSpec,
    Need,
    Node,
    NodeId,
    Owner,
    Recovery,
    Resources,
    Result,
    Settings,
    attempt_id,
)
from holdfast.model.cause_text import draining_text
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Held,
    HeldPhase,
    Hello,
    Leaving,
    Offers,
    Ping,
    Pong,
    Progress,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.model.rows import row_key

BEGINNING = 1_000_000_000
QUIET = (Ping, Renewed, Welcome)
"""Said so often that nobody wants to read it."""


class ScriptedNode:
    """Says what the script tells it to say, and otherwise what an obedient node would."""

    def __init__(self, name: str, offered: Resources, site: str) -> None:
        self.id = NodeId(f"node_{name}")
        self.offered, self.site = offered, site
        self.session: int | None = None
        self.muted = False
        self.stubborn = False
        self.seq = 0
        self.held: dict[AttemptId, Held] = {}
        self.gone: list[Held] = []
        self.leased: set[AttemptId] = set()
        self.pings: list[int] = []
        self.spoke = 0
        self.working: dict[AttemptId, bool] = {}
        self.cpu_ms = 0

    def report(self) -> Report:
        self.seq += 1
        self.cpu_ms += 1_000
        for id, works in self.working.items():
            if id in self.held and self.held[id].phase is HeldPhase.RUNNING:
                before = self.held[id].progress
                cpu_ms = self.cpu_ms if works or before is None else before.cpu_ms
                self.held[id] = msgspec.structs.replace(self.held[id], progress=Progress("run", cpu_ms=cpu_ms))
        held, self.gone = (*self.held.values(), *self.gone), []
        return Report(self.seq, True, held, renew=tuple(sorted(self.leased & self.held.keys())))


class Stage:
    def __init__(self) -> None:
        self.now = BEGINNING
        self.settings = msgspec.structs.replace(Settings.lan(), open_join=True)
        self.kernel: Kernel | None = None
        self.epoch = 0
        self.sessions = 0
        self.nodes: dict[str, ScriptedNode] = {}
        self.rows: dict[object, Row] = {}
        self.lines: list[str] = []

    # --- the language ---

    def do(self, command: str) -> list[str]:
        self.lines = []
        name, *words = command.split()
        given = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if name != "settings" and self.kernel is None:
            self.lead()
            self.lines = []
        doer: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{name}")
        doer(plain, given)
        return self.lines

    def lead(self) -> None:
        self.epoch += 1
        kernel = Kernel.load(self.settings, self.rows.values())
        if self.kernel is not None and kernel.digest() != self.kernel.digest():
            raise AssertionError("what was rebuilt from the rows is not what the old leader had in mind")
        self.kernel = kernel
        self.feed(Led(self.epoch, seed=7))

    def feed(self, event: AnyEvent) -> Decision:
        assert self.kernel is not None
        decision = self.kernel.apply(event, Instant(self.now))
        for row in decision.changes:
            if isinstance(row, Entry):
                about = row.attempt or row.job or row.node or ""
                self.say(f"{row.kind} {about}: {row.text}" if about else f"{row.kind}: {row.text}")
            else:
                self.rows[row_key(row)] = row
        for send in decision.sends:
            self.carry_out(send)
        if decision.answer is not None:
            self.answer(decision.answer)
        return decision

    def say(self, text: str) -> None:
        text = re.sub(r"\bnode_(\w+)", r"\1", text)
        text = re.sub(r"\b(?:job|att)_(\w+)", r"\1", text)
        at = self.now - BEGINNING
        line = f"[{at // 1000}.{at % 1000:03d}] {text}"
        if line not in self.lines:
            self.lines.append(line)

    def carry_out(self, send: Send) -> None:
        match send:
            case ToSession(session, node_id, message):
                node = self.nodes[node_id.removeprefix("node_")]
                if not isinstance(message, QUIET):
                    self.say(f"-> {node_id} {_words(message)}")
                if node.session == session and not node.muted:
                    self.hear(node, message)
            case CloseSession(session, why):
                for node in self.nodes.values():
                    if node.session == session:
                        self.say(f"-> {node.id} closed: {why}")
                        node.session = None
            case Verify(attempt):
                self.say(f"verify {attempt}")

    def hear(self, node: ScriptedNode, message: object) -> None:
        match message:
            case Ping(nonce=nonce):
                node.pings.append(nonce)
            case Go(attempt=attempt):
                node.leased.add(attempt)
            case Discard(attempt=attempt, fence=fence) if not node.stubborn:
                node.held.pop(attempt, None)
                node.gone.append(Held(attempt, fence, HeldPhase.GONE))
            case Start(attempt=attempt, fence=fence) if attempt not in node.held:
                node.held[attempt] = Held(attempt, fence, HeldPhase.PREPARING)
            case _:
                pass

    def answer(self, answer: Answer) -> None:
        match answer:
            case Taken(job, again):
                self.say(f"= {job} is taken" + (", again" if again else ""))
            case Rejected(code, says):
                self.say(f"= refused {code}: {says}")
            case Done(says):
                self.say(f"= {says}")
            case Explanation():
                self.say(f"= {answer.phase}, waiting for {answer.waiting_for or 'nothing'}; then {answer.then}")
                for line in answer.attempts:
                    self.say(f"  {line}")
                if answer.gates:
                    self.say("  held back: " + ", ".join(f"{n} by {gate}" for gate, n in sorted(answer.gates.items())))
                if answer.nearest:
                    self.say(f"  nearest: {answer.nearest}")

    # --- commands ---

    def do_settings(self, plain: list[str], given: dict[str, str]) -> None:
        self.settings = msgspec.structs.replace(self.settings, **{key: int(value) for key, value in given.items()})

    def do_join(self, plain: list[str], given: dict[str, str]) -> None:
        name = self.node(plain[0]).id.removeprefix("node_") if plain[0].startswith("@") else plain[0]
        node = self.nodes.get(name)
        if node is None:
            cpu = int(float(given.get("cpu", "1")) * 1000)
            offered = Resources(cpu, 64 * 1024, 1024 * 1024, int(given.get("gpus", "0")))
            node = self.nodes[name] = ScriptedNode(name, offered, given.get("site", ""))
        self.sessions += 1
        node.session, node.seq, node.muted, node.spoke = self.sessions, 0, False, self.now
        hello = Hello(
            node.id, f"start of {name}", f"key of {name}", "0.1.0", Hardware(total=node.offered), node.offered, "none",
            site=node.site, held=tuple(node.held.values()),
        )  # fmt: skip
        self.feed(NodeJoined(node.session, hello))

    def do_break(self, plain: list[str], given: dict[str, str]) -> None:
        node = self.node(plain[0])
        assert node.session is not None, f"{node.id} is not connected"
        session, node.session = node.session, None
        node.pings.clear()
        self.feed(NodeBroke(session, node.id, "reset by peer"))

    def do_crash(self, plain: list[str], given: dict[str, str]) -> None:
        self.do_forget(plain, given)
        self.do_break(plain, given)

    def do_forget(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(plain[0]).held.clear()

    def do_die(self, plain: list[str], given: dict[str, str]) -> None:
        attempt = self.attempt(plain[0])
        dead = self._held(attempt, "failed", ["runtime_fault", "the", "shim", "was", "gone"])
        self.node(f"@{plain[0]}").held[attempt.id] = dead

    def do_mute(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(plain[0]).muted = True

    def do_unmute(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(plain[0]).muted = False

    def do_stubborn(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(plain[0]).stubborn = True

    def do_leave(self, plain: list[str], given: dict[str, str]) -> None:
        node = self.node(plain[0])
        assert node.session is not None
        self.feed(NodeSaid(node.session, node.id, Leaving(int(given.get("grace", "0")) * 1000, done=not node.held)))

    def do_pause(self, plain: list[str], given: dict[str, str]) -> None:
        node = self.node(plain[0])
        assert node.session is not None
        self.feed(NodeSaid(node.session, node.id, Offers(node.offered, paused=True, grace_ms=1_000)))

    def do_resume(self, plain: list[str], given: dict[str, str]) -> None:
        node = self.node(plain[0])
        assert node.session is not None
        self.feed(NodeSaid(node.session, node.id, Offers(node.offered)))

    def do_submit(self, plain: list[str], given: dict[str, str]) -> None:
        def milliseconds(name: str) -> int | None:
            return int(float(given[name]) * 1000) if name in given else None

        resources = Resources(int(float(given.get("cpu", "1")) * 1000), 512, 1024, int(given.get("gpus", "0")))
        spec = JobSpec(
            argv=("program",),
            need=Need(resources),
            recovery=Recovery(given.get("recovery", "restart")),
            priority=int(given.get("priority", "5")),
            attempts_max=int(given["attempts"]) if "attempts" in given else None,
            queue_limit_ms=milliseconds("queue"),
            time_limit_ms=milliseconds("limit"),
            name=given.get("name", ""),
            checkpoint_ms=milliseconds("checkpoint") or 0,
        )
        for name in plain:
            owner = Owner(given.get("owner", "ada"))
            self.feed(Submitted(JobId(f"job_{name}"), owner, spec, repr(spec)))

    def do_move(self, plain: list[str], given: dict[str, str]) -> None:
        node = self.node(plain[1]).id if plain[1].startswith("@") else NodeId(f"node_{plain[1]}")
        self.feed(MoveAsked(JobId(f"job_{plain[0]}"), node, key=given.get("key", "")))

    def do_works(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(f"@{plain[0]}").working[self.attempt(plain[0]).id] = True

    def do_idles(self, plain: list[str], given: dict[str, str]) -> None:
        self.node(f"@{plain[0]}").working[self.attempt(plain[0]).id] = False

    def do_saved(self, plain: list[str], given: dict[str, str]) -> None:
        attempt = self.attempt(plain[0])
        self.feed(Checkpointed(attempt.id, attempt.fence, f"saved by {attempt.id}", 4_096))

    def do_stop(self, plain: list[str], given: dict[str, str]) -> None:
        self.feed(CancelAsked(JobId(f"job_{plain[0]}")))

    def do_explain(self, plain: list[str], given: dict[str, str]) -> None:
        self.feed(ExplainAsked(JobId(f"job_{plain[0]}")))

    def do_drain(self, plain: list[str], given: dict[str, str]) -> None:
        self.feed(DrainAsked(NodeId(f"node_{plain[0]}"), True))

    def do_undrain(self, plain: list[str], given: dict[str, str]) -> None:
        self.feed(DrainAsked(NodeId(f"node_{plain[0]}"), False))

    def do_report(self, plain: list[str], given: dict[str, str]) -> None:
        if "." not in plain[0] or plain[0].startswith("@"):
            self.speak(self.node(plain[0]))
            return
        attempt = self.attempt(plain[0])
        claims = plain[1] != "failed" and len(plain) > 2
        node = self.node(plain[2] if claims else f"@{plain[0]}")
        node.held[attempt.id] = self._held(attempt, plain[1], plain[2:])
        self.speak(node)

    def _held(self, attempt: Attempt, phase: str, words: list[str]) -> Held:
        if phase == "failed":
            failure = Failure(FailureCode(words[0]), " ".join(words[1:]))
            return Held(attempt.id, attempt.fence, HeldPhase.FINISHED, failure=failure)
        result = Result(f"output of {attempt.job}", 10) if phase == "finished" else None
        return Held(attempt.id, attempt.fence, HeldPhase(phase), result=result)

    def do_verified(self, plain: list[str], given: dict[str, str]) -> None:
        attempt = self.attempt(plain[0])
        ok = "wrong" not in plain
        self.feed(Verified(attempt.id, attempt.fence, ok, "" if ok else "the digests differ"))

    def do_tick(self, plain: list[str], given: dict[str, str]) -> None:
        """Step from one due moment to the next, as the orchestrator's loop and the nodes' own timers would."""
        assert self.kernel is not None
        end = self.now + int(float(plain[0].rstrip("s")) * 1000)
        while self.now < end:
            due = self.kernel.next_due()
            reports = [n.spoke + self._period(n) for n in self.nodes.values() if n.session is not None and not n.muted]
            step = min([end, *([max(due, self.now + 1)] if due is not None else []), *reports])
            self.now = max(self.now, step)
            for node in self.nodes.values():
                if node.session is not None and not node.muted and node.spoke + self._period(node) <= self.now:
                    self.speak(node)
            if due is not None and due <= self.now:
                self.feed(Tick())

    def _period(self, node: ScriptedNode) -> int:
        if node.pings:
            return 0
        return self.settings.keepalive_ms if node.held or node.gone else self.settings.heartbeat_ms

    def speak(self, node: ScriptedNode) -> None:
        assert node.session is not None, f"{node.id} is not connected"
        node.spoke = self.now
        pings, node.pings = node.pings, []
        for nonce in pings:
            self.feed(NodeSaid(node.session, node.id, Pong(nonce)))
        if node.session is not None:
            self.feed(NodeSaid(node.session, node.id, node.report()))

    def do_frozen(self, plain: list[str], given: dict[str, str]) -> None:
        late_ms = int(float(plain[0].rstrip("s")) * 1000)
        self.now += late_ms
        self.feed(Tick(late_ms))

    def do_restart(self, plain: list[str], given: dict[str, str]) -> None:
        for node in self.nodes.values():
            node.session = None
        self.lead()

    def do_show(self, plain: list[str], given: dict[str, str]) -> None:
        name = self.node(plain[0]).id.removeprefix("node_") if plain[0].startswith("@") else plain[0]
        node = self.rows.get(("node", f"node_{name}"))
        if isinstance(node, Node):
            draining = f", draining ({draining_text(node)})" if node.draining else ""
            self.say(f"{name} is {node.state.value}{draining}, {node.strikes} strikes: {node.cause}")
            return
        job = self.rows[("job", f"job_{name}")]
        assert isinstance(job, Job)
        end = f", {job.verdict.value}" if job.verdict else ""
        why = f": {job.failure.code.value}" if job.failure else ""
        self.say(f"{name} is {job.phase.value}{end}{why}" + (f", waiting for {job.waiting}" if job.waiting else ""))
        for row in self.rows.values():
            if isinstance(row, Attempt) and row.job == job.id:
                revoked = f", revoked: {row.revoked.code.value}" if row.revoked else ""
                won = ", accepted" if job.accepted == row.id else ""
                self.say(f"  {row.id} on {row.node}: {row.phase.value}{revoked}{won}")

    def node(self, name: str) -> ScriptedNode:
        id = self.attempt(name[1:]).node.removeprefix("node_") if name.startswith("@") else name
        return self.nodes[id]

    def attempt(self, name: str) -> Attempt:
        job, _, number = name.rpartition(".")
        row = self.rows.get(("attempt", attempt_id(JobId(f"job_{job}"), int(number))))
        assert isinstance(row, Attempt), f"there was no attempt {name}"
        return row


def _words(message: object) -> str:
    match message:
        case Start(attempt=attempt, lease_ms=lease_ms, checkpoint=checkpoint):
            again = f" from what was {checkpoint}" if checkpoint else ""
            return f"start {attempt}{again}" + (" and wait for the go" if lease_ms else "")
        case Go(attempt=attempt):
            return f"go {attempt}"
        case Save(attempt=attempt):
            return f"save {attempt}"
        case Discard(attempt=attempt, reason=reason):
            return f"discard {attempt}: {reason}"
        case Drained(on=on):
            return "you are drained" if on else "you are not drained any more"
        case _:
            return f"{type(message).__name__.lower()}: {getattr(message, 'says', '')}"


def play(text: str) -> str:
    """The transcript again, with what is decided now in place of what stood there."""
    stage = Stage()
    played: list[str] = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        if "----" not in lines:
            played.append(block)
            continue
        head = lines[: lines.index("----")]
        told = [line for command in head if not command.startswith("#") for line in stage.do(command)]
        played.append("\n".join([*head, "----", *told]))
    return "\n\n".join(played) + "\n"


def transcripts() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.txt"))


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python tests/scenarios/transcripts.py --rewrite")
    for path in transcripts():
        path.write_text(play(path.read_text()))
