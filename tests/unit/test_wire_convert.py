"""Messages survive the wire, and nothing that could not be meant gets through it."""

import time

import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.identity import tokens
from holdfast.model import (
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    JobSpec,
    Need,
    Recovery,
    Resources,
    Result,
    Workload,
    attempt_id,
    job_id,
    job_of,
)
from holdfast.model.job import TIME_LIMIT_MS_MAX
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Held,
    HeldPhase,
    Hello,
    Leaving,
    Load,
    Ping,
    Pong,
    Refusal,
    Renewed,
    Report,
    Start,
    Welcome,
)
from holdfast.wire import checks, convert, limits, parts, versions
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage

pytestmark = pytest.mark.spec("N1", "N5")

# --- what can be said ---

counts = st.integers(0, limits.COUNT_MAX)
fences = st.integers(1, limits.COUNT_MAX)
durations = st.integers(0, limits.MILLISECONDS_MAX)
attempts = st.builds(attempt_id, st.builds(job_id, st.text(max_size=3), st.text(max_size=3)), st.integers(1, 999))
nodes = st.uuids().map(lambda u: f"node_{u.hex}")
labels = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=limits.LABEL_CHARS_MAX).filter(str.isprintable)
words = st.one_of(labels, st.just("line one\n\tline two"))
codes = st.sampled_from(["version", "token_wrong", "not-leader"])
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
resources = st.builds(
    Resources,
    st.integers(0, limits.CPU_MILLI_MAX),
    st.integers(0, limits.MEMORY_MIB_MAX),
    st.integers(0, limits.DISK_MIB_MAX),
    st.integers(0, limits.GPUS_MAX),
)
failures = st.builds(
    Failure,
    st.sampled_from(FailureCode),
    words,
    st.none() | st.integers(-(2**31), 2**32),
    st.none() | st.integers(0, 64),
)
results = st.builds(Result, digests, st.integers(0, limits.BYTES_MAX), st.integers(0, limits.BYTES_MAX))
unfinished = st.sampled_from([p for p in HeldPhase if p not in (HeldPhase.FINISHED, HeldPhase.REFUSED)])
held = st.one_of(
    st.builds(Held, attempts, fences, unfinished),
    st.builds(Held, attempts, fences, st.just(HeldPhase.FINISHED), results),
    st.builds(Held, attempts, fences, st.sampled_from([HeldPhase.FINISHED, HeldPhase.REFUSED]), st.none(), failures),
)
many_held = st.lists(held, max_size=4, unique_by=lambda h: h.attempt).map(tuple)
many_attempts = st.lists(attempts, max_size=4, unique=True).map(tuple)
loads = st.builds(
    Load,
    st.integers(0, limits.PERMILLE_MAX),
    st.integers(0, limits.MEMORY_MIB_MAX),
    st.integers(0, limits.DISK_MIB_MAX),
    words,
)
gpus = st.builds(Gpu, labels, st.integers(0, limits.MEMORY_MIB_MAX), labels)
hardware = st.builds(
    Hardware,
    labels,
    labels,
    labels,
    labels,
    resources,
    st.lists(gpus, max_size=2).map(tuple),
    st.lists(labels, max_size=2).map(tuple),
)
hellos = st.builds(
    Hello,
    node=nodes,
    instance=st.uuids().map(lambda u: u.hex),
    public_key=digests,
    version=labels,
    hardware=hardware,
    offered=resources,
    isolation=st.sampled_from(["bubblewrap", "none"]),
    name=labels,
    site=labels,
    held=many_held,
    epoch_seen=counts,
)
from_nodes = st.one_of(
    st.builds(Report, counts, st.booleans(), many_held, st.none() | loads, many_attempts),
    st.builds(Pong, counts),
    st.builds(Leaving, durations, st.booleans()),
)
arguments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
specs = st.builds(
    JobSpec,
    argv=st.tuples(arguments.filter(bool), arguments),
    name=labels,
    env=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), arguments, max_size=3),
    need=st.builds(Need, resources, labels, labels, st.integers(0, limits.MEMORY_MIB_MAX)),
    workload=st.sampled_from(Workload),
    recovery=st.sampled_from(Recovery),
    priority=st.integers(0, 9),
    time_limit_ms=st.none() | st.integers(1, TIME_LIMIT_MS_MAX),
    queue_limit_ms=st.none() | durations,
    attempts_max=st.none() | st.integers(1, 1_000),
)


