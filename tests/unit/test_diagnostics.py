"""What the doctor says of versions and of limits, and what it tells people to type."""

import json
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.diagnostics import machine, reach
from holdfast.diagnostics.findings import CheckResult
from holdfast.node.runtimes import engine_api
from holdfast.node.runtimes.hindrances import NONE, NOT_ROOT, Hindrance, Lack, not_installed
from holdfast.wire.http import NodeView

pytestmark = pytest.mark.spec("N8")

NODE = NodeView(
    id="node_1", name="ant", state="ready", cause="", draining=False, connected=True, isolation="bubblewrap",
    version=holdfast.__version__, arch="x86_64", cpu_model="", hostname="ant", site="", total={}, free={}, gpus=[],
    attempts=[], load={}, joined_ms=0, state_since_ms=0,
)  # fmt: skip


def test_one_release_everywhere_is_well() -> None:
    found = reach._versions(holdfast.__version__, [NODE])
    assert (found.state, found.do) == ("ok", "")


@pytest.mark.parametrize(("orchestrator", "node"), [("0.0.9", ""), ("", "0.0.9")])
def test_another_release_is_named_with_who_has_it(orchestrator: str, node: str) -> None:
    found = reach._versions(orchestrator, [msgspec.structs.replace(NODE, version=node)])
    assert found.state == "warn" and "0.0.9" in found.says and ("ant" in found.says) == bool(node)
    # And what to do names a wheel: a package of this name on an index may be anyone's
    assert "install.sh --wheel" in found.do and "pip install holdfast" not in found.do


def test_a_network_without_nodes_cannot_run_anything() -> None:
    found = reach._nodes([])
    assert found.state == "warn" and "holdfast token new" in found.do


def test_who_takes_no_work_is_not_counted_as_one_that_does() -> None:
    gone = msgspec.structs.replace(NODE, state="gone", connected=False)
    drained = msgspec.structs.replace(NODE, draining=True)
    assert reach._nodes([gone]).says == reach._nodes([]).says
    some = reach._nodes([NODE, drained, gone])
    assert (some.state, some.says) == ("ok", "1 of 2 nodes can be given work; 1 drained, paused or not connected")
    none = reach._nodes([drained, msgspec.structs.replace(NODE, connected=False)])
    assert none.state == "warn" and none.says.startswith("0 of 2 nodes") and "--off" in none.do


@pytest.mark.parametrize(
    ("limit", "why", "do"),
    [
        ("network", not_installed("slirp4netns", "slirp4netns"), "apt-get install slirp4netns"),
        ("disk", NOT_ROOT, "as root"),
        ("memory", NONE, "mount -t cgroup2"),
        ("disk", Hindrance("there is no /dev/loop-control", Lack.LOOP), "modprobe loop"),
        ("network", Hindrance("there is no /dev/net/tun", Lack.TUN), "modprobe tun"),
        ("user", Hindrance("something else"), "docs/isolation.md"),
    ],
)
def test_each_hindrance_of_a_node_has_its_cure(limit: str, why: Hindrance, do: str) -> None:
    assert do in machine._limit_cure(limit, why)


def examined(*words: str) -> dict[str, CheckResult]:
    done = CliRunner().invoke(app, ["doctor", "--json", *words])
    assert done.exit_code in (0, 1), done.exception
    return {found["name"]: msgspec.convert(found, CheckResult) for found in json.loads(done.stdout)["findings"]}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own, and no network."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    for name in ("HOLDFAST_URL", "HOLDFAST_NODE_HOME", "HOLDFAST_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("version", ["x", "1.x", "", "9" * 5000])
def test_an_engine_that_says_nonsense_is_a_finding(alone: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    # given a socket at which somebody names a version that is none
    path = str(alone / "engine.sock")
    monkeypatch.setattr(engine_api, "find_engine", lambda: path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answers() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(1 << 16)
                line.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"ApiVersion": version}).encode())

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        # when the machine is looked at
        found = {one.name: one for one in machine.as_node(alone, is_node=False)}
        thread.join(10)
    # then that is told with what to do, and what comes after it is looked at
    assert found["container engine"].state == "warn" and found["container engine"].do
    assert "GPUs" in found


def test_a_kernel_without_user_namespaces_has_its_cure(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "USER_NAMESPACES", alone / "missing")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert "CONFIG_USER_NS" in machine._sandbox_cure()


