"""Reads the sentences of release 0.1, whose rows and entries had no codes, and turns them into codes when loaded.

The list is closed: it holds the sentences that 0.1 wrote, and does not change when `model.cause_text` changes its
wording. A sentence that is not on the list becomes `unknown` and keeps its words. The module can be removed when
upgrading from 0.1 is no longer supported.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.model.causes import (
    DrainChange,
    NodeCause,
    PauseCause,
    RevokeCause,
    StraggleKind,
    TakeoverCause,
    WaitReason,
)
from holdfast.model.failure import FailureCode
from holdfast.model.job import Attempt, Job, JobPhase, MoveState, Verdict
from holdfast.model.journal import Entry, Facts
from holdfast.model.node import Node, NodeState
from holdfast.model.resources import Resources

RowT = TypeVar("RowT")


def _seconds_ms(text: str) -> int:
    return round(float(text) * 1000)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_WORDS: tuple[str, Callable[[str], Any]] = (".+?", str)
_NUMBER: tuple[str, Callable[[str], Any]] = (r"\d+", int)
_GROUPS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "label": _WORDS,
    "attempt": _WORDS,
    "by": _WORDS,
    "detail": (".*", str),
    "refusal": (r"\w+", str),
    "nodes": (".+", _names),
    "failure": (r"\w+", FailureCode),
    "fault": (r"\w+", FailureCode),
    "verdict": (r"\w+", Verdict),
    "count": _NUMBER,
    "ms": _NUMBER,
    "limit_ms": _NUMBER,
    "bytes": _NUMBER,
    "seconds": (r"\d+", _seconds_ms),
    "typical": (r"[\d.e+]+", _seconds_ms),
}
"""The variable parts of a sentence: the pattern that matches each, and the function that reads it."""
_FIELDS = {"seconds": "ms", "typical": "median_ms"}


class _Sentences:
    """A closed list of sentences, each with its meaning."""

    def __init__(self, *listed: tuple[str, dict[str, Any]]) -> None:
        self._patterns = [(_pattern(looks), means) for looks, means in listed]

    def read(self, text: str) -> Facts | None:
        """None: the sentence is not on the list."""
        for pattern, means in self._patterns:
            found = pattern.fullmatch(text)
            if found is None:
                continue
            try:
                facts = {_FIELDS.get(name, name): _GROUPS[name][1](words) for name, words in found.groupdict().items()}
            except ValueError:  # not a known failure or verdict
                continue
            return Facts(**means, **facts)
        return None


def _pattern(looks: str) -> re.Pattern[str]:
    """`<name>` stands for a fact."""
    parts = re.split(r"<(\w+)>", looks)
    fixed, named = map(re.escape, parts[::2]), (f"(?P<{name}>{_GROUPS[name][0]})" for name in parts[1::2])
    return re.compile("".join(part for pair in zip(fixed, [*named, ""], strict=True) for part in pair), re.DOTALL)


# --- what a job waits for ---

_WAITS = _Sentences(
    ("a machine with room", {"wait": WaitReason.ROOM}),
    ("its machine is away; the job must not run twice, so its lease has to run out first", {"wait": WaitReason.LEASE}),
    ("room on <label>, the machine it was moved to", {"wait": WaitReason.NODE_ROOM}),
)


def wait_facts(text: str) -> Facts:
    return _WAITS.read(text) or Facts(wait=WaitReason.UNKNOWN, detail=text)


# --- how an attempt straggles ---

_STRAGGLES = _Sentences(
    (
        "no progress: it has printed nothing and computed nothing for <seconds> s",
        {"straggle": StraggleKind.STALLED},
    ),
    ("it has run for <seconds> s; the last <count> like it took <typical> s", {"straggle": StraggleKind.SLOW}),
)


def straggle_facts(text: str) -> Facts:
    return _STRAGGLES.read(text) or Facts(straggle=StraggleKind.UNKNOWN, detail=text)


# --- what put a machine into its state ---

_NODE_CAUSES = _Sentences(
    ("it joined", {"node_cause": NodeCause.JOINED}),
    ("it joined again", {"node_cause": NodeCause.JOINED_AGAIN}),
    ("it came back", {"node_cause": NodeCause.CAME_BACK}),
    ("it came back before its quarantine was over", {"node_cause": NodeCause.CAME_BACK_EARLY}),
    ("it did not dial in again after the orchestrator was away", {"node_cause": NodeCause.NOT_BACK}),
    ("silent for <ms> ms, limit <limit_ms> ms", {"node_cause": NodeCause.SILENT}),
    ("its connection broke: <detail>", {"node_cause": NodeCause.LINK_BROKE}),
    ("it answers no probes", {"node_cause": NodeCause.NO_PROBES}),
    ("<count> faults, the last: <fault>", {"node_cause": NodeCause.FAULTS}),
    ("it reports itself sick: <detail>", {"node_cause": NodeCause.SICK}),
    ("still sick: <detail>", {"node_cause": NodeCause.STILL_SICK}),
    ("its quarantine is over", {"node_cause": NodeCause.QUARANTINE_OVER}),
    ("it proved itself", {"node_cause": NodeCause.PROVEN}),
    ("no fault during its probation", {"node_cause": NodeCause.NO_FAULT}),
    ("it stayed away too long", {"node_cause": NodeCause.AWAY_TOO_LONG}),
    ("it said goodbye", {"node_cause": NodeCause.GOODBYE}),
)
_PAUSES = {
    "": PauseCause.OPERATOR,  # before the reason was written down
    "paused by its own operator": PauseCause.OPERATOR,
    "asked to leave by its own operator": PauseCause.LEAVING,
}
_UNFIT = "its machine is quarantined: "


def node_cause_facts(text: str) -> Facts:
    return _NODE_CAUSES.read(text) or Facts(node_cause=NodeCause.UNKNOWN, detail=text)


def pause_cause(text: str) -> PauseCause:
    """Why a machine's own operator wants no new work for it."""
    return _PAUSES.get(text, PauseCause.UNKNOWN)


