"""What recorded releases say on the wire still means the same, and what this code says they can read.

What is recorded is 0.1.0, the present release: the baseline for the next release. Until there is one, this holds the
code to what was recorded of it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import holdfast
from holdfast.wire import convert
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage, UnknownMessage

pytestmark = pytest.mark.spec("N1", "N12")

WIRE = Path(__file__).parent / "wire"
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(WIRE.glob("*.json"))}
MESSAGES = [(version, name) for version, kept in RECORDED.items() for name in kept["messages"]]
UNKNOWN = b"\xfa\x07\x03new"
"""Field 127, which no message has: what a later release may add."""

READERS: dict[str, Any] = {
    "challenge": lambda raw: convert.challenge_from_frame(pb.OrchestratorFrame.FromString(raw)),
    "hello": lambda raw: convert.hello_from_frame(pb.NodeFrame.FromString(raw)).hello,
    "welcome": lambda raw: convert.answer_from_frame(pb.OrchestratorFrame.FromString(raw)).welcome,
    "logpiece": lambda raw: convert.chunk_from_wire(pb.LogChunk.FromString(raw)),
    "logdurable": lambda raw: convert.ack_from_wire(pb.LogAck.FromString(raw)),
    **dict.fromkeys(
        ("report", "pong", "leaving", "offers"),
        lambda raw: convert.node_from_frame(pb.NodeFrame.FromString(raw)),
    ),
}


def heard(name: str, raw: bytes) -> Any:
    read = READERS.get(name, lambda raw: convert.orchestrator_from_frame(pb.OrchestratorFrame.FromString(raw)))
    return msgspec.to_builtins(read(raw))


def differences(before: Any, now: Any, place: str) -> Iterator[str]:
    """Where something that was said then is not heard now. What is new may be more."""
    if isinstance(before, dict):
        for key, value in before.items():
            if key not in now:
                yield f"{place}.{key} is lost"
            else:
                yield from differences(value, now[key], f"{place}.{key}")
    elif isinstance(before, list) and len(before) == len(now):
        for number, (value, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(value, other, f"{place}[{number}]")
    elif before != now:
        yield f"{place} was {before!r} and is {now!r}"


@pytest.mark.parametrize(("version", "name"), MESSAGES)
def test_a_message_of_an_earlier_release_means_what_it_meant(version: str, name: str) -> None:
    kept = RECORDED[version]["messages"][name]
    assert list(differences(kept["means"], heard(name, bytes.fromhex(kept["bytes"])), name)) == []


@pytest.mark.parametrize(("version", "name"), MESSAGES)
def test_what_a_later_release_adds_to_a_message_is_passed_over(version: str, name: str) -> None:
    raw = bytes.fromhex(RECORDED[version]["messages"][name]["bytes"])
    assert heard(name, raw + UNKNOWN) == heard(name, raw)


@pytest.mark.parametrize("frame", [pb.NodeFrame, pb.OrchestratorFrame])
def test_a_message_of_an_unknown_kind_is_told_from_one_that_says_nothing(frame: Any) -> None:
    read = convert.node_from_frame if frame is pb.NodeFrame else convert.orchestrator_from_frame
    with pytest.raises(UnknownMessage):
        read(frame.FromString(UNKNOWN))
    with pytest.raises(BadMessage) as nothing:
        read(frame())
    assert not isinstance(nothing.value, UnknownMessage)


@pytest.mark.parametrize("version", RECORDED)
def test_no_field_of_an_earlier_protocol_was_removed_or_changed(version: str) -> None:
    # Given the protocol of a recorded release
    then = descriptor_pb2.FileDescriptorProto.FromString(bytes.fromhex(RECORDED[version]["protocol"]))
    now = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(now)

    # Then every message, field and number of it is in the present one, and of the same kind
    assert list(lost(then, now)) == []

    # And what the present release says can be read by code that knows only the earlier protocol
    pool = descriptor_pool.DescriptorPool()
    pool.Add(then)
    older = message_factory.GetMessageClass(pool.FindMessageTypeByName("holdfast.v1.OrchestratorFrame"))
    said = older.FromString(convert.challenge_to_frame(b"n" * 32, holdfast.__version__).SerializeToString())
    assert said.challenge.version == holdfast.__version__


def lost(then: descriptor_pb2.FileDescriptorProto, now: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    messages = {message.name: message for message in now.message_type}
    for message in then.message_type:
        fields = {field.name: field for field in messages[message.name].field}
        for field in message.field:
            present = fields.get(field.name)
            if present is None or (present.number, present.type, present.label, present.type_name) != (
                field.number,
                field.type,
                field.label,
                field.type_name,
            ):
                yield f"{message.name}.{field.name}"
    enums = {enum.name: {value.name: value.number for value in enum.value} for enum in now.enum_type}
    for enum in then.enum_type:
        yield from (f"{enum.name}.{v.name}" for v in enum.value if enums[enum.name].get(v.name) != v.number)
