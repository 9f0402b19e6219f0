"""The committed protobuf code is what its source gives."""

import importlib.util
from pathlib import Path

import pytest

from holdfast.wire import node_pb2, node_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("proto", ROOT / "scripts" / "proto.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spec("N1")
def test_the_committed_code_is_what_the_proto_gives(tmp_path: Path) -> None:
    written = generator().generate(tmp_path)
    assert {path.name for path in written} == {"node_pb2.py", "node_pb2.pyi", "node_pb2_grpc.py"}
    for path in written:
        committed = ROOT / "src" / "holdfast" / "wire" / path.name
        assert committed.read_bytes() == path.read_bytes(), f"{path.name} is out of date: run `make proto`"


@pytest.mark.spec("N1")
def test_the_generated_modules_import_each_other_inside_the_package() -> None:
    assert node_pb2.DESCRIPTOR.package == "holdfast.v1"
    assert node_pb2_grpc.NodeLinkStub.__module__ == "holdfast.wire.node_pb2_grpc"
    assert "from holdfast.wire import node_pb2" in Path(node_pb2_grpc.__file__).read_text()