def test_a_home_behind_a_closed_door_is_a_finding(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a home whose folder this user may not enter
    exists = Path.exists

    def closed(path: Path) -> bool:
        if path.is_relative_to(alone):
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    # when the machine is looked at
    found = {one.name: one for one in machine.as_client(alone)}
    # then
    assert found["home folder"].state == "fail" and "Permission denied" in found["home folder"].says
    assert "HOLDFAST_HOME" in found["home folder"].do and found["open files"].state != "fail"


@pytest.mark.parametrize("wrong", [OSError(5, "Input/output error", "/proc/x"), ValueError("no number: 'x'")])
def test_what_cannot_be_looked_at_is_a_finding_and_the_rest_is_looked_at(
    alone: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    # given a machine on which one of the checks goes wrong
    def breaks(*_: object) -> CheckResult:
        raise wrong

    monkeypatch.setattr(machine, "_gpus", breaks)
    # when it is examined as a node
    found = examined("--node")
    # then the doctor says so and goes on
    assert found["GPUs"].state == "fail" and str(wrong) in found["GPUs"].says and found["GPUs"].do
    assert {"sandbox", "container engine", "agent", "place"} <= found.keys()


WELL = {"name": "attic", "orchestrator": "lab:7421", "connected": True, "health": {"sick": "", "warnings": []}}


@pytest.mark.parametrize(
    ("more", "state", "says", "do"),
    [
        ({}, "ok", "attic is connected to lab:7421", ""),
        ({"health": {"sick": "the disk has 3 MiB left"}}, "fail", "gets no work: the disk has 3 MiB left", "Fix that"),
        ({"drained": True, "paused_by_operator": True}, "warn", "the network's operator drained it", "--off"),
        ({"paused": True, "paused_by_operator": True}, "warn", "it is paused", "holdfast node resume"),
        ({"health": {"warnings": ["gpu0 is hot"]}}, "warn", "gpu0 is hot", "holdfast node status"),
        ({"paused": True, "hours": {"says": "outside its hours, back at 19:00"}}, "ok", "back at 19:00", ""),
        ({"connected": False}, "fail", "has no connection to lab:7421", "nc -vz lab 7421"),
        ({"connected": False, "trouble": "refused"}, "fail", "has no connection to lab:7421: refused", "nc -vz lab"),
    ],
)
def test_a_node_that_runs_but_gets_no_work_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, object], state: str, says: str, do: str
) -> None:
    monkeypatch.setattr("holdfast.node.operator.operator_socket.ask", lambda home, words: {**WELL, **more})
    found = machine._agent(tmp_path)
    assert found.state == state and says in found.says and do in found.do
    assert bool(found.do) == (state != "ok")


@pytest.mark.spec("N6")
def test_a_token_that_others_can_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = folders_around(tmp_path, monkeypatch)
    # given the tokens of a machine, each for its owner alone
    monkeypatch.delenv("HOLDFAST_ADMIN_TOKEN_FILE", raising=False)
    token, typed = tmp_path / "orchestrator" / "admin.token", tmp_path / "lab.token"
    token.parent.mkdir()
    tmp_path.chmod(0o755)
    for file in (token, typed):
        file.write_text("secret")
        file.chmod(0o600)
    token.parent.chmod(0o700)
    assert machine._secrets(tmp_path, str(typed)).state == "ok"

    # when one is open, but lies in a folder that is not, then it is well; when both are, it is not
    token.chmod(0o644)
    assert machine._secrets(tmp_path, None).state == "ok"
    token.parent.chmod(0o755)
    typed.chmod(0o640)
    found = machine._secrets(tmp_path, str(typed))
    assert found.state == "warn" and found.do.startswith(f"chmod 600 {token} {typed}")
    assert found.says == f"others on this machine can read {token}; its group can read {typed}"

    # and whatever lies in a folder that lets nobody through is well, however far up that is
    around[tmp_path.parents[1]] = 0o700
    assert machine._secrets(tmp_path, str(typed)).state == "ok"


@pytest.mark.spec("N6")
@pytest.mark.parametrize(
    ("file", "folder", "above", "who"),
    [(0o644, 0o755, 0o755, "others on this machine"),
     (0o604, 0o711, 0o711, "others on this machine"),
     (0o640, 0o755, 0o755, "its group"),
     (0o644, 0o755, 0o710, "its group"),
     (0o644, 0o755, 0o700, ""),
     (0o644, 0o744, 0o755, ""),
     (0o600, 0o755, 0o755, "")],
)  # fmt: skip
def test_who_can_read_a_file_has_to_come_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: int, folder: int, above: int, who: str
) -> None:
    folders_around(tmp_path, monkeypatch)[tmp_path.parent] = above
    secret, led = tmp_path / "secret", tmp_path / "led"
    secret.touch(file)
    secret.chmod(file)
    tmp_path.chmod(folder)
    led.symlink_to(secret)
    assert machine.readers(secret) == machine.readers(led) == who
    assert not machine.readers(tmp_path / "none")


def folders_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """The modes of those that a test's own folder lies in, as is said here: they let nobody through."""
    around = dict.fromkeys(tmp_path.parents, 0o755)
    monkeypatch.setattr(machine, "_mode", lambda path: around.get(path) or path.stat().st_mode)
    return around
