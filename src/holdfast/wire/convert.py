"""Converts model.messages to frames and back. Strict: every field of what this module returns has been checked.

    node                                    orchestrator
    challenge_from_frame                <-  challenge_to_frame
    hello_to_frame                      ->  hello_from_frame
    answer_from_frame                   <-  welcome_to_frame, orchestrator_to_frame (Refusal)
    node_to_frame                       ->  node_from_frame            Report, Pong, Leaving, Offers
    orchestrator_from_frame             <-  orchestrator_to_frame      Start, Go, Discard, Renewed, Ping, Save …
    chunk_to_wire                       ->  chunk_from_wire            LogPiece
    ack_from_wire                       <-  ack_to_wire                LogDurable

Reading raises only BadMessage. Writing raises BadMessage for what cannot be encoded (a frame over the limit, a number
out of range); texts for people are truncated and cleaned to fit, other values never are. Nothing is decided here:
signatures, tokens, fences and epochs are verified elsewhere.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from holdfast.model import AttemptId, job_of
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Hello,
    Leaving,
    Offers,
    Ping,
    Pong,
    Refusal,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.wire import checks, limits, parts, versions
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage, UnknownMessage

_COUNT = limits.COUNT_MAX
_MS = limits.MILLISECONDS_MAX
_LABEL = limits.LABEL_CHARS_MAX
_WORDS = limits.WORDS_CHARS_MAX
_UNSAYABLE = (ValueError, TypeError, OverflowError)
"""What protobuf raises for a value that its field cannot hold."""

_STREAMS: dict[int, str] = {pb.LOG_STDOUT: "stdout", pb.LOG_STDERR: "stderr"}
_STREAM_NUMBERS: dict[str, Any] = {stream: value for value, stream in _STREAMS.items()}


class Challenge(msgspec.Struct, frozen=True):
    nonce: bytes
    protocol_min: int
    protocol_max: int
    version: str

    @property
    def protocol(self) -> int:
        """The version to answer in; 0: none in common, and the orchestrator will say which side is too old."""
        return versions.choose(self.protocol_min, self.protocol_max)


class SignedHello(msgspec.Struct, frozen=True):
    hello: Hello
    protocol: int
    signature: bytes
    """Not verified yet: see identity.proof."""


class Admitted(msgspec.Struct, frozen=True):
    welcome: Welcome
    bulk_key: str
    data_url: str = ""
    """URL of the files endpoint; without a host: the host that was dialled. Empty: there is none."""

    def __repr__(self) -> str:
        return f"Admitted({self.welcome!r})"  # the key must not reach a log


class LogPiece(msgspec.Struct, frozen=True):
    """Bytes of an attempt's log at an offset. Without data it asks how far the log is durable."""

    attempt: AttemptId
    fence: int
    stream: str
    """`stdout` or `stderr`."""
    offset: int
    data: bytes


class LogDurable(msgspec.Struct, frozen=True):
    attempt: AttemptId
    stream: str
    durable_offset: int
    refused: str = ""
    """Not empty: why no more logs of this attempt are accepted."""


# --- handshake ---


def challenge_to_frame(nonce: bytes, version: str) -> pb.OrchestratorFrame:
    return pb.OrchestratorFrame(
        challenge=pb.Challenge(
            nonce=nonce,
            protocol_min=versions.PROTOCOL_MIN,
            protocol_max=versions.PROTOCOL_MAX,
            version=checks.clean(version, _LABEL),
        )
    )


def challenge_from_frame(frame: pb.OrchestratorFrame) -> Challenge | Refusal:
    """The first frame of an orchestrator: a challenge, or a refusal (it is stopping, or is not the leader)."""
    kind = _kind(frame)
    if kind == "refusal":
        return _refusal_from(frame.refusal)
    _expect(kind, "challenge")
    said = frame.challenge
    return Challenge(
        checks.exactly(said.nonce, limits.NONCE_BYTES, "nonce"),
        said.protocol_min,
        said.protocol_max,
        checks.label(said.version, "version"),
    )


def hello_to_frame(hello: Hello, protocol: int, signature: bytes, token_secret: bytes = b"") -> pb.NodeFrame:
    """`protocol`: Challenge.protocol. `token_secret`: of the token that the hello names."""

    def build(detail: int) -> pb.NodeFrame:
        said = pb.SignedHello(
            protocol=protocol,
            protocol_min=versions.PROTOCOL_MIN,
            protocol_max=versions.PROTOCOL_MAX,
            node=hello.node,
            version=checks.clean(hello.version, _LABEL),
            public_key=bytes.fromhex(hello.public_key),
            signature=signature,
            instance=hello.instance,
            token_id=hello.token_id,
            token_secret=token_secret,
            hardware=parts.hardware_to(hello.hardware),
            offered=parts.resources_to(hello.offered),
            isolation=hello.isolation,
            name=checks.clean(hello.name, _LABEL),
            site=checks.clean(hello.site, _LABEL),
            held=[parts.held_to(held, detail) for held in hello.held],
            epoch_seen=hello.epoch_seen,
            features=hello.features,
        )
        return pb.NodeFrame(hello=said)

    return _fitting(build)