@st.composite
def starts(draw: st.DrawFn) -> Start:
    attempt = draw(attempts)
    limit = draw(st.integers(1, limits.MILLISECONDS_MAX))
    return Start(draw(counts), attempt, draw(fences), job_of(attempt), draw(specs), limit, draw(durations))


commands = st.one_of(
    starts(),
    st.builds(Go, counts, attempts, fences, counts),
    st.builds(Discard, counts, attempts, fences, words, st.booleans()),
    st.builds(Renewed, counts, counts, many_attempts),
    st.builds(Ping, counts, counts),
    st.builds(Drained, counts, st.booleans()),
    st.builds(Refusal, codes, words, st.booleans()),
)
welcomes = st.builds(
    Welcome,
    nodes,
    counts,
    st.integers(10, limits.MILLISECONDS_MAX),
    st.integers(10, limits.MILLISECONDS_MAX),
    durations,
    durations,
    durations,
)


def over_the_wire(frame):
    """What arrives is read from bytes, never from the sender's object."""
    return type(frame).FromString(frame.SerializeToString())


ATTEMPT = attempt_id(job_id("ada", "one"), 1)
HELLO = Hello(
    node="node_" + "0" * 32,
    instance="i1",
    public_key="ab" * 32,
    version="0.1.0",
    hardware=Hardware(),
    offered=Resources(1000, 512, 1024),
    isolation="bubblewrap",
)


def hello_frame(**changed: object) -> pb.NodeFrame:
    frame = convert.hello_to_frame(HELLO, 1, b"s" * 64)
    for field, value in changed.items():
        setattr(frame.hello, field, value)
    return frame


# --- round trips ---


@given(hellos, st.binary(min_size=64, max_size=64))
def test_a_hello_arrives_as_it_was_said(hello: Hello, signature: bytes) -> None:
    arrived = convert.hello_from_frame(over_the_wire(convert.hello_to_frame(hello, 1, signature)))
    assert arrived == convert.SignedHello(hello, 1, signature)


@pytest.mark.spec("N6")
def test_a_token_arrives_as_its_id_and_the_hash_of_its_secret() -> None:
    ticket, row = tokens.make("", 0, 1)
    said = convert.hello_to_frame(msgspec.structs.replace(HELLO, token_id=ticket.id), 1, b"s" * 64, ticket.secret)
    arrived = convert.hello_from_frame(over_the_wire(said)).hello
    assert (arrived.token_id, arrived.token_sha256) == (row.id, row.secret_sha256)


@given(from_nodes)
def test_what_a_node_says_arrives_as_it_was_said(message) -> None:
    assert convert.node_from_frame(over_the_wire(convert.node_to_frame(message))) == message


@given(commands)
def test_what_an_orchestrator_says_arrives_as_it_was_said(message) -> None:
    assert convert.orchestrator_from_frame(over_the_wire(convert.orchestrator_to_frame(message))) == message


@given(welcomes, st.from_regex(r"[A-Za-z0-9_-]{16,128}", fullmatch=True))
def test_a_welcome_arrives_with_its_bulk_key_and_never_prints_it(welcome: Welcome, key: str) -> None:
    admitted = convert.answer_from_frame(over_the_wire(convert.welcome_to_frame(welcome, key)))
    assert admitted == convert.Admitted(welcome, key)
    assert repr(admitted) == f"Admitted({welcome!r})"