def takeover_facts(text: str) -> Facts:
    """What happened to the machine, as shown for the job that it held."""
    if text.startswith(_UNFIT):
        return replace(node_cause_facts(text.removeprefix(_UNFIT)), takeover=TakeoverCause.QUARANTINED)
    facts = node_cause_facts(text)
    known = facts.node_cause is not NodeCause.UNKNOWN
    return replace(facts, takeover=TakeoverCause.LOST if known else TakeoverCause.UNKNOWN)


# --- why an attempt was revoked ---

_REVOKES = _Sentences(
    ("superseded: <attempt> delivered the result that counts", {"revoke": RevokeCause.OTHER_WON}),
    (
        "superseded: it started from a checkpoint of <attempt>, which is not believed any more",
        {"revoke": RevokeCause.TAINTED},
    ),
    ("superseded: the job has ended without a result", {"revoke": RevokeCause.JOB_ENDED}),
    ("cancelled: stopped by <by>", {"revoke": RevokeCause.CANCELLED}),
    ("poison: these machines went down with it running: <nodes>", {"revoke": RevokeCause.POISON}),
    ("superseded: the job was moved: <attempt> runs on <label>", {"revoke": RevokeCause.MOVED}),
    ("superseded: the job was moved to <label> before it started here", {"revoke": RevokeCause.MOVED_BEFORE_START}),
    ("superseded: <attempt> came back before this one had started", {"revoke": RevokeCause.CAME_BACK}),
    ("node_unhealthy: <attempt> runs on a healthy machine", {"revoke": RevokeCause.UNHEALTHY}),
    ("offer_unanswered: no answer within <ms> ms", {"revoke": RevokeCause.OFFER_UNANSWERED}),
    ("prepare_timeout: not ready within <ms> ms", {"revoke": RevokeCause.PREPARE_TIMEOUT}),
    ("time_limit: the machine did not stop it at its limit", {"revoke": RevokeCause.TIME_LIMIT}),
    ("upload_timeout: not delivered within <ms> ms", {"revoke": RevokeCause.UPLOAD_TIMEOUT}),
    ("lease_lost: its machine was not heard from before the lease ran out", {"revoke": RevokeCause.LEASE_LOST}),
    ("drained: its machine is being drained", {"revoke": RevokeCause.DRAINED}),
    ("drained: its machine offers less than it did", {"revoke": RevokeCause.OFFERS_LESS}),
)
_AWAY = {
    "node_lost: it had not started, and its machine is away: ": RevokeCause.AWAY_BEFORE_START,
    "node_lost: it had not started there: ": RevokeCause.AWAY_BEFORE_MOVE,
}
_FAILURE = _Sentences(("<failure>: <detail>", {}))


def revoke_facts(text: str) -> Facts:
    """From a failure's code and its detail, as written in the journal."""
    failed = _FAILURE.read(text)
    code = None if failed is None else failed.failure
    for begins, cause in _AWAY.items():
        if text.startswith(begins):
            return replace(takeover_facts(text.removeprefix(begins)), revoke=cause, failure=code)
    found = _REVOKES.read(text)
    if found is not None:
        return replace(found, failure=code)
    return Facts(revoke=RevokeCause.UNKNOWN, failure=code, detail=text if failed is None else failed.detail)


# --- the journal ---