def hello_from_frame(frame: pb.NodeFrame) -> SignedHello:
    """The first frame of a node. BadMessage `version` names the side that must be upgraded."""
    _expect(_kind(frame), "hello")
    said = frame.hello
    common = versions.choose(said.protocol_min, said.protocol_max)
    # Checked first: in another version the rest may have another meaning.
    if common == 0:
        shown = checks.clean(said.version, _LABEL)
        raise BadMessage("version", versions.refusal(said.protocol_min, said.protocol_max, shown).says)
    if said.protocol != common:
        raise BadMessage("version", f"the node chose protocol {said.protocol}, but both sides speak {common}")
    token_id = checks.token(said.token_id)
    if bool(token_id) != bool(said.token_secret) or len(said.token_secret) > 64:
        raise BadMessage("bad_bytes", "a token is an id and a secret of at most 64 bytes: both or neither")
    hello = Hello(
        node=checks.node(said.node),
        instance=checks.word(said.instance, "instance"),
        public_key=checks.exactly(said.public_key, 32, "public_key").hex(),
        version=checks.label(said.version, "version"),
        hardware=parts.hardware_from(said.hardware),
        offered=parts.resources_from(said.offered, "offered"),
        isolation=checks.word(said.isolation, "isolation"),
        token_id=token_id,
        token_sha256=sha256(said.token_secret).hexdigest() if token_id else "",
        name=checks.label(said.name, "name"),
        site=checks.label(said.site, "site"),
        features=_features(said),
        held=parts.all_held_from(said.held),
        epoch_seen=checks.number(said.epoch_seen, _COUNT, "epoch_seen"),
    )
    return SignedHello(hello, common, checks.exactly(said.signature, 64, "signature"))


def _features(said: pb.SignedHello) -> tuple[str, ...]:
    checks.count(len(said.features), limits.FEATURES_MAX, "features")
    return parts.features_from(said.features)


def welcome_to_frame(welcome: Welcome, bulk_key: str, data_url: str = "") -> pb.OrchestratorFrame:
    try:
        said = pb.Welcome(
            node=welcome.node,
            epoch=welcome.epoch,
            heartbeat_ms=welcome.heartbeat_ms,
            keepalive_ms=welcome.keepalive_ms,
            lease_ms=welcome.lease_ms,
            orphan_ms_max=welcome.orphan_ms_max,
            stop_grace_ms=welcome.stop_grace_ms,
            bulk_key=bulk_key,
            data_url=data_url,
        )
    except _UNSAYABLE as cause:
        raise _unsayable("Welcome", cause) from None
    return pb.OrchestratorFrame(welcome=said)


def answer_from_frame(frame: pb.OrchestratorFrame) -> Admitted | Refusal:
    """The orchestrator's answer to a hello."""
    kind = _kind(frame)
    if kind == "refusal":
        return _refusal_from(frame.refusal)
    _expect(kind, "welcome")
    said = frame.welcome
    welcome = Welcome(
        node=checks.node(said.node),
        epoch=checks.number(said.epoch, _COUNT, "epoch"),
        # A node that reported every millisecond, or never, would harm the network or itself.
        heartbeat_ms=checks.number(said.heartbeat_ms, _MS, "heartbeat_ms", least=10),
        keepalive_ms=checks.number(said.keepalive_ms, _MS, "keepalive_ms", least=10),
        lease_ms=checks.number(said.lease_ms, _MS, "lease_ms"),
        orphan_ms_max=checks.number(said.orphan_ms_max, _MS, "orphan_ms_max"),
        stop_grace_ms=checks.number(said.stop_grace_ms, _MS, "stop_grace_ms"),
    )
    return Admitted(welcome, checks.key(said.bulk_key, "bulk_key"), checks.data_url(said.data_url))


# --- node to orchestrator ---


def node_to_frame(message: Report | Pong | Leaving | Offers) -> pb.NodeFrame:
    match message:
        case Report():
            return _fitting(lambda detail: pb.NodeFrame(report=_report_to(message, detail)))
        case Pong():
            return _fitting(lambda _: pb.NodeFrame(pong=pb.Pong(nonce=message.nonce)))
        case Leaving():
            said = message
            return _fitting(lambda _: pb.NodeFrame(leaving=pb.Leaving(grace_ms=said.grace_ms, done=said.done)))
        case Offers():
            offers = pb.Offers(
                offered=parts.resources_to(message.offered),
                paused=message.paused,
                grace_ms=message.grace_ms,
                why=message.why,
            )
            return _fitting(lambda _: pb.NodeFrame(offers=offers))


