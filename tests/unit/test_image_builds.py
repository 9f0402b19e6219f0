"""Limits of a build, and what an owner is told if an engine cannot provide an image."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiodocker
import pytest

from holdfast.model import FailureCode
from holdfast.node.images import image_builds
from holdfast.node.images.image_builds import BuildLimits
from holdfast.node.images.image_cache import Images, NoImage
from holdfast.node.images.image_names import REASONS


@pytest.mark.spec("N13", "J6")
def test_a_build_has_the_lower_of_the_limits_of_its_node_and_of_its_job() -> None:
    limits = BuildLimits(memory_mib=100, cpu_milli=200, pids=300, disk_mib=400)
    assert limits.within({}) == limits
    assert limits.within({"memory_mib": 0, "pids": 0, "gpus": 3}) == limits
    assert limits.within({"memory_mib": 99, "cpu_milli": 201, "pids": 1, "disk_mib": 400}) == BuildLimits(
        memory_mib=99, cpu_milli=200, pids=1, disk_mib=400
    )


SYSTEMD = {"CgroupDriver": "systemd"}


def systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> Path:
    """A systemd that writes down what it is told, and answers with this status."""
    program = folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/told\nexit {status}\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return folder / "told"


@pytest.mark.spec("N13", "A12")
def test_systemd_is_told_how_many_processes_a_build_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = systemctl(tmp_path, monkeypatch, 0)
    ways = image_builds._Ways({}, SYSTEMD)
    slice = ways.words()["cgroupparent"]
    ways.hold(77)
    asyncio.run(ways.end_steps())
    assert slice.endswith(".slice")
    assert told.read_text().splitlines() == [
        f"set-property --runtime {slice} TasksMax=77", f"stop {slice}", f"revert {slice}"
    ]  # fmt: skip


@pytest.mark.spec("N13", "A12")
def test_a_node_that_cannot_limit_the_processes_of_a_build_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl(tmp_path, monkeypatch, 1)
    for path in (str(tmp_path), str(tmp_path / "none")):  # it refuses; there is none
        monkeypatch.setenv("PATH", path)
        with pytest.raises(NoImage) as wrong:
            image_builds._Ways({}, SYSTEMD).hold(77)
        assert wrong.value.failure.code is FailureCode.REFUSED
        assert "cannot limit the processes" in wrong.value.failure.detail


class Engine:
    """Has no image, and says of every registry what it met there."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.images = self

    async def inspect(self, name: str) -> dict[str, Any]:
        raise aiodocker.DockerError(404, "no such image")

    async def pull(self, name: str, *, stream: bool) -> AsyncIterator[dict[str, Any]]:
        raise aiodocker.DockerError(500, self.says)
        yield {}

    async def close(self) -> None:
        """There is no connection."""


@pytest.mark.spec("N5", "N13")
@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("dial tcp 10.0.0.1:5000: connect: connection refused", FailureCode.NETWORK),
        ("Get 10.0.0.1:22: malformed HTTP response SSH-2.0", FailureCode.RUNTIME_FAULT),
        ("manifest unknown at 10.0.0.1:5000", FailureCode.IMAGE),
    ],
)
def test_the_words_of_an_engine_about_a_registry_stay_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: FailureCode
) -> None:
    monkeypatch.setattr(Images, "_docker", lambda _: Engine(says))

    async def pulled() -> None:
        images = Images("", tmp_path, private=True)
        try:
            await images.ensure("10.0.0.1:5000/some/image", "att_1")
        finally:
            await images.close()

    with pytest.raises(NoImage) as caught:
        asyncio.run(pulled())
    assert (caught.value.failure.code, caught.value.failure.detail) == (code, REASONS[code])
