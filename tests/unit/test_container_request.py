"""What an engine is asked for: every limit, and nothing that would be a way out."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.core.order import Order
from holdfast.node.runtimes import container_request
from holdfast.node.runtimes.container_request import request, room, variables

UID = 1_900_000_001


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "work").mkdir()
    return str(tmp_path)


def order(**changes: Any) -> Order:
    return Order("att_1.1", 1, "job_1", ("python", "train.py"), 1, 1, 0, 0, runtime="container", image="i", **changes)


def asked(folder: str, image: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return request(order(**changes), folder, UID, image or {})


@pytest.mark.spec("J2", "N4")
def test_a_gpu_is_asked_for_by_its_own_id_and_no_other_comes_along(folder: str) -> None:
    """Checked here only: no machine of the tests has a GPU."""
    (gpus,) = asked(folder, gpu_ids=("GPU-a", "GPU-b"))["HostConfig"]["DeviceRequests"]
    assert gpus["DeviceIDs"] == ["GPU-a", "GPU-b"]
    assert gpus["Driver"] == "nvidia"
    assert "Count" not in gpus
    assert "gpu" in gpus["Capabilities"][0]
    assert "DeviceRequests" not in asked(folder)["HostConfig"]


@pytest.mark.spec("N4", "J2")
def test_nothing_is_given_that_would_be_a_way_out(folder: str) -> None:
    host = asked(folder, network=True)["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"] and "CapAdd" not in host
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not {"Privileged", "PidMode", "UsernsMode", "UTSMode", "Devices", "Binds"} & set(host)
    assert asked(folder)["User"] == f"{UID}:{UID}"


@pytest.mark.spec("N4")
def test_only_the_attempts_own_folders_can_be_written_to(folder: str) -> None:
    mounts = asked(folder, checkpoint=True, venv="/somewhere/venv")["HostConfig"]["Mounts"]
    assert {m["Target"] for m in mounts if not m["ReadOnly"]} == {"/work", "/checkpoint"}
    assert ("/somewhere/venv", "/venv") in [(m["Source"], m["Target"]) for m in mounts]


@pytest.mark.spec("N4")
def test_memory_has_no_swap_and_what_is_not_asked_for_is_bounded_all_the_same(folder: str) -> None:
    host = asked(folder, resources={"memory_mib": 64})["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 64 << 20
    assert host["ShmSize"] == 64 << 20
    free = asked(folder)["HostConfig"]
    assert "Memory" not in free
    assert free["ShmSize"] == container_request.MEMORY_MIB << 20
    assert free["PidsLimit"] == container_request.PIDS_MAX + 1


@pytest.mark.spec("N4")
@pytest.mark.parametrize("place", ["/data", "data", "/data/", "/a/../data"])
def test_a_volume_of_the_image_becomes_memory(place: str) -> None:
    places = room(order(), {"Config": {"Volumes": {place: {}}}})
    assert set(places) == {"/tmp", "/data"}
    assert all("size=" in options for options in places.values())


@pytest.mark.spec("N4")
@pytest.mark.parametrize("place", ["/", "/work", "/checkpoint/", "/.holdfast", "/venv"])
def test_a_volume_of_the_image_takes_no_place_of_ours(place: str) -> None:
    assert set(room(order(), {"Config": {"Volumes": {place: {}}}})) == {"/tmp"}


@pytest.mark.spec("J2")
def test_the_images_path_is_kept_unless_the_job_has_its_own() -> None:
    image = {"Config": {"Env": ["PATH=/opt/conda/bin", "LANG=de_DE.UTF-8"]}}
    env, _ = variables(order(), image)
    assert not [word for word in env if word.startswith(("PATH=", "LANG="))]
    env, _ = variables(order(env={"PATH": "/mine"}), image)
    assert "PATH=/mine" in env
    env, _ = variables(order(venv="/somewhere"), image)
    assert "PATH=/venv/bin:/opt/conda/bin" in env


@pytest.mark.spec("J2", "N4")
def test_what_is_meant_for_the_jobs_loader_reaches_the_job_only() -> None:
    image = {"Config": {"Env": ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "LD_PRELOAD=/lib/other.so"]}}
    env, late = variables(order(env={"LD_PRELOAD": "/lib/mine.so"}), image)
    assert {"LD_PRELOAD=", "LD_LIBRARY_PATH="} <= set(env)
    assert sorted(late) == ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "LD_PRELOAD=/lib/mine.so"]


@pytest.mark.spec("J2")
def test_the_jobs_words_are_passed_on_as_they_are(folder: str) -> None:
    words = ("sh", "-c", "echo \"$1\" '$HOME' `id`", "--", "a b", "")
    whole = request(Order("att_1.1", 1, "job_1", words, 1, 1, 0, 0, runtime="container"), folder, UID, json.loads("{}"))
    assert whole["Cmd"] == ["0", *words]


@pytest.mark.spec("J2")
def test_the_shell_that_is_lent_exists_with_all_it_needs() -> None:
    parts = dict(container_request.shell())
    assert "sh" in parts
    assert all(Path(path).is_file() for path in parts.values())
    assert container_request.lent_shell()[-1] == "/.holdfast/sh"


@pytest.mark.spec("N9")
def test_a_containers_name_follows_from_its_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    name = container_request.name_of(str(tmp_path / "real"))
    assert name == container_request.name_of(str(tmp_path / "link"))
    assert name != container_request.name_of(str(tmp_path / "other"))
