"""A machine promises its disk once: to an attempt with everything that is kept for it, or to nobody."""

import os
from pathlib import Path

import pytest

from holdfast.node.attempt.disk_room import (
    BESIDE_BYTES,
    FREE_BYTES_MIN,
    MIB,
    DiskRoom,
    footprint_bytes,
    reserve_output,
    taken_bytes,
)
from holdfast.node.core.order import Order
from holdfast.node.health import DISK_FREE_MIB_MIN
from holdfast.node.runtimes import scratch

pytestmark = pytest.mark.spec("N4", "N5", "A12")


class Machine:
    """Attempts on a disk of a stated size: what they have taken is not free any more."""

    def __init__(self, folder: Path, free: int) -> None:
        self.folder = folder
        self.free = free
        self.room = DiskRoom(folder, lambda _: self.free)

    def take(self, attempt: str) -> int:
        (self.folder / attempt).mkdir(exist_ok=True)
        return self.room.take(order(attempt))


def order(attempt: str, disk_mib: int = 10) -> Order:
    return Order(attempt, 1, "job", ("run",), 1, 1, 0, 5 * MIB, resources={"disk_mib": disk_mib})


WHOLE = footprint_bytes(order("a"))


def test_an_attempt_takes_its_disk_its_output_and_a_little() -> None:
    assert footprint_bytes(order("a")) == scratch.room_for(10) + 2 * 5 * MIB + BESIDE_BYTES
    assert FREE_BYTES_MIN > DISK_FREE_MIB_MIN * MIB, "what attempts leave free does not make the machine sick"


def test_an_attempt_leaves_what_the_machine_needs_itself(tmp_path: Path) -> None:
    assert Machine(tmp_path, WHOLE + FREE_BYTES_MIN).take("a") == 0
    assert Machine(tmp_path, WHOLE + FREE_BYTES_MIN - 1).take("a") == 1


def test_what_was_promised_is_not_promised_again_until_the_attempt_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2 * WHOLE + FREE_BYTES_MIN - 1)
    assert machine.take("a") == 0
    assert machine.take("b") == 1
    assert machine.take("b") == 1, "a refused attempt holds nothing"
    (tmp_path / "a").rmdir()
    assert machine.take("b") == 0


def test_what_an_attempt_has_taken_is_not_counted_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2 * WHOLE + FREE_BYTES_MIN)
    assert machine.take("a") == 0
    with (tmp_path / "a" / "work").open("wb") as file:
        file.write(b"x" * (2 * MIB))
        file.flush()
        os.fsync(file.fileno())
    machine.free -= 2 * MIB
    assert machine.take("b") == 0
    assert machine.take("c") > 0


def test_attempts_of_an_earlier_agent_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2 * WHOLE + FREE_BYTES_MIN - 1)
    (tmp_path / "a").mkdir()
    machine.room.adopt(order("a"))
    assert machine.take("b") == 1


def test_output_has_its_space_before_anything_is_printed(tmp_path: Path) -> None:
    image = tmp_path / scratch.IMAGE
    image.touch()
    assert taken_bytes(tmp_path) == 0
    reserve_output(tmp_path, 3 * MIB)
    assert taken_bytes(tmp_path) >= 6 * MIB
    assert [(tmp_path / f"{name}.log").stat().st_size for name in ("stdout", "stderr")] == [0, 0]
