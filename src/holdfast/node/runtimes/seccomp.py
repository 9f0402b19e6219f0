"""The system call filter of the sandbox, as strict as Docker's default: a seccomp program, made without a compiler.

A body may make the calls of `syscalls.ALLOWED`. Every other call fails with EPERM, or with ENOSYS where a C library
then uses another call (`clone3`, whose flags a filter cannot read, and calls newer than this list). Calls of another
architecture have other numbers: 32-bit programs are ended by SIGSYS, and calls of x32 fail with ENOSYS.

The program is classic BPF: an array of instructions (code, jump if true, jump if false, constant), which the kernel
applies to the number and arguments of each call.
"""

import ctypes
import errno
import os
import re
import struct
from collections.abc import Mapping
from functools import cache

import msgspec

from holdfast.node.runtimes import syscalls
from holdfast.node.runtimes.hindrances import NONE, Hindrance

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
_ERRNO = 0x0005_0000
EPERM, ENOSYS = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS

_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NAMESPACES = 0x7E02_0000
"""The flags of `clone` that make a namespace."""
_PERSONALITIES = (0, 0x0008, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)
"""Linux, with 32-bit addresses or a false `uname`, and the question which one is set."""
_AF_ALG, _AF_VSOCK = 38, 40
_TRACING_SINCE = (4, 8)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


class Architecture(msgspec.Struct, frozen=True):
    audit: int
    """Its constant in the kernel."""
    column: int
    """Its number in the tables of `syscalls`."""


ARCHITECTURES = {"x86_64": Architecture(0xC000_003E, 0), "aarch64": Architecture(0xC000_00B7, 1)}
"""By the name that `uname` gives."""


def _returns(verdict: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, verdict)]


def _argument(index: int) -> Instruction:
    """Load the lower half: the kernel ignores the upper one of these arguments."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index)


def _unless(test: int, constants: tuple[int, ...]) -> list[Instruction]:
    """Allow the call unless its first argument passes the test with one of these."""
    count = len(constants)
    tests = [(test, count - place, 0, constant) for place, constant in enumerate(constants)]
    return [_argument(0), *tests, *_returns(ALLOW), *_returns(EPERM)]


def _only(constants: tuple[int, ...]) -> list[Instruction]:
    """Allow the call only if its first argument is one of these."""
    count = len(constants)
    tests = [(_IF_EQUAL, count - place, 0, constant) for place, constant in enumerate(constants)]
    return [_argument(0), *tests, *_returns(EPERM), *_returns(ALLOW)]


_RULES: Mapping[str, list[Instruction]] = {
    "clone": _unless(_IF_ANY_BIT, (_NAMESPACES,)),
    "clone3": _returns(ENOSYS),
    "personality": _only(_PERSONALITIES),
    "socket": _unless(_IF_EQUAL, (_AF_ALG, _AF_VSOCK)),
    "socketpair": _unless(_IF_EQUAL, (_AF_ALG, _AF_VSOCK)),
}


def numbers(table: str, column: int) -> dict[str, int]:
    """The calls of a table of `syscalls` that this architecture has."""
    rows = (word.partition("=") for word in table.split())
    found = {name: text.split("/")[column] for name, _, text in rows}
    return {name: int(number) for name, number in found.items() if number != "-"}


def instructions(architecture: Architecture, kernel: tuple[int, int]) -> list[Instruction]:
    """The filter for this architecture, and a kernel of this version."""
    column = architecture.column
    may = numbers(syscalls.ALLOWED, column)
    if kernel >= _TRACING_SINCE:
        may |= numbers(syscalls.TRACING, column)
    leaves = dict.fromkeys(may.values(), _returns(ALLOW))
    leaves |= {number: _RULES[name] for name, number in numbers(syscalls.CHECKED, column).items()}
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture.audit),
        *_returns(KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *_tree(_ranges(leaves)),
    ]


def _ranges(leaves: Mapping[int, list[Instruction]]) -> list[tuple[int, list[Instruction]]]:
    """The first number of each range of calls that are treated alike, with their treatment. Numbers of x32 have bit 30
    set, so they are above the newest."""
    found: list[tuple[int, list[Instruction]]] = []
    for number in range(syscalls.NEWEST + 1):
        treatment = leaves.get(number, _returns(EPERM))
        if not found or found[-1][1] != treatment:
            found.append((number, treatment))
    return [*found, (syscalls.NEWEST + 1, _returns(ENOSYS))]


def _tree(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """A binary search: about seven comparisons for any call, where a list would take hundreds. A jump is at most 255
    instructions long; the whole program has fewer than 200."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle]), _tree(ranges[middle:])
    return [(_IF_AT_LEAST, len(below), 0, ranges[middle][0]), *below, *above]


def encoded(program: list[Instruction]) -> bytes:
    """As the kernel and bwrap read it."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _kernel_filters() -> bool:
    """Asked without a program: EFAULT from a kernel that has filters, EINVAL from one that has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def find_hindrance() -> Hindrance:
    """Why this machine cannot filter system calls."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        return Hindrance(f"the system calls of {machine} are not known")
    return NONE if _kernel_filters() else Hindrance("the kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)")


@cache
def hindrance() -> Hindrance:
    """`find_hindrance`, once."""
    return find_hindrance()


@cache
def program() -> bytes:
    """The filter for this machine. Empty if it cannot have one."""
    if hindrance():
        return b""
    about = os.uname()
    major, minor = re.findall(r"\d+", about.release)[:2]
    return encoded(instructions(ARCHITECTURES[about.machine], (int(major), int(minor))))
