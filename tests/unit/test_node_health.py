"""When a machine is sick: what lasts and what cannot be mended by waiting; never one odd reading."""

import errno
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node import hardware
from holdfast.node.health import (
    COOL_BELOW_C,
    DISK_FREE_MIB_MIN,
    ERRORS_MS,
    HOT_MS,
    INODES_FREE_MIN,
    DiskReading,
    GpuReading,
    HealthWatch,
    Readings,
    Sensor,
)

pytestmark = pytest.mark.spec("H1")

GOOD = DiskReading(free_mib=50_000, total_mib=100_000, inodes_free=10**6)
LIMIT = 90
STEP_MS = 5_000


def with_gpus(*gpus: GpuReading, heat: int | None = None) -> Readings:
    return Readings(GOOD, gpus, () if heat is None else (Sensor("GPU 0", heat, LIMIT, gpu=True),))


@pytest.mark.parametrize(
    ("disk", "says"),
    [
        (GOOD, ""),
        (DiskReading(free_mib=DISK_FREE_MIB_MIN, total_mib=100, inodes_free=None), ""),
        (DiskReading(free_mib=DISK_FREE_MIB_MIN - 1, total_mib=100), "63 MiB left"),
        (DiskReading(free_mib=50_000, total_mib=100_000, inodes_free=INODES_FREE_MIN - 1), "room for 255 more files"),
        (DiskReading("Input/output error", free_mib=50_000, total_mib=100_000), "cannot be written: Input/output"),
        (DiskReading(read_only=True, free_mib=50_000, total_mib=100_000), "became read-only"),
    ],
)
def test_a_disk_that_cannot_keep_what_jobs_make_is_sick(disk: DiskReading, says: str) -> None:
    watch = HealthWatch()
    found = watch.judge(Readings(disk), 0).sick
    assert says in found if says else found == ""
    # And when it is well again, so is the machine
    assert watch.judge(Readings(GOOD), 1).sick == ""


def test_a_disk_that_is_nearly_full_is_a_warning() -> None:
    found = HealthWatch().judge(Readings(DiskReading(free_mib=4_999, total_mib=100_000)), 0)
    assert found.sick == "" and found.warnings == ("the disk is nearly full: 4999 of 100000 MiB are free",)


@given(st.lists(st.integers(20, 120), min_size=1, max_size=80))
def test_heat_is_an_illness_only_when_it_lasts_and_ends_only_when_it_is_cool(heat: list[int]) -> None:
    """Against the rule written as a sentence over the whole history."""
    watch = HealthWatch(1)
    for now, _ in enumerate(heat):
        sick = bool(watch.judge(with_gpus(GpuReading("GPU 0"), heat=heat[now]), now * STEP_MS).sick)
        steps = HOT_MS // STEP_MS
        cooled = max((i for i in range(now + 1) if heat[i] < LIMIT - COOL_BELOW_C), default=-1)
        overheated = any(
            all(heat[j] >= LIMIT for j in range(i - steps, i + 1))
            for i in range(max(steps, cooled + 1 + steps), now + 1)
        )
        assert sick == overheated


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=30))
def test_only_errors_that_happen_while_we_watch_count_and_for_an_hour(counts: list[int | None]) -> None:
    watch, last, erred = HealthWatch(1), None, None
    for number, count in enumerate(counts):
        now = number * ERRORS_MS // 3
        sick = watch.judge(with_gpus(GpuReading("GPU 0", uncorrected=count)), now).sick
        if count is not None:
            erred = now if last is not None and count > last else erred
            last = count
        assert ("could not be corrected" in sick) == (erred is not None and now - erred < ERRORS_MS)


def test_a_gpu_that_is_gone_or_does_not_answer_is_an_illness_where_gpus_are_offered() -> None:
    both = (GpuReading("GPU 0"), GpuReading("GPU 1"))
    assert HealthWatch(2).judge(with_gpus(*both), 0).sick == ""
    assert "1 of its 2 GPUs are gone" in HealthWatch(2).judge(with_gpus(both[0]), 0).sick
    assert "no longer answers" in HealthWatch(2).judge(Readings(GOOD, None), 0).sick
    lost = GpuReading("GPU 1", trouble="GPU is lost")
    assert "GPU 1 no longer answers: GPU is lost" in HealthWatch(2).judge(with_gpus(both[0], lost), 0).sick
    spent = GpuReading("GPU 0", rows_spent=True)
    assert "no good rows left" in HealthWatch(1).judge(with_gpus(spent), 0).sick
    waits = HealthWatch(1).judge(with_gpus(GpuReading("GPU 0", rows_wait=True), heat=LIMIT - 1), 0)
    assert waits.sick == "" and len(waits.warnings) == 2