def node_from_frame(frame: pb.NodeFrame) -> Report | Pong | Leaving | Offers:
    """Any frame of a node after its hello."""
    kind = _kind(frame)
    if kind == "report":
        return _report_from(frame.report)
    if kind == "pong":
        return Pong(checks.number(frame.pong.nonce, _COUNT, "nonce"))
    if kind == "offers":
        offers = frame.offers
        grace = checks.number(offers.grace_ms, _MS, "grace_ms")
        why = checks.words(offers.why, "why")
        return Offers(parts.resources_from(offers.offered, "offered"), offers.paused, grace, why)
    _expect(kind, "leaving")
    return Leaving(checks.number(frame.leaving.grace_ms, _MS, "grace_ms"), frame.leaving.done)


def _report_to(report: Report, detail: int) -> pb.Report:
    load = report.load
    return pb.Report(
        seq=report.seq,
        full=report.full,
        held=[parts.held_to(held, detail) for held in report.held],
        load=None if load is None else parts.load_to(load),
        renew=report.renew,
    )


def _report_from(said: pb.Report) -> Report:
    renew = said.renew
    checks.count(len(renew), limits.HELD_MAX, "renew")
    leases = [checks.attempt(item, "renew") for item in renew]
    checks.distinct(leases, "renew")
    return Report(
        checks.number(said.seq, _COUNT, "seq"),
        said.full,
        parts.all_held_from(said.held),
        parts.load_from(said.load) if said.HasField("load") else None,
        tuple(leases),
    )


# --- orchestrator to node ---


def orchestrator_to_frame(
    message: Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained,
) -> pb.OrchestratorFrame:
    return _fitting(lambda _: _command_to(message))


def _command_to(message: Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained) -> pb.OrchestratorFrame:
    match message:
        case Start():
            return pb.OrchestratorFrame(
                start=pb.Start(
                    epoch=message.epoch,
                    attempt=message.attempt,
                    fence=message.fence,
                    job=message.job,
                    spec=parts.spec_to(message.spec),
                    time_limit_ms=message.time_limit_ms,
                    lease_ms=message.lease_ms,
                    checkpoint=bytes.fromhex(message.checkpoint),
                )
            )
        case Go():
            return pb.OrchestratorFrame(
                go=pb.Go(epoch=message.epoch, attempt=message.attempt, fence=message.fence, seq=message.seq)
            )
        case Discard():
            return pb.OrchestratorFrame(
                discard=pb.Discard(
                    epoch=message.epoch,
                    attempt=message.attempt,
                    fence=message.fence,
                    reason=checks.clean(message.reason, _WORDS, "\n\t"),
                    accepted=message.accepted,
                )
            )
        case Renewed():
            return pb.OrchestratorFrame(
                renewed=pb.Renewed(epoch=message.epoch, seq=message.seq, attempts=message.attempts)
            )
        case Save():
            said = pb.Save(epoch=message.epoch, attempt=message.attempt, fence=message.fence)
            return pb.OrchestratorFrame(save=said)
        case Ping():
            return pb.OrchestratorFrame(ping=pb.Ping(epoch=message.epoch, nonce=message.nonce))
        case Drained():
            return pb.OrchestratorFrame(drained=pb.Drained(epoch=message.epoch, on=message.on))
        case Refusal():
            says = checks.clean(message.says, _WORDS, "\n\t")
            return pb.OrchestratorFrame(refusal=pb.Refusal(code=message.code, says=says, final=message.final))


def orchestrator_from_frame(
    frame: pb.OrchestratorFrame,
) -> Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained:
    """Any frame of an orchestrator after its welcome."""
    kind = _kind(frame)
    if kind == "start":
        return _start_from(frame.start)
    if kind == "go":
        said = frame.go
        seq = checks.number(said.seq, _COUNT, "seq")
        return Go(_epoch(said.epoch), checks.attempt(said.attempt), _fence(said.fence), seq)
    if kind == "save":
        said = frame.save
        return Save(_epoch(said.epoch), checks.attempt(said.attempt), _fence(said.fence))
    if kind == "discard":
        said = frame.discard
        reason = checks.words(said.reason, "reason")
        return Discard(_epoch(said.epoch), checks.attempt(said.attempt), _fence(said.fence), reason, said.accepted)
    if kind == "renewed":
        said = frame.renewed
        checks.count(len(said.attempts), limits.HELD_MAX, "attempts")
        leases = tuple(checks.attempt(item, "attempts") for item in said.attempts)
        return Renewed(_epoch(said.epoch), checks.number(said.seq, _COUNT, "seq"), leases)
    if kind == "ping":
        return Ping(_epoch(frame.ping.epoch), checks.number(frame.ping.nonce, _COUNT, "nonce"))
    if kind == "drained":
        return Drained(_epoch(frame.drained.epoch), frame.drained.on)
    _expect(kind, "refusal")
    return _refusal_from(frame.refusal)


