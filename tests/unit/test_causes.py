"""Codes and sentences: one renderer makes the sentence, and the closed list of 0.1 leads back to the code."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model import (
    Attempt,
    DrainChange,
    Entry,
    Facts,
    Failure,
    FailureCode,
    Gate,
    Job,
    JobPhase,
    JobSpec,
    MoveState,
    Node,
    NodeCause,
    NodeState,
    Resources,
    RevokeCause,
    StraggleKind,
    TakeoverCause,
    Verdict,
    WaitReason,
)
from holdfast.model.cause_text import (
    KINDS,
    entry_text,
    gate_text,
    gate_title,
    node_cause_text,
    revoke_failure,
    straggle_text,
    wait_text,
)
from holdfast.model.old_sentences import (
    entry_facts,
    node_cause_facts,
    revoke_facts,
    straggle_facts,
    wait_facts,
    with_codes,
)

pytestmark = pytest.mark.spec("J14", "H4")

NODE = "node_0123456789abcdef"
CODES = (WaitReason, Gate, StraggleKind, NodeCause, TakeoverCause, RevokeCause, DrainChange)
STORED_WAITS = (WaitReason.ROOM, WaitReason.NODE_ROOM, WaitReason.LEASE)
"""What `Job.waiting` can say; the others are said by `explain` only."""
LOST_FOR = (NodeCause.NOT_BACK, NodeCause.SILENT, NodeCause.LINK_BROKE, NodeCause.NO_PROBES)
OF_STATES = {f"node.{state.value}" for state in NodeState}
WORD = st.from_regex(r"[a-z][a-z0-9_.-]{0,12}", fullmatch=True)
NUMBER = st.integers(0, 10**9)
OUTSIDE = st.one_of(WORD, st.text(max_size=30))
"""What a node, a connection or an operator says can be anything."""
LABEL = st.one_of(st.just(NODE), WORD.map(lambda name: f"{name} ({NODE})"))


def known(codes: Any) -> list[Any]:
    return [code for code in codes if code.value != "unknown"]


WORDED = [cause for cause in known(NodeCause) if cause is not NodeCause.RESTLESS]
"""Causes that a release wrote as text alone."""


def node_causes(among: list[NodeCause]) -> st.SearchStrategy[Facts]:
    def facts(cause: NodeCause) -> st.SearchStrategy[Facts]:
        fields: dict[str, Any] = {"node_cause": st.just(cause)}
        if cause is NodeCause.SILENT:
            fields |= {"ms": NUMBER, "limit_ms": NUMBER}
        elif cause is NodeCause.FAULTS:
            fields |= {"count": NUMBER, "fault": st.sampled_from(FailureCode)}
        elif cause in (NodeCause.LINK_BROKE, NodeCause.SICK, NodeCause.STILL_SICK):
            fields["detail"] = OUTSIDE
        return st.builds(Facts, **fields)

    return st.sampled_from(among).flatmap(facts)


def takeovers() -> st.SearchStrategy[Facts]:
    lost = node_causes(list(LOST_FOR)).map(lambda f: replace(f, takeover=TakeoverCause.LOST))
    unfit = node_causes([NodeCause.FAULTS, NodeCause.SICK]).map(
        lambda f: replace(f, takeover=TakeoverCause.QUARANTINED)
    )
    return lost | unfit


_NAMES_AN_ATTEMPT = (
    RevokeCause.OTHER_WON,
    RevokeCause.TAINTED,
    RevokeCause.MOVED,
    RevokeCause.CAME_BACK,
    RevokeCause.UNHEALTHY,
)


def revocations() -> st.SearchStrategy[Facts]:
    def facts(cause: RevokeCause) -> st.SearchStrategy[Facts]:
        if cause in (RevokeCause.AWAY_BEFORE_START, RevokeCause.AWAY_BEFORE_MOVE):
            return takeovers().map(lambda f: replace(f, revoke=cause))
        fields: dict[str, Any] = {"revoke": st.just(cause)}
        if cause in _NAMES_AN_ATTEMPT:
            fields["attempt"] = WORD
        if cause in (RevokeCause.MOVED, RevokeCause.MOVED_BEFORE_START):
            fields["label"] = LABEL
        if cause in (RevokeCause.OFFER_UNANSWERED, RevokeCause.PREPARE_TIMEOUT, RevokeCause.UPLOAD_TIMEOUT):
            fields["ms"] = NUMBER
        if cause is RevokeCause.CANCELLED:
            fields["by"] = WORD
        if cause is RevokeCause.POISON:
            fields["nodes"] = st.lists(WORD, min_size=1, max_size=4).map(tuple)
        return st.builds(Facts, **fields)

    revoked = st.sampled_from(known(RevokeCause)).flatmap(facts)
    return revoked.map(lambda f: replace(f, failure=revoke_failure(f).code))


def straggles() -> st.SearchStrategy[Facts]:
    seconds = st.integers(0, 10**6).map(lambda s: s * 1000)
    stalled = st.builds(Facts, straggle=st.just(StraggleKind.STALLED), ms=seconds)
    typical = st.integers(0, 999_999).map(lambda ms: ms if ms < 10**5 else ms // 1000 * 1000)
    slow = st.builds(Facts, straggle=st.just(StraggleKind.SLOW), ms=seconds, count=NUMBER, median_ms=typical)
    return stalled | slow


def drains(among: tuple[DrainChange, ...]) -> st.SearchStrategy[Facts]:
    facts = st.builds(Facts, drain=st.sampled_from(among), label=LABEL, by=WORD)
    why = "drained by the network's operator"
    return facts.map(lambda f: replace(f, detail=why if f.drain is DrainChange.STILL_DRAINED else ""))


def failed(**more: Any) -> st.SearchStrategy[Facts]:
    return st.builds(Facts, failure=st.sampled_from(FailureCode), detail=OUTSIDE.filter(bool), **more)


ROOMS = st.builds(
    Resources, cpu_milli=st.integers(0, 512).map(lambda n: n * 1000), memory_mib=NUMBER, disk_mib=NUMBER, gpus=NUMBER
)
ENTRIES: dict[str, st.SearchStrategy[Facts]] = {
    **{f"job.{phase.value}": st.just(Facts()) for phase in JobPhase},
    **{kind: st.builds(lambda f, of: replace(f, label=of), node_causes(WORDED), LABEL) for kind in OF_STATES},
    "job.assigned": st.just(Facts()) | st.builds(Facts, count=st.integers(1, 10**6), label=LABEL),
    "job.accepted": st.builds(Facts, attempt=WORD),
    "job.ended": st.builds(Facts, verdict=st.sampled_from(Verdict)) | failed(verdict=st.sampled_from(Verdict)),
    "job.lease": st.just(Facts(wait=WaitReason.LEASE)),
    "job.move": st.builds(Facts, move=st.sampled_from([MoveState.WAITING, MoveState.SAVING]), label=LABEL, by=WORD),
    "job.moved": st.builds(Facts, label=LABEL),
    "job.not_moved": st.builds(Facts, label=LABEL, detail=OUTSIDE),
    "job.received": st.just(Facts()),
    "job.reserved": st.builds(Facts, label=LABEL),
    "job.saved": st.builds(Facts, bytes=NUMBER),
    "job.second": st.builds(Facts, attempt=WORD),
    "job.tainted": st.builds(Facts, attempt=WORD, count=NUMBER),
    "job.takeover": takeovers(),
    "attempt.failed": failed(),
    "attempt.go": st.just(Facts()),
    "attempt.moves_again": st.just(Facts()),
    "attempt.refused": failed(),
    "attempt.revoked": revocations(),
    "attempt.running": st.just(Facts()),
    "attempt.straggling": straggles(),
    "node.draining": drains((DrainChange.DRAINED, DrainChange.STILL_DRAINED)),
    "node.undrained": drains((DrainChange.UNDRAINED, DrainChange.FORGOTTEN)),
    "node.offers": st.builds(Facts, label=LABEL, room=ROOMS),
    "node.refused": st.builds(Facts, label=LABEL, refusal=st.just("token_used"), detail=OUTSIDE),
    "node.spared": st.builds(
        lambda f, of: replace(f, label=of), node_causes([NodeCause.FAULTS, NodeCause.SICK]), LABEL
    ),
    "node.strike": failed(label=LABEL),
    "orchestrator.led": st.builds(Facts, count=NUMBER, ms=NUMBER),
    "orchestrator.late": st.builds(Facts, ms=NUMBER),
}


# --- there and back ---


NEWER = {"access.made", "access.revoked", "job.confirming", "node.forgotten", "orchestrator.clock"}
"""Kinds of which no release wrote the text alone."""


def test_the_renderer_knows_every_kind_that_is_tried_here() -> None:
    assert set(ENTRIES) == KINDS - NEWER


@pytest.mark.parametrize("kind", sorted(KINDS - NEWER))
@given(data=st.data())
def test_an_entry_of_the_past_has_the_facts_that_made_its_sentence(kind: str, data: st.DataObject) -> None:
    facts = data.draw(ENTRIES[kind])
    assert entry_facts(kind, entry_text(kind, facts), NODE) == facts


@given(st.sampled_from(STORED_WAITS), LABEL)
def test_what_a_job_of_the_past_waits_for_is_known(reason: WaitReason, label: str) -> None:
    assert wait_facts(wait_text(reason, Facts(label=label))).wait is reason


@given(straggles())
def test_how_an_attempt_of_the_past_straggles_is_known(facts: Facts) -> None:
    assert straggle_facts(straggle_text(facts)) == facts


@given(node_causes(WORDED))
def test_what_put_a_node_of_the_past_into_its_state_is_known(facts: Facts) -> None:
    assert node_cause_facts(node_cause_text(facts)) == facts


@given(revocations())
def test_why_an_attempt_of_the_past_was_revoked_is_known(facts: Facts) -> None:
    why = revoke_failure(facts)
    assert revoke_facts(f"{why.code.value}: {why.detail}") == facts


# --- what is on no list ---


@given(st.from_regex(r"Z[a-z ]{0,20}", fullmatch=True))
def test_words_that_are_on_no_list_are_unknown_and_kept(text: str) -> None:
    assert wait_facts(text) == Facts(wait=WaitReason.UNKNOWN, detail=text)
    assert straggle_facts(text) == Facts(straggle=StraggleKind.UNKNOWN, detail=text)
    assert node_cause_facts(text) == Facts(node_cause=NodeCause.UNKNOWN, detail=text)
    assert revoke_facts(f"superseded: {text}") == Facts(
        revoke=RevokeCause.UNKNOWN, failure=FailureCode.SUPERSEDED, detail=text
    )
    assert entry_facts("job.second", text, None) is None and entry_facts("node.dances", text, NODE) is None


@given(st.from_regex(r"Z[a-z ]{0,20}", fullmatch=True))
def test_an_unknown_cause_is_told_in_its_own_words(text: str) -> None:
    takeover = f"another machine takes over: {text}"
    assert entry_text("job.takeover", entry_facts("job.takeover", takeover, None) or Facts()) == takeover
    revoked = f"superseded: {text}"
    assert entry_text("attempt.revoked", entry_facts("attempt.revoked", revoked, None) or Facts()) == revoked
    assert wait_text(WaitReason.UNKNOWN, wait_facts(text)) == text


@pytest.mark.parametrize("codes", CODES)
def test_a_code_of_a_later_release_is_unknown(codes: Any) -> None:
    assert msgspec.json.decode(b'"from_the_future"', type=codes) is codes("unknown")


def test_every_gate_has_words_and_its_title_begins_them() -> None:
    for gate in Gate:
        assert gate_text(gate).startswith(gate_title(gate))
    assert len({gate_text(gate) for gate in Gate}) == len(Gate)


# --- rows ---

JOB = {"id": "job_1", "owner": "ann", "spec": {"argv": ["true"]}, "spec_hash": "", "submitted_ms": 0}
ATTEMPT = {"id": "att_1.1", "job": "job_1", "node": NODE, "fence": 1, "offered_ms": 0}
MACHINE = {"id": NODE, "public_key": "", "version": "0.1.0", "hardware": {}, "joined_ms": 0}
ENTRY = {"seq": 1, "at_ms": 0}
AWAY = "its machine is away; the job must not run twice, so its lease has to run out first"


@pytest.mark.parametrize(
    ("kind", "row", "codes"),
    [
        (Job, {**JOB, "waiting": AWAY}, {"wait_reason": WaitReason.LEASE}),
        (Job, {**JOB, "waiting": "the moon"}, {"wait_reason": WaitReason.UNKNOWN}),
        (Job, JOB, {"wait_reason": None}),
        (
            Attempt,
            {
                **ATTEMPT,
                "straggling": "no progress: it has printed nothing and computed nothing for 9 s",
                "revoked": {"code": "superseded", "detail": "the job was moved: att_1.2 runs on b"},
            },
            {"straggle": StraggleKind.STALLED, "revoke_cause": RevokeCause.MOVED},
        ),
        (Attempt, ATTEMPT, {"straggle": None, "revoke_cause": None}),
        (Node, {**MACHINE, "cause": "it joined"}, {"cause_code": NodeCause.JOINED}),
        (Node, MACHINE, {"cause_code": None}),
        (
            Entry,
            {**ENTRY, "kind": "job.saved", "text": "a checkpoint of 4 bytes is kept"},
            {"facts": Facts(bytes=4)},
        ),
        (Entry, {**ENTRY, "kind": "job.saved", "text": "saved"}, {"facts": None}),
    ],
)
def test_a_row_of_the_past_gets_its_codes_once(kind: Any, row: dict[str, Any], codes: dict[str, Any]) -> None:
    stored = msgspec.convert(row, kind)
    read = with_codes(stored)
    assert {name: getattr(read, name) for name in codes} == codes
    assert with_codes(read) is read
    # and what it said in words, it still says
    assert replace(read, **dict.fromkeys(codes)) == stored


def test_a_code_that_is_there_is_not_looked_for_in_the_words() -> None:
    job = Job(**{**JOB, "spec": JobSpec(("true",))}, waiting=AWAY, wait_reason=WaitReason.ROOM)  # pyright: ignore
    assert with_codes(job) is job


@pytest.mark.parametrize(
    ("row", "added"),
    [
        (msgspec.convert({**JOB, "waiting": AWAY, "wait_reason": "lease"}, Job), {"wait_reason"}),
        (
            replace(
                msgspec.convert(ATTEMPT, Attempt),
                straggle=StraggleKind.SLOW,
                revoked=Failure(FailureCode.DRAINED),
                revoke_cause=RevokeCause.DRAINED,
            ),
            {"straggle", "revoke_cause"},
        ),
        (msgspec.convert({**MACHINE, "cause": "it joined", "cause_code": "joined"}, Node), {"cause_code"}),
        (Entry(1, 0, "job.saved", "a checkpoint of 4 bytes is kept", facts=Facts(bytes=4)), {"facts"}),  # pyright: ignore
    ],
)
def test_a_release_without_these_fields_reads_the_row_and_passes_over_them(row: Any, added: set[str]) -> None:
    # given the row type as 0.1 had it
    fields = [
        (f.name, f.type) if f.required else (f.name, f.type, msgspec.field(default=f.default))
        for f in msgspec.structs.fields(type(row))
        if f.name not in added and f.default_factory is msgspec.NODEFAULT
    ]
    older = msgspec.defstruct("Older", fields, kw_only=True)
    # then it reads what this release writes
    read = msgspec.json.decode(msgspec.json.encode(row), type=older)
    assert all(getattr(read, name) == getattr(row, name) for name, *_ in fields)


def test_sentences_name_no_code_of_python() -> None:
    """A forgotten brace would be stored for ever."""
    for kind in KINDS:
        assert not re.search(r"[{}]|<.*>|None", entry_text(kind, Facts(label="a", by="b", detail="c", attempt="d")))