@given(attempts, fences, st.sampled_from(["stdout", "stderr"]), st.integers(0, limits.BYTES_MAX), st.binary())
def test_a_piece_of_log_and_its_receipt_arrive_as_they_were_said(attempt, fence, stream, offset, data) -> None:
    piece = convert.LogPiece(attempt, fence, stream, offset, data)
    assert convert.chunk_from_wire(over_the_wire(convert.chunk_to_wire(piece))) == piece
    receipt = convert.LogDurable(attempt, stream, offset, "revoked: superseded")
    assert convert.ack_from_wire(over_the_wire(convert.ack_to_wire(receipt))) == receipt


def test_a_challenge_or_a_refusal_opens_a_session() -> None:
    arrived = convert.challenge_from_frame(over_the_wire(convert.challenge_to_frame(b"n" * 32, "0.1.0")))
    assert arrived == convert.Challenge(b"n" * 32, versions.PROTOCOL_MIN, versions.PROTOCOL_MAX, "0.1.0")
    assert arrived.protocol == versions.PROTOCOL_MAX
    refusal = Refusal("not_leader", "another one leads", final=False)
    assert convert.challenge_from_frame(convert.orchestrator_to_frame(refusal)) == refusal
    assert convert.answer_from_frame(convert.orchestrator_to_frame(refusal)) == refusal


def test_every_word_of_the_model_has_its_number_on_the_wire_and_no_other_has() -> None:
    for numbers, enum, prefix in [
        (parts.PHASES, pb.HeldPhase, "HELD_"),
        (parts.CODES, pb.FailureCode, "FAILURE_"),
        (parts.WORKLOADS, pb.Workload, "WORKLOAD_"),
        (parts.RECOVERIES, pb.Recovery, "RECOVERY_"),
    ]:
        assert {prefix + word.name for word in numbers.values()} | {prefix + "UNSAID"} == set(enum.keys())


# --- what is refused ---


def report_of(**changed: object) -> pb.NodeFrame:
    said = pb.Held(attempt=ATTEMPT, fence=1, phase=pb.HELD_RUNNING)
    for field, value in changed.items():
        if isinstance(value, (pb.Result, pb.Failure)):
            getattr(said, field).CopyFrom(value)
        else:
            setattr(said, field, value)
    return pb.NodeFrame(report=pb.Report(seq=1, held=[said]))


