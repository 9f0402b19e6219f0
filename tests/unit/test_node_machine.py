"""What a node finds out about its machine, and the folder it lives in."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from holdfast.errors import Misconfigured
from holdfast.model import Gpu
from holdfast.node import hardware, linux
from holdfast.node.attempt import attempt_folders
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.events import AttemptInputs
from holdfast.node.core.order import Order
from holdfast.node.home import NodeHome


def prepared(folder: Path, order: Order) -> None:
    attempt_folders.make(folder)
    attempt_folders.write_order(folder, order, AttemptInputs())


@pytest.mark.spec("N1")
def test_hardware_is_detected_and_less_than_all_of_it_is_offered(tmp_path: Path) -> None:
    found = hardware.detect(tmp_path)
    assert found.total.cpu_milli >= 1000 and found.total.memory_mib > 0 and found.total.disk_mib > 0
    assert found.arch and found.os == "linux" and found.hostname
    offered = hardware.offered_by_default(found, tmp_path)
    assert offered.fits_in(found.total)
    assert offered.memory_mib < found.total.memory_mib


@pytest.mark.spec("N1")
def test_gpus_are_read_from_the_driver_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ModuleType("pynvml")
    closed: list[bool] = []
    contents = {
        "NVMLError": RuntimeError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: closed.append(True),
        "nvmlSystemGetDriverVersion": lambda: b"555.1",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: f"Card {handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * 1024**3),
    }
    for name, value in contents.items():
        setattr(driver, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert hardware.detect_gpus() == (Gpu("Card 0", 81_920, "555.1"), Gpu("Card 1", 81_920, "555.1"))
    assert closed == [True]

    def broken() -> int:
        raise RuntimeError("the driver is being reloaded")

    monkeypatch.setattr(driver, "nvmlDeviceGetCount", broken)
    assert hardware.detect_gpus() == ()
    monkeypatch.setattr(driver, "nvmlInit", broken)
    assert hardware.detect_gpus() == ()


@pytest.mark.spec("H1", "N2")
def test_the_load_tells_of_a_disk_that_is_full_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = hardware.measure_load(tmp_path)
    assert load.sick == "" and load.memory_used_mib > 0 and load.disk_free_mib > 0

    def full(path: str) -> SimpleNamespace:
        return SimpleNamespace(free=1024 * 1024, total=10**12)

    monkeypatch.setattr(hardware.psutil, "disk_usage", full)
    assert "1 MiB left" in hardware.measure_load(tmp_path).sick
    (tmp_path / "probe").mkdir()
    assert "cannot be written" in hardware.measure_load(tmp_path).sick


@pytest.mark.spec("N1", "N9")
def test_a_home_has_one_agent_keeps_its_uuid_and_remembers_the_epoch(tmp_path: Path) -> None:
    home = NodeHome(tmp_path / "node")
    made = home.uuid("")
    home.remember_epoch(41)
    with pytest.raises(Misconfigured) as busy:
        NodeHome(tmp_path / "node")
    assert busy.value.code == "home_busy"
    home.close()

    again = NodeHome(tmp_path / "node")
    assert again.uuid("") == made
    assert again.epoch_seen() == 41
    configured = "123e4567-e89b-12d3-a456-426614174000"
    assert again.uuid(configured) == configured and again.uuid("") == configured
    again.close()


@pytest.mark.spec("N1")
def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured) as unusable:
        NodeHome(tmp_path / "file" / "node")
    assert unusable.value.code == "home_unusable"
    home = NodeHome(tmp_path / "node")
    (tmp_path / "node" / "uuid").write_text("nonsense")
    with pytest.raises(Misconfigured, match="UUID"):
        home.uuid("")
    home.close()


ORDER = Order("att_aaaaaaaaaaaaaa.1", 7, "job_aaaaaaaaaaaaaa", ("true",), 1_000, 1_000, 100, 1_000)


@pytest.mark.spec("N9")
def test_a_scan_tells_attempts_from_litter(tmp_path: Path) -> None:
    prepared(tmp_path / ORDER.attempt, ORDER)
    (tmp_path / "half-made").mkdir()
    prepared(tmp_path / "renamed", ORDER)
    found, litter = attempt_folders.scan(tmp_path)
    assert [left.order for left in found] == [ORDER] and found[0].status is None
    assert [folder.name for folder in litter] == ["half-made", "renamed"]

    status = {"phase": "ended", "outcome": {"kind": "exit", "exit_code": 0}, "stdout_bytes": 3, "go": True}
    (tmp_path / ORDER.attempt / "status.json").write_text(json.dumps(status))
    ((left,), _) = attempt_folders.scan(tmp_path)
    assert left.status is not None
    assert left.status.phase is Phase.ENDED and left.status.stdout_bytes == 3 and left.status.go


@pytest.mark.spec("N9")
@pytest.mark.parametrize(
    "raw", [[], {}, {"phase": "elsewhere"}, {"phase": "running", "stdout_bytes": -1}, {"phase": "ended", "outcome": 3}]
)
def test_a_status_that_makes_no_sense_is_no_status(raw: object) -> None:
    with pytest.raises(ValueError):
        attempt_folders.status_from(raw)


@pytest.mark.spec("N9")
def test_a_process_of_another_boot_is_not_taken_for_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a shim that the machine took down with it, when a process has its pid and its start time after the reboot,
    then it is not the shim, and is left alone."""
    me = os.getpid()
    identity = {"pid": me, "start_ticks": linux.start_ticks(me)}

    def alive(**more: str) -> bool:
        (tmp_path / "shim.json").write_text(json.dumps(identity | more))
        found = attempt_folders.read_identity(tmp_path)
        assert found is not None
        return linux.is_alive(*found)

    assert linux.boot_id() and alive(boot=linux.boot_id())
    assert not alive(boot="another")
    assert me not in attempt_folders.processes_of(tmp_path)
    # and one that does not say its boot is known by its current folder
    assert not alive() and not alive(boot="")
    monkeypatch.chdir(tmp_path)
    assert alive() and alive(boot="") and not alive(boot="another")


@pytest.mark.spec("J5")
def test_an_attempt_whose_place_is_taken_gets_no_shim(tmp_path: Path) -> None:
    prepared(tmp_path / ORDER.attempt, ORDER)
    assert attempt_folders.claim(tmp_path / ORDER.attempt)
    assert not attempt_folders.claim(tmp_path / ORDER.attempt)
    assert (
        attempt_folders.is_claimed(tmp_path / ORDER.attempt)
        and attempt_folders.read_identity(tmp_path / ORDER.attempt) is None
    )


@pytest.mark.spec("N9")
def test_everything_of_an_attempt_can_be_removed_whatever_its_rights(tmp_path: Path) -> None:
    folder = tmp_path / ORDER.attempt
    prepared(folder, ORDER)
    inner = folder / "work" / "deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (inner / "link").symlink_to(outside)
    inner.chmod(0)
    attempt_folders.remove(folder)
    assert not folder.exists() and outside.read_text() == "mine"
    attempt_folders.remove(folder)


@pytest.mark.spec("N13")
@pytest.mark.parametrize(
    ("free", "offered", "held", "most", "room"),
    [(100, 90, 0, 50, 5), (100, 90, 7, 50, 12), (100, 90, 60, 50, 50), (100, 100, 0, 50, 0), (100, 300, 3, 50, 3)],
)
def test_a_cache_takes_nothing_that_jobs_were_promised(
    free: int, offered: int, held: int, most: int, room: int
) -> None:
    assert hardware.cache_mib(free, offered, held, most) == room