def _start_from(said: pb.Start) -> Start:
    attempt = checks.attempt(said.attempt)
    job = checks.job(said.job)
    if job_of(attempt) != job:
        raise BadMessage("contradiction", f"{attempt} does not belong to {job}, according to its id")
    return Start(
        _epoch(said.epoch),
        attempt,
        _fence(said.fence),
        job,
        parts.spec_from(said.spec),
        checks.number(said.time_limit_ms, _MS, "time_limit_ms", least=1),
        checks.number(said.lease_ms, _MS, "lease_ms"),
        checks.digest(said.checkpoint, "checkpoint"),
    )


def _refusal_from(said: pb.Refusal) -> Refusal:
    return Refusal(checks.word(said.code, "code"), checks.words(said.says, "says"), said.final)


# --- logs ---


def chunk_to_wire(piece: LogPiece) -> pb.LogChunk:
    if len(piece.data) > limits.LOG_DATA_BYTES_MAX:
        raise BadMessage(
            "too_large", f"a log chunk of {len(piece.data)} bytes; {limits.LOG_DATA_BYTES_MAX} are allowed"
        )
    try:
        return pb.LogChunk(
            attempt=piece.attempt,
            fence=piece.fence,
            stream=_STREAM_NUMBERS[piece.stream],
            offset=piece.offset,
            data=piece.data,
        )
    except _UNSAYABLE as cause:
        raise _unsayable("LogChunk", cause) from None


def chunk_from_wire(said: pb.LogChunk) -> LogPiece:
    data = said.data
    if len(data) > limits.LOG_DATA_BYTES_MAX:
        raise BadMessage("too_large", f"a log chunk of {len(data)} bytes; {limits.LOG_DATA_BYTES_MAX} are allowed")
    return LogPiece(
        checks.attempt(said.attempt),
        _fence(said.fence),
        _stream_from(said.stream),
        checks.number(said.offset, limits.BYTES_MAX, "offset"),
        data,
    )


def ack_to_wire(ack: LogDurable) -> pb.LogAck:
    try:
        return pb.LogAck(
            attempt=ack.attempt,
            stream=_STREAM_NUMBERS[ack.stream],
            durable_offset=ack.durable_offset,
            refused=checks.clean(ack.refused, _WORDS, "\n\t"),
        )
    except _UNSAYABLE as cause:
        raise _unsayable("LogAck", cause) from None


def ack_from_wire(said: pb.LogAck) -> LogDurable:
    return LogDurable(
        checks.attempt(said.attempt),
        _stream_from(said.stream),
        checks.number(said.durable_offset, limits.BYTES_MAX, "durable_offset"),
        checks.words(said.refused, "refused"),
    )


def _stream_from(value: int) -> str:
    stream = _STREAMS.get(value)
    if stream is None:
        raise BadMessage("bad_enum", f"log stream {value} is not known to this version")
    return stream


# --- shared by all of the above ---


def _epoch(value: int) -> int:
    return checks.number(value, _COUNT, "epoch")


def _fence(value: int) -> int:
    return checks.number(value, _COUNT, "fence", least=1)


def _kind(frame: pb.NodeFrame | pb.OrchestratorFrame) -> str:
    """The kind of a frame, after its size was checked."""
    size = frame.ByteSize()
    if size > limits.CONTROL_BYTES_MAX:
        raise BadMessage("too_large", f"a control frame of {size} bytes; {limits.CONTROL_BYTES_MAX} are allowed")
    kind = frame.WhichOneof("said")
    if kind is None and size:
        raise UnknownMessage("unexpected", "the peer sent a message that this release does not know")
    return kind or "nothing"


def _expect(kind: str, expected: str) -> None:
    if kind != expected:
        raise BadMessage("unexpected", f"the peer sent {kind} instead of {expected}")


_Frame = TypeVar("_Frame", pb.NodeFrame, pb.OrchestratorFrame)


def _fitting(build: Callable[[int], _Frame]) -> _Frame:
    """The frame with details truncated as far as needed: short texts are better than a node that cannot report."""
    try:
        frame = build(_WORDS)
        for detail in (100, 0):
            if frame.ByteSize() <= limits.CONTROL_BYTES_MAX:
                break
            frame = build(detail)
    except _UNSAYABLE as cause:
        raise _unsayable("the message", cause) from None
    checks.size(frame.ByteSize(), limits.CONTROL_BYTES_MAX, "the message")
    return frame


def _unsayable(what: str, cause: Exception) -> BadMessage:
    return BadMessage("bad_number", f"{what} holds a value its field cannot carry: {cause}")