RESULT = pb.Result(stdout_sha256=b"h" * 32)
FAILURE = pb.Failure(code=pb.FAILURE_EXIT_CODE)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (pb.NodeFrame(), "unexpected"),
        (hello_frame(), "unexpected"),
        (report_of(attempt="att_../../etc.1"), "bad_id"),
        (report_of(attempt=ATTEMPT + "\n"), "bad_id"),
        (report_of(attempt=ATTEMPT.replace(".1", ".01")), "bad_id"),
        (report_of(fence=0), "bad_number"),
        (report_of(fence=2**63), "bad_number"),
        (report_of(phase=0), "bad_enum"),
        (report_of(phase=99), "bad_enum"),
        (report_of(phase=pb.HELD_FINISHED), "missing"),
        (report_of(phase=pb.HELD_REFUSED), "missing"),
        (report_of(phase=pb.HELD_FINISHED, result=RESULT, failure=FAILURE), "contradiction"),
        (report_of(phase=pb.HELD_FINISHED, result=pb.Result(stdout_sha256=b"short")), "bad_bytes"),
        (report_of(phase=pb.HELD_FINISHED, failure=pb.Failure(code=77)), "bad_enum"),
        (report_of(phase=pb.HELD_FINISHED, failure=pb.Failure(code=1, detail="\x1b[2J")), "bad_text"),
        (report_of(phase=pb.HELD_FINISHED, failure=pb.Failure(code=1, detail="x" * 1001)), "too_long"),
        (report_of(phase=pb.HELD_FINISHED, failure=pb.Failure(code=1, exit_code=-(2**40))), "bad_number"),
        (pb.NodeFrame(report=pb.Report(held=[pb.Held(attempt=ATTEMPT, fence=1, phase=1)] * 2)), "contradiction"),
        (pb.NodeFrame(report=pb.Report(renew=[ATTEMPT, ATTEMPT])), "contradiction"),
        (pb.NodeFrame(report=pb.Report(renew=[ATTEMPT] * 1025)), "too_many"),
        (pb.NodeFrame(report=pb.Report(held=[pb.Held(attempt=ATTEMPT, fence=1, phase=1)] * 1025)), "too_many"),
        (pb.NodeFrame(report=pb.Report(renew=["att_" + "x" * 70_000])), "too_large"),
        (pb.NodeFrame(report=pb.Report(load=pb.Load(cpu_permille=2**40))), "bad_number"),
        (pb.NodeFrame(pong=pb.Pong(nonce=2**64 - 1)), "bad_number"),
        (pb.NodeFrame(leaving=pb.Leaving(grace_ms=2**50)), "bad_number"),
    ],
)
def test_a_report_that_cannot_be_meant_is_refused_by_name(frame: pb.NodeFrame, code: str) -> None:
    with pytest.raises(BadMessage) as refused:
        convert.node_from_frame(over_the_wire(frame))
    assert refused.value.code == code
    assert refused.value.refusal() == Refusal(code, refused.value.says, final=True)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"node": "node_1"}, "bad_id"),
        ({"node": "node_" + "A" * 32}, "bad_id"),
        ({"instance": ""}, "bad_text"),
        ({"instance": "a b"}, "bad_text"),
        ({"public_key": b"short"}, "bad_bytes"),
        ({"signature": b""}, "bad_bytes"),
        ({"name": "two\nlines"}, "bad_text"),
        ({"name": "x" * 129}, "too_long"),
        ({"isolation": ""}, "bad_text"),
        ({"token_id": "tok_abcdefgh"}, "bad_bytes"),
        ({"token_secret": b"alone"}, "bad_bytes"),
        ({"token_id": "'; drop table", "token_secret": b"s"}, "bad_id"),
        ({"epoch_seen": 2**63}, "bad_number"),
    ],
)
def test_a_hello_that_cannot_be_meant_is_refused_by_name(changed: dict[str, object], code: str) -> None:
    with pytest.raises(BadMessage) as refused:
        convert.hello_from_frame(over_the_wire(hello_frame(**changed)))
    assert refused.value.code == code


START = Start(1, ATTEMPT, 1, job_of(ATTEMPT), JobSpec(("true",)), 1_000)


def start_of(change) -> pb.OrchestratorFrame:
    frame = convert.orchestrator_to_frame(START)
    change(frame.start)
    return frame


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda s: setattr(s, "job", job_id("eve", "other")), "contradiction"),
        (lambda s: setattr(s, "time_limit_ms", 0), "bad_number"),
        (lambda s: s.spec.ClearField("argv"), "bad_spec"),
        (lambda s: s.spec.argv.append("nul\0"), "bad_spec"),
        (lambda s: s.spec.argv.extend(["x"] * 1024), "bad_spec"),
        (lambda s: s.spec.argv.append("x" * limits.ARGV_BYTES_MAX), "bad_spec"),
        (lambda s: s.spec.env.update({"LD PRELOAD": "x"}), "bad_spec"),
        (lambda s: s.spec.env.update({"A": "x" * limits.ENV_BYTES_MAX}), "bad_spec"),
        (lambda s: s.spec.env.update({f"A{i}": "" for i in range(300)}), "bad_spec"),
        (lambda s: s.spec.env.update({"A": "\0"}), "bad_spec"),
        (lambda s: setattr(s.spec, "priority", 10), "bad_spec"),
        (lambda s: setattr(s.spec, "attempts_max", 0), "bad_spec"),
        (lambda s: setattr(s.spec, "workload", 9), "bad_enum"),
        (lambda s: setattr(s.spec.need.resources, "gpus", 65), "bad_number"),
    ],
)
def test_a_node_refuses_an_order_that_cannot_be_meant(change, code: str) -> None:
    with pytest.raises(BadMessage) as refused:
        convert.orchestrator_from_frame(over_the_wire(start_of(change)))
    assert refused.value.code == code


