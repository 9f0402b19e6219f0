"""Generates the Python code for wire/node.proto: `python scripts/proto.py [FOLDER]` (default: src).

The generated code is committed, so that installing Holdfast needs no compiler; a test compares it with the output of
this script.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent.parent / "src"
PROTO = "holdfast/wire/node.proto"


def generate(folder: Path) -> list[Path]:
    """Generate below `folder` (in the role of `src`) and return the files written."""
    target = folder / "holdfast" / "wire"
    target.mkdir(parents=True, exist_ok=True)
    # The include path is `src`, not the package's folder: only then do the modules import each other as
    # `holdfast.wire.…` and not as top-level names.
    outputs = [f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    status = protoc.main(["protoc", f"-I{SOURCES}", *outputs, PROTO])
    if status != 0:
        raise SystemExit(f"protoc could not compile {PROTO} (status {status}); its own message is above")
    return sorted(target.glob("node_pb2*"))


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES):
        print(path)