def test_gpus_that_are_not_offered_are_nobodys_business() -> None:
    watch = HealthWatch(0)
    for now in range(0, 3 * HOT_MS, STEP_MS):
        assert watch.judge(with_gpus(GpuReading("GPU 0", trouble="lost"), heat=LIMIT + 9), now).sick == ""
    assert watch.judge(Readings(GOOD, None), 0).sick == ""


# --- reading ---


class NvmlError(Exception):
    pass


def driver(**answers: Any) -> ModuleType:
    """A driver of one card, which answers as the real one does; what is not given, this card does not know."""

    def unknown(*_: object) -> None:
        raise NvmlError("Not Supported")

    module = ModuleType("pynvml")
    contents: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetTemperature": lambda handle, kind: 71,
        "nvmlDeviceGetTemperatureThreshold": unknown,
        "nvmlDeviceGetTotalEccErrors": unknown,
        "nvmlDeviceGetRemappedRows": unknown,
    }
    for name, value in {**contents, **answers}.items():
        setattr(module, name, value)
    return module


def test_a_card_is_read_as_far_as_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    assert hardware.read_gpus() == ((GpuReading("GPU 0"),), [Sensor("GPU 0", 71, hardware.GPU_LIMIT_C, gpu=True)])
    knows: dict[str, Any] = {
        "nvmlDeviceGetTemperatureThreshold": lambda handle, kind: 87,
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 3,
        "nvmlDeviceGetRemappedRows": lambda handle: (1, 2, 1, 0),
    }
    monkeypatch.setitem(sys.modules, "pynvml", driver(**knows))
    expected = GpuReading("GPU 0", uncorrected=3, rows_wait=True)
    assert hardware.read_gpus() == ((expected,), [Sensor("GPU 0", 71, 87, gpu=True)])


def test_a_card_that_fell_off_the_bus_is_told_apart_from_a_driver_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise NvmlError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlDeviceGetTemperature=lost))
    assert hardware.read_gpus() == ((GpuReading("GPU 0", trouble="GPU is lost"),), [])
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlInit=lost))
    assert hardware.read_gpus() == (None, [])
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlDeviceGetCount=lost))
    assert hardware.read_gpus() == (None, [])


def test_sensors_without_a_believable_limit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chip(label: str, current: float, critical: float | None) -> SimpleNamespace:
        return SimpleNamespace(label=label, current=current, critical=critical)

    found = {"coretemp": [chip("Package", 55.4, 100.0), chip("odd", 55.0, None), chip("zero", 40.0, 0.5)]}
    monkeypatch.setattr(hardware.psutil, "sensors_temperatures", lambda: found, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert hardware.read_health(tmp_path).sensors == (Sensor("coretemp Package", 55, 100),)


# --- reading the disk ---


def failing(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    sync, left = os.fsync, times

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.spec("H1", "H3")
@pytest.mark.parametrize(
    ("number", "times", "sick"),
    [
        (errno.EIO, 1, False),
        (errno.EIO, 2, True),
        (errno.EROFS, 1, True),
        (errno.ENOSPC, 1, True),
        *((number, 1_000, False) for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)),
    ],
)
def test_an_error_that_passes_or_is_not_of_the_disk_makes_no_machine_sick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, times: int, sick: bool
) -> None:
    failing(monkeypatch, number, times)
    reading = hardware.read_disk(tmp_path)
    assert reading.trouble == (os.strerror(number) if sick else "")
    assert reading.read_only == (number == errno.EROFS)


@pytest.mark.spec("H1")
def test_a_disk_that_returns_other_bytes_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"something else")
    assert hardware.read_disk(tmp_path).trouble == "it returns other bytes than were written"
    monkeypatch.undo()
    assert hardware.read_disk(tmp_path).trouble == ""