def test_logs_that_cannot_be_meant_are_refused() -> None:
    good = {"attempt": ATTEMPT, "fence": 1, "stream": pb.LOG_STDOUT, "data": b"x"}
    assert convert.chunk_from_wire(pb.LogChunk(**good)).data == b"x"
    for changed, code in [
        ({"data": b"x" * (limits.LOG_DATA_BYTES_MAX + 1)}, "too_large"),
        ({"stream": 0}, "bad_enum"),
        ({"stream": 3}, "bad_enum"),
        ({"offset": 2**60}, "bad_number"),
        ({"attempt": "../x"}, "bad_id"),
    ]:
        with pytest.raises(BadMessage) as refused:
            convert.chunk_from_wire(pb.LogChunk(**(good | changed)))
        assert refused.value.code == code
    with pytest.raises(BadMessage, match="too_large"):
        convert.chunk_to_wire(convert.LogPiece(ATTEMPT, 1, "stdout", 0, b"x" * (limits.LOG_DATA_BYTES_MAX + 1)))


# --- what is said is made fit to be said ---


def test_a_machine_with_an_odd_name_can_still_join() -> None:
    odd = Hardware(cpu_model="CPU\x1b[31m\udcff" + "x" * 500, network=("eth0",) * 200)
    frame = convert.hello_to_frame(msgspec.structs.replace(HELLO, hardware=odd, name="a\nb"), 1, b"s" * 64)
    hello = convert.hello_from_frame(over_the_wire(frame)).hello
    assert hello.hardware.cpu_model.startswith("CPU�[31m�xxx")
    assert len(hello.hardware.cpu_model) == limits.LABEL_CHARS_MAX
    assert len(hello.hardware.network) == limits.INTERFACES_MAX


@pytest.mark.spec("J7", "N9")
def test_a_full_node_reports_all_it_holds_in_one_frame_by_shortening_words_and_no_facts() -> None:
    job = job_id("ada", "many")
    failure = Failure(FailureCode.RUNTIME_FAULT, "é" * 5_000, exit_code=125)
    everything = tuple(Held(attempt_id(job, n + 1), 2**60, HeldPhase.FINISHED, None, failure) for n in range(256))
    report = convert.node_from_frame(over_the_wire(convert.node_to_frame(Report(1, True, everything))))
    assert [h.attempt for h in report.held] == [h.attempt for h in everything]
    assert all(h.failure and h.failure.code is failure.code and h.failure.exit_code == 125 for h in report.held)


def test_what_no_field_can_carry_is_refused_at_the_sender() -> None:
    unsayable = [
        lambda: convert.node_to_frame(Pong(-1)),
        lambda: convert.node_to_frame(Report(2**70, True, ())),
        lambda: convert.orchestrator_to_frame(Ping(1, -5)),
        lambda: convert.welcome_to_frame(Welcome("node_" + "0" * 32, -1, 1, 1, 1, 1, 1), "k" * 20),
        lambda: convert.node_to_frame(
            Report(1, True, (Held(ATTEMPT, 1, HeldPhase.FINISHED, Result("00" * 32, 1, exit_code=3)),))
        ),
        lambda: convert.node_to_frame(Report(1, True, (Held(ATTEMPT, 1, HeldPhase.FINISHED, Result("zz", 1)),))),
        lambda: convert.orchestrator_to_frame(Start(1, ATTEMPT, 1, job_of(ATTEMPT), JobSpec(("x" * 70_000,)), 1)),
    ]
    for say in unsayable:
        with pytest.raises(BadMessage):
            say()


