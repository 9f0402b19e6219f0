"""`holdfast doctor` on machines and networks that are really broken: it names what is wrong and what to type."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from error_world import Liar, certificate, tls_door

from holdfast.testing.processes import LocalNetwork

pytestmark = [pytest.mark.spec("N8", "J7"), pytest.mark.xdist_group("cli-doctor")]

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/engine.sock"}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("doctor")) as network:
        network.start_orchestrator()
        yield network


def examined(network: LocalNetwork, *words: str, code: int, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Findings by name, with the whole report under an empty one."""
    done = network.cli("doctor", "--json", *words, env={**NO_ENGINE, **(env or {})}, check=code)
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    for found in report["findings"]:
        assert found["state"] == "ok" or found["do"], f"what to do about it is not said: {found}"
    return {"": report, **{found["name"]: found for found in report["findings"]}}


def states(found: dict[str, Any], *names: str) -> list[str]:
    return [found[name]["state"] for name in names]


def test_a_network_that_is_well_is_told_so_step_by_step(network: LocalNetwork) -> None:
    done = network.cli("doctor", env=NO_ENGINE, check=0)

    told = done.stdout
    assert "FAIL" not in told and "0 failures" in told
    for step in ("Python", "home folder", "sandbox", "connection", "answer", "token", "clock", "rebuild equals memory"):
        assert f" {step} " in told, told
    assert "\x1b" not in told


def test_without_any_network_the_machine_is_looked_at_all_the_same(network: LocalNetwork, tmp_path: Path) -> None:
    found = examined(network, code=0, env={"HOLDFAST_HOME": str(tmp_path)})

    assert found[""]["url"] == ""
    assert states(found, "Python", "home folder", "place") == ["ok", "ok", "warn"]
    assert "holdfast up" in found["place"]["do"]


def test_a_machine_without_bubblewrap_cannot_be_a_node(network: LocalNetwork, tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOLDFAST_HOME": str(tmp_path)}

    assert states(examined(network, code=0, env=env), "sandbox") == ["warn"], "it may still send work"
    done = network.cli("doctor", "--node", env={**NO_ENGINE, **env}, check=1)
    assert "FAIL  sandbox" in done.stdout and "install bubblewrap" in done.stdout


def test_a_home_without_room_is_found(network: LocalNetwork, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=500", "none", str(tmp_path)], check=True)
    try:
        found = examined(network, code=1, env={"HOLDFAST_HOME": str(tmp_path)})
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert states(found, "home folder") == ["fail"]
    assert "8.0 MiB free" in found["home folder"]["says"] and f"df -h {tmp_path}" in found["home folder"]["do"]


def test_a_node_whose_folder_is_full_is_found(network: LocalNetwork, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)], check=True)
    try:
        found = examined(network, "--node", code=1, env={"HOLDFAST_NODE_HOME": str(tmp_path / "node")})
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)

    assert states(found, "home folder", "node's folder") == ["ok", "fail"]
    assert "HOLDFAST_NODE_HOME" in found["node's folder"]["do"]


def test_an_engine_that_was_stopped_is_found(network: LocalNetwork, tmp_path: Path) -> None:
    # given a socket behind which nobody listens any more
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
    found = examined(network, code=0, env={"DOCKER_HOST": f"unix://{path}"})

    assert states(found, "container engine") == ["warn"]
    assert "no answer" in found["container engine"]["says"]
    assert "systemctl restart docker" in found["container engine"]["do"]


@pytest.mark.parametrize(
    ("url", "step", "words"),
    [
        ("http://nowhere.example:7420", "name", "DNS"),
        ("http://127.0.0.1:{closed}", "connection", "holdfast up"),
        ("https://127.0.0.1:{plain}", "certificate", "plain HTTP"),
    ],
)
def test_the_step_at_which_the_way_ends_is_named_and_the_rest_is_not_tried(
    network: LocalNetwork, url: str, step: str, words: str
) -> None:
    plain = network.client().url.rpartition(":")[2]
    with socket.socket() as nobody:  # bound, so that no neighbour takes the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        found = examined(network, "--url", url.format(closed=nobody.getsockname()[1], plain=plain), code=1)

    assert states(found, step) == ["fail"] and words in found[step]["do"]
    assert "token" not in found


def test_a_stranger_with_another_certificate_is_found_and_gets_no_token(network: LocalNetwork, tmp_path: Path) -> None:
    pinned = certificate(tmp_path / "ours") / "certificate.pem"
    with tls_door(tmp_path) as port:
        url = f"https://127.0.0.1:{port}"
        found = examined(network, "--url", url, code=1, env={"HOLDFAST_CERTIFICATE": str(pinned)})

    assert states(found, "connection", "certificate") == ["ok", "fail"]
    assert "send nothing" in found["certificate"]["do"]
    assert "answer" not in found and "token" not in found


def test_a_wrong_token_is_found(network: LocalNetwork, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not this one's")
    found = examined(network, "--url", network.client().url, "--token-file", str(tmp_path / "token"), code=1)

    assert states(found, "answer", "token") == ["ok", "fail"]
    assert "admin.token" in found["token"]["do"]


def test_an_orchestrator_that_is_frozen_is_found(network: LocalNetwork) -> None:
    orchestrator = network.orchestrator
    assert orchestrator is not None
    orchestrator.freeze()
    try:
        found = examined(network, code=1)
    finally:
        orchestrator.thaw()

    assert states(found, "connection", "answer") == ["ok", "fail"], "the kernel still takes connections for it"
    assert "frozen" in found["answer"]["do"]


def test_nodes_that_went_are_found(network: LocalNetwork) -> None:
    node = network.start_node("old")
    node.kill_tree()
    network.wait_for(lambda: network.client().nodes.get("old").state in ("suspect", "lost"), "it to be missed")
    found = examined(network, code=0)

    assert states(found, "nodes", "versions") == ["warn", "ok"]
    assert "old" in found["nodes"]["says"] and "holdfast nodes" in found["nodes"]["do"]


def test_a_clock_that_is_wrong_is_found_and_so_is_what_only_looks_like_an_orchestrator(network: LocalNetwork) -> None:
    liar = Liar(date="Mon, 01 Jan 2001 00:00:00 GMT")
    try:
        found = examined(network, "--url", liar.answers(200, b"{}"), code=1, env={"HOLDFAST_ADMIN_TOKEN": "any"})
    finally:
        liar.close()

    assert states(found, "answer", "clock", "itself") == ["ok", "warn", "fail"]
    assert "behind this one" in found["clock"]["says"] and "set-ntp" in found["clock"]["do"]
