"""The filter of system calls decides by number, arguments and architecture. Its program is run by an interpreter here;
tests/integration/test_runtime_syscalls.py runs it in the kernel."""

import os
import struct

import pytest

from holdfast.node.runtimes import seccomp, syscalls
from holdfast.node.runtimes.seccomp import ALLOW, ARCHITECTURES, ENOSYS, EPERM, KILL, Instruction, numbers

MACHINES = sorted(ARCHITECTURES)
MODERN = (6, 1)
NAMESPACES = {
    "mount": 0x0002_0000, "cgroup": 0x0200_0000, "uts": 0x0400_0000, "ipc": 0x0800_0000, "user": 0x1000_0000,
    "pid": 0x2000_0000, "net": 0x4000_0000,
}  # fmt: skip
UPPER = 0xDEAD_BEEF << 32
"""The kernel ignores this half of an argument that is an int."""


def verdict(program: list[Instruction], audit: int, number: int, first: int = 0) -> int:
    """What the program says of a call: classic BPF, as far as the filter uses it."""
    data = struct.pack("=IIQ6Q", number, audit, 0, first, 0, 0, 0, 0, 0)
    held, at = 0, 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("=I", data, constant)
            case 0x15:
                at += yes if held == constant else no
            case 0x35:
                at += yes if held >= constant else no
            case 0x45:
                at += yes if held & constant else no
            case 0x06:
                return constant
            case _:
                raise AssertionError(f"the filter uses the instruction {code:#x}")


class Machine:
    def __init__(self, name: str, kernel: tuple[int, int] = MODERN) -> None:
        self.architecture = ARCHITECTURES[name]
        self.program = seccomp.instructions(self.architecture, kernel)

    def says(self, number: int, first: int = 0) -> int:
        return verdict(self.program, self.architecture.audit, number, first)

    def of(self, name: str, first: int = 0) -> int:
        return self.says(numbers(syscalls.CHECKED, self.architecture.column)[name], first)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


@pytest.mark.spec("N4")
def test_every_call_that_is_not_listed_is_refused(machine: Machine) -> None:
    column = machine.architecture.column
    listed = {*numbers(syscalls.ALLOWED, column).values(), *numbers(syscalls.TRACING, column).values()}
    checked = set(numbers(syscalls.CHECKED, column).values())
    for number in range(syscalls.NEWEST + 1):
        if number not in checked:
            assert machine.says(number) == (ALLOW if number in listed else EPERM), number


@pytest.mark.spec("N4")
def test_a_call_newer_than_the_list_does_not_exist(machine: Machine) -> None:
    assert machine.says(syscalls.NEWEST) == EPERM
    for number in (syscalls.NEWEST + 1, syscalls.NEWEST + 500, 0x3FFF_FFFF):
        assert machine.says(number) == ENOSYS


@pytest.mark.spec("N4")
def test_calls_of_x32_do_not_exist(machine: Machine) -> None:
    for number in (0x4000_0000, 0x4000_0000 | 39, 0x4000_0000 | 520, 0xFFFF_FFFF):
        assert machine.says(number) == ENOSYS


@pytest.mark.spec("N4")
@pytest.mark.parametrize("audit", [0x4000_0003, 0x4000_0028, 0xC000_00F3, 0])
def test_a_program_for_another_architecture_is_ended(machine: Machine, audit: int) -> None:
    for number in (0, 39, 1_000):
        assert verdict(machine.program, audit, number) == KILL


@pytest.mark.spec("N4")
def test_each_architecture_has_its_own_numbers() -> None:
    intel, arm = (Machine(name) for name in ("x86_64", "aarch64"))
    assert verdict(intel.program, arm.architecture.audit, 0) == KILL
    # 165 is mount on one of them and getrusage on the other
    assert (intel.says(165), arm.says(165)) == (EPERM, ALLOW)
    # a call that only one of them has
    assert numbers("modify_ldt=154/- clone=56/220", 1) == {"clone": 220}


@pytest.mark.spec("N4")
@pytest.mark.parametrize("kind", NAMESPACES)
def test_clone_makes_no_namespace(machine: Machine, kind: str) -> None:
    assert machine.of("clone", NAMESPACES[kind]) == EPERM
    assert machine.of("clone", NAMESPACES[kind] | 0x0001_0F00 | UPPER) == EPERM


@pytest.mark.spec("N4")
def test_clone_makes_processes_and_threads(machine: Machine) -> None:
    for flags in (17, 0x003D_0F00, 0x0100_4111, 17 | UPPER):
        assert machine.of("clone", flags) == ALLOW
    assert machine.of("clone3") == ENOSYS


@pytest.mark.spec("N4")
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_sockets_of_virtual_machines_and_of_ciphers_are_refused(machine: Machine, call: str) -> None:
    for family in range(64):
        expected = EPERM if family in (38, 40) else ALLOW
        assert machine.of(call, family) == expected, family
        assert machine.of(call, family | UPPER) == expected, family


@pytest.mark.spec("N4")
def test_a_personality_that_weakens_a_process_is_refused(machine: Machine) -> None:
    for value in (0, 8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF, UPPER | 8):
        assert machine.of("personality", value) == ALLOW
    for value in (1, 7, 9, 0x0004_0000, 0x0040_0000, 0x2_0001, UPPER | 1):
        assert machine.of("personality", value) == EPERM


@pytest.mark.spec("N4")
@pytest.mark.parametrize(("kernel", "expected"), [((4, 7), EPERM), ((3, 19), EPERM), ((4, 8), ALLOW), ((5, 0), ALLOW)])
@pytest.mark.parametrize("name", MACHINES)
def test_tracing_is_refused_where_it_leads_around_the_filter(name: str, kernel: tuple[int, int], expected: int) -> None:
    machine = Machine(name, kernel)
    for number in numbers(syscalls.TRACING, machine.architecture.column).values():
        assert machine.says(number) == expected


@pytest.mark.spec("N4")
def test_a_program_is_encoded_as_the_kernel_reads_it(machine: Machine) -> None:
    encoded = seccomp.encoded(machine.program)
    assert [struct.unpack_from("<HBBI", encoded, at) for at in range(0, len(encoded), 8)] == machine.program
    assert len(machine.program) < 256


@pytest.mark.spec("N8")
def test_a_machine_whose_calls_are_not_known_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    about = os.uname()
    unknown = os.uname_result((about.sysname, about.nodename, about.release, about.version, "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: unknown)
    assert seccomp.find_hindrance() == "the system calls of riscv64 are not known"


@pytest.mark.spec("N8")
def test_a_kernel_without_filters_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "_kernel_filters", lambda: False)
    assert "CONFIG_SECCOMP_FILTER" in seccomp.find_hindrance()
