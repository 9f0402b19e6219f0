"""Checks one untrusted manifest in a process of its own: `python -m holdfast.blobs.check_manifest`.

Standard input holds a line with the limits as JSON, then the manifest. Standard output gets one JSON object, the
`ManifestVerdict`. The process limits its own memory and processor time before it reads the manifest: a manifest can be
made so that checking it takes a hundred times its size. It writes no file and opens no connection.
"""

import os
import resource
import sys

import msgspec

from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.manifest import Manifest, ManifestLimits, Outline

NICE = 10
MEMORY_BYTES_MIN = 512 << 20
MEMORY_PER_BYTE = 32
"""A manifest of many small entries takes about twenty times its size."""
CPU_S_MIN = 10
CPU_S_PER_MIB = 2
"""About twenty times as long as a manifest of many small entries takes."""


class ManifestVerdict(msgspec.Struct, frozen=True):
    refused: str = ""
    too_large: bool = False
    files: int = 0
    total_bytes: int = 0


class ManifestTask(msgspec.Struct, frozen=True):
    limits: ManifestLimits
    size: int
    """Of the manifest that follows."""


def confine(size: int) -> None:
    os.nice(NICE)
    memory = MEMORY_BYTES_MIN + MEMORY_PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    cpu_s = CPU_S_MIN + CPU_S_PER_MIB * (size >> 20)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def verdict_on(data: bytes, limits: ManifestLimits) -> ManifestVerdict:
    try:
        outline: Outline = Manifest.from_bytes(data, limits).outline
    except MemoryError:
        return ManifestVerdict("a manifest takes too much memory to check", too_large=True)
    except ManifestRefused as wrong:
        return ManifestVerdict(wrong.says, too_large=isinstance(wrong, ManifestTooLarge))
    return ManifestVerdict(files=outline.files, total_bytes=outline.total_bytes)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=ManifestTask)
    confine(task.size)
    data = sys.stdin.buffer.read(task.size)
    sys.stdout.buffer.write(msgspec.json.encode(verdict_on(data, task.limits)))


if __name__ == "__main__":
    main()