def test_the_front_door_knows_which_jobs_no_node_could_be_told() -> None:
    assert checks.spec_fault(JobSpec(("echo", "ü"))) is None
    assert "lone surrogate" in (checks.spec_fault(JobSpec(("\ud800",))) or "")
    assert "name" in (checks.spec_fault(JobSpec(("x",), name="a\nb")) or "")
    largest = JobSpec(
        argv=("x" * (limits.ARGV_BYTES_MAX - 1_100), *["y"] * 500),
        env={f"V{n}": "z" * 50 for n in range(256)},
        name="n" * 128,
    )
    assert checks.spec_fault(largest) is None
    convert.orchestrator_to_frame(Start(2**60, ATTEMPT, 2**60, job_of(ATTEMPT), largest, 2**30, 2**30))


# --- versions ---


@pytest.mark.parametrize(
    ("theirs", "own", "chosen"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 4), 3), ((2, 9), (1, 3), 3), ((3, 4), (1, 2), 0), ((1, 2), (3, 4), 0)],
)
def test_both_sides_take_the_highest_protocol_they_share(theirs, own, chosen) -> None:
    assert versions.choose(*theirs, *own) == chosen == versions.choose(*own, *theirs)


def test_no_protocol_at_all_is_no_protocol_in_common() -> None:
    assert versions.choose(0, 0) == 0
    assert versions.choose(5, 2) == 0


def test_the_side_that_is_too_old_is_told_so_before_anything_else_is_looked_at() -> None:
    newer = hello_frame(protocol=0, protocol_min=7, protocol_max=9, version="9.0", node="node:of:another:shape")
    with pytest.raises(BadMessage, match=r"9\.0.*7 to 9.*upgrade the orchestrator") as refused:
        convert.hello_from_frame(over_the_wire(newer))
    assert refused.value.code == "version"
    assert "upgrade the node" in versions.refusal(1, 2, "0.1", own_min=3, own_max=4).says
    with pytest.raises(BadMessage, match="version"):
        convert.hello_from_frame(hello_frame(protocol=3))


# --- hostile bytes ---


READERS = [
    (pb.NodeFrame, convert.node_from_frame),
    (pb.NodeFrame, convert.hello_from_frame),
    (pb.OrchestratorFrame, convert.orchestrator_from_frame),
    (pb.OrchestratorFrame, convert.challenge_from_frame),
    (pb.OrchestratorFrame, convert.answer_from_frame),
    (pb.LogChunk, convert.chunk_from_wire),
    (pb.LogAck, convert.ack_from_wire),
]


def read_all(raw: bytes) -> None:
    for kind, read in READERS:
        try:
            read(kind.FromString(raw))
        except (BadMessage, DecodeError):
            continue


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_raise_nothing_else(raw: bytes) -> None:
    read_all(raw)


@settings(max_examples=300)
@given(
    st.one_of(
        hellos.map(lambda h: convert.hello_to_frame(h, 1, b"s" * 64)),
        from_nodes.map(convert.node_to_frame),
        commands.map(convert.orchestrator_to_frame),
    ),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_damaged_frames_are_read_as_something_sound_or_refused(frame, damage, cut: int) -> None:
    raw = bytearray(frame.SerializeToString())
    for at, value in damage:
        if raw:
            raw[at % len(raw)] = value
    read_all(bytes(raw[: len(raw) - cut] if cut < len(raw) else raw))


def test_reading_a_keepalive_costs_microseconds() -> None:
    frame = convert.node_to_frame(Report(7, False, (Held(ATTEMPT, 3, HeldPhase.RUNNING),), Load(10, 20, 30)))
    raw = frame.SerializeToString()
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(500):
            convert.node_from_frame(pb.NodeFrame.FromString(raw))
        best = min(best, (time.process_time() - began) / 500)
    # 5,000 busy nodes say this once a second; at 100 µs that would take half a core. Ten are usual.
    assert best < 100e-6