_SAYS: dict[str, _Sentences] = {
    **{f"job.{phase.value}": _Sentences((f"the job is {phase.value}", {})) for phase in JobPhase},
    "job.assigned": _Sentences(("attempt <count> goes to <label>", {}), ("the job is assigned", {})),
    "job.accepted": _Sentences(("the result of attempt <attempt> counts", {})),
    "job.ended": _Sentences(("<verdict>: <failure>: <detail>", {}), ("<verdict>", {})),
    "job.move": _Sentences(
        (
            "it runs on <label> and nowhere else, once there is room (asked by <by>)",
            {"move": MoveState.WAITING},
        ),
        ("it moves to <label> (asked by <by>)", {"move": MoveState.SAVING}),
    ),
    "job.moved": _Sentences(("it runs on <label> now", {})),
    "job.not_moved": _Sentences(("it could not be moved to <label>: <detail>", {})),
    "job.received": _Sentences(("its owner has the files", {})),
    "job.reserved": _Sentences(("<label> takes nothing new until this job fits there", {})),
    "job.saved": _Sentences(("a checkpoint of <bytes> bytes is kept", {})),
    "job.second": _Sentences(("another attempt starts beside <attempt>; the first result wins", {})),
    "job.tainted": _Sentences(
        (
            "the checkpoints of <attempt> and what grew from them are not used: it goes on from checkpoint <count>",
            {},
        ),
        ("the checkpoints of <attempt> and what grew from them are not used: it starts over", {}),
    ),
    "attempt.failed": _FAILURE,
    "attempt.go": _Sentences(("may start; it will not be started anywhere else", {})),
    "attempt.moves_again": _Sentences(("it makes progress again", {})),
    "attempt.refused": _Sentences(("its result is refused: <failure>: <detail>", {})),
    "attempt.running": _Sentences(("its body runs", {})),
    "orchestrator.led": _Sentences(("epoch <count>; <ms> ms without a leader are charged to nobody", {})),
    "orchestrator.late": _Sentences(("<ms> ms late; every deadline moves by that, and nobody is blamed", {})),
}
_OF_NODES: dict[str, _Sentences] = {
    "node.draining": _Sentences(
        (" is being drained (<by>)", {"drain": DrainChange.DRAINED}),
        (" gets no work yet: <detail> (<by> took it back)", {"drain": DrainChange.STILL_DRAINED}),
    ),
    "node.undrained": _Sentences(
        (" takes work again (<by>)", {"drain": DrainChange.UNDRAINED}),
        (" is not drained any more (<by>)", {"drain": DrainChange.FORGOTTEN}),
    ),
    "node.refused": _Sentences((": <refusal>: <detail>", {})),
    "node.strike": _Sentences((": <failure>: <detail>", {})),
}
"""Without the machine's name, which precedes the sentence."""
_SPARED = re.compile(r" would be quarantined \((.*)\), but too few would be left", re.DOTALL)
_OFFERS = re.compile(
    r" offers ([\d.e+]+) cores, (\d+) MiB memory, (\d+) MiB disk, (\d+) GPUs \(its own operator\)", re.DOTALL
)
_STATES = frozenset(f"node.{state.value}" for state in NodeState)
_TAKEOVER, _STRAGGLING = "another machine takes over: ", "straggling: "


def entry_facts(kind: str, text: str, node: str | None) -> Facts | None:
    """The facts of an entry; None: its sentence is on no list. `node`: the machine that the entry is about."""
    match kind:
        case "job.lease":
            return wait_facts(text)
        case "job.takeover":
            return takeover_facts(text.removeprefix(_TAKEOVER))
        case "attempt.revoked":
            return revoke_facts(text)
        case "attempt.straggling":
            return straggle_facts(text.removeprefix(_STRAGGLING))
        case _ if kind in _SAYS:
            return _SAYS[kind].read(text)
        case _:
            return _of_node(kind, text, node or "")


def _of_node(kind: str, text: str, node: str) -> Facts | None:
    label = _label(text, node)
    rest = text.removeprefix(label)
    if not label:
        return None
    if kind in _STATES and rest.startswith(": "):
        return replace(node_cause_facts(rest.removeprefix(": ")), label=label)
    if kind == "node.spared" and (spared := _SPARED.fullmatch(rest)) is not None:
        return replace(node_cause_facts(spared[1]), label=label)
    if kind == "node.offers" and (offers := _OFFERS.fullmatch(rest)) is not None:
        room = Resources(_seconds_ms(offers[1]), int(offers[2]), int(offers[3]), int(offers[4]))
        return Facts(label=label, room=room)
    found = _OF_NODES[kind].read(rest) if kind in _OF_NODES else None
    return None if found is None else replace(found, label=label)


def _label(text: str, node: str) -> str:
    """`name (node_id)`, or the id alone."""
    before, bracketed, _ = text.partition(f" ({node})")
    return node if node and text.startswith(node) else before + bracketed if node and bracketed else ""


# --- rows ---


def with_codes(row: RowT) -> RowT:
    """The row with the codes that it lacks. A row of this release is returned as it is."""
    match row:
        case Job() if row.waiting and row.wait_reason is None:
            return replace(row, wait_reason=wait_facts(row.waiting).wait)
        case Attempt() if row.straggling and row.straggle is None:
            return with_codes(replace(row, straggle=straggle_facts(row.straggling).straggle))
        case Attempt() if row.revoked is not None and row.revoke_cause is None:
            why = row.revoked
            return replace(row, revoke_cause=revoke_facts(f"{why.code.value}: {why.detail}").revoke)
        case Node() if row.cause and row.cause_code is None:
            return with_codes(replace(row, cause_code=node_cause_facts(row.cause).node_cause))
        case Node() if row.leaving and row.pause_cause is None:
            return replace(row, pause_cause=pause_cause(row.leaving_why))
        case Entry() if row.facts is None:
            facts = entry_facts(row.kind, row.text, row.node)
            return row if facts is None else replace(row, facts=facts)
        case _:
            return row
