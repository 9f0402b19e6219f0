"""`holdfast up` and `holdfast node` as a person starts them: flags, files, environment, good and bad ends."""

import contextlib
import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.testing.processes import LocalNetwork, free_port, wait_for

pytestmark = pytest.mark.xdist_group("cli-serving")

UUID, OTHER_UUID = "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174001"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path) as network:
        yield network


@pytest.fixture(scope="module")
def leading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("serving")) as network:
        network.start_orchestrator(preset="lan")
        yield network


@pytest.fixture
def served(leading: LocalNetwork) -> Iterator[LocalNetwork]:
    """An orchestrator that several stories share; the nodes of each go with it."""
    unsafe = leading.unsafe
    yield leading
    leading.unsafe = unsafe
    for node in leading.nodes.values():
        node.kill_tree()
    leading.nodes.clear()


def join_command(network: LocalNetwork) -> list[str]:
    """The words after `holdfast` that `up` told the operator to type."""
    up = network.orchestrator
    assert up is not None
    found = network.wait_for(lambda: re.search(r"^  holdfast (node .*)$", up.output(), re.M), "the join command")
    assert found is not None
    return found[1].split()


@pytest.mark.spec("N1", "N6")
def test_what_up_prints_joins_a_machine_and_no_log_holds_a_token(network: LocalNetwork, tmp_path: Path) -> None:
    # given an orchestrator started with its data, addresses, store and preset named, which prints into a file
    network.start_orchestrator(preset="test", store_url=f"sqlite:///{tmp_path}/elsewhere.db")
    assert (tmp_path / "elsewhere.db").exists()
    command = join_command(network)
    assert network.orchestrator is not None
    assert command[-1] == "TOKEN"
    assert "hf1_" not in network.orchestrator.output()

    # when what it printed is typed on a machine, with a token made as it said
    assert "  holdfast token new\n" in network.orchestrator.output()
    token = network.cli("token", "new").stdout.split()[-1]
    unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
    node = network.start_cli(*command[:-1], token, *unsafe, log=tmp_path / "typed")

    # then that machine is in the network, under the home that HOLDFAST_HOME names
    client = network.client()
    listed = network.wait_for(lambda: [n for n in client.nodes.list() if n.connected], "the node to join")
    uuid = (network.home / "node" / "uuid").read_text().strip()
    assert listed[0].id == "node_" + uuid.replace("-", "")
    assert node.running()


@pytest.mark.spec("N1", "N6")
def test_at_a_terminal_up_prints_a_join_command_that_works_as_printed(network: LocalNetwork, tmp_path: Path) -> None:
    # given an orchestrator at a terminal
    front, back = pty.openpty()
    ports = [free_port() for _ in range(3)]
    words = [sys.executable, "-m", "holdfast.cli", "up", "--data-dir", str(tmp_path / "data"), "--preset", "test"]
    for flag, port in zip(("--http", "--listen", "--files"), ports, strict=True):
        words += [flag, f"127.0.0.1:{port}"]
    up = subprocess.Popen(words, stdin=back, stdout=back, stderr=back, env=network.environment(None))
    os.close(back)
    try:
        # when the command that it prints is typed
        command = found_in(front, r"  holdfast (node --orchestrator \S+ --token hf1_\S+)\r\n").split()
        # (what it says later must be read too, or it would wait for a reader at last)
        threading.Thread(target=read_on, args=(os.dup(front),), daemon=True).start()
        unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
        network.start_cli(*command, *unsafe, log=tmp_path / "typed")

        # then the machine is in
        token = (tmp_path / "data" / "admin.token").read_text().strip()
        with Client(f"http://127.0.0.1:{ports[0]}", token) as client:
            network.wait_for(lambda: [n for n in client.nodes.list() if n.connected], "the node to join")
    finally:
        up.terminate()
        up.wait(60)
        os.close(front)


def read_on(terminal: int) -> None:
    """Until nobody has the terminal open any more, which it says by an error."""
    with open(terminal, "rb", buffering=0) as shown, contextlib.suppress(OSError):
        while shown.read(65536):
            pass


def found_in(terminal: int, pattern: str) -> str:
    """What a terminal shows where the pattern has its group."""
    shown, until = "", time.monotonic() + 60
    while (found := re.search(pattern, shown)) is None:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"never shown: {pattern}\n{shown}"
        shown += os.read(terminal, 65536).decode(errors="replace")
    return found[1]


@pytest.mark.spec("N7")
def test_both_end_in_good_order_on_sigterm(network: LocalNetwork) -> None:
    up = network.start_orchestrator(preset="lan")
    node = network.start_node("ant")

    assert node.terminate() == 0
    network.wait_node("ant", state="gone")
    assert up.terminate() == 0
    assert not (network.home / "orchestrator" / "endpoint.json").exists()
    assert "Traceback" not in up.output() + node.output()


@pytest.mark.spec("N1", "N3")
def test_a_node_is_what_its_flags_say(served: LocalNetwork) -> None:
    status = free_port()
    served.start_node(
        "ant",
        flags=["--site", "attic", "--cpu", "1500m", "--memory", "300MiB", "--disk", "200MiB", "--gpus", "0", "--uuid",
               UUID, "--port", str(status), "--s3-bucket", "some-bucket", "--grace", "3s"],
    )  # fmt: skip

    view = served.client().nodes.get("node_" + UUID.replace("-", ""))

    assert (view.name, view.site) == ("ant", "attic")
    assert view.free == {"cpu_milli": 1500, "memory_mib": 300, "disk_mib": 200, "gpus": 0}


@pytest.mark.spec("N3")
def test_flags_win_over_environment_and_environment_over_file(served: LocalNetwork, tmp_path: Path) -> None:
    # given a file, an environment and flags that all disagree
    file = tmp_path / "node.toml"
    file.write_text('name = "from-file"\nsite = "from-file"\ncpu_milli = 700\n')
    environ = {"HOLDFAST_NODE_NAME": "from-env", "HOLDFAST_NODE_SITE": "from-env", "PNODE_UUID": OTHER_UUID}

    # when a node starts with all three
    served.start_node("from-flag", flags=["--config", str(file)], env=environ)

    # then each setting is the one of the highest rank
    view = served.client().nodes.get("node_" + OTHER_UUID.replace("-", ""))
    assert (view.name, view.site, view.free["cpu_milli"]) == ("from-flag", "from-env", 700)


@pytest.mark.spec("N4")
def test_a_node_without_isolation_says_so_wherever_it_is_listed(served: LocalNetwork) -> None:
    served.start_node("bare", flags=["--unsafe-process-runtime"], env={"PATH": without_bubblewrap(served)})
    served.start_node("other")

    listing = served.cli("nodes", check=0).stdout
    shown = served.cli("node", "show", served.nodes["bare"].id, check=0).stdout

    row = next(line for line in listing.splitlines() if "bare" in line)
    assert "UNSAFE: no isolation" in row
    assert "UNSAFE: no isolation" in shown


@pytest.mark.spec("N4")
def test_without_a_sandbox_a_node_refuses_to_start(served: LocalNetwork) -> None:
    served.unsafe = False

    node = served.start_node("bare", env={"PATH": without_bubblewrap(served)}, wait=False)

    assert node.process.wait(60) == 78
    assert "--unsafe-process-runtime" in node.output()
    assert "Traceback" not in node.output()


def without_bubblewrap(network: LocalNetwork) -> str:
    """A PATH with what a job needs and no bwrap."""
    folder = network.folder / "bin"
    folder.mkdir(exist_ok=True)
    for tool in ("sh", "sleep", "true", "env"):
        link = folder / tool
        if not link.exists():
            link.symlink_to(next(p for p in (Path("/bin") / tool, Path("/usr/bin") / tool) if p.exists()))
    return str(folder)


@pytest.mark.spec("N6")
def test_an_open_network_needs_no_token(network: LocalNetwork, tmp_path: Path) -> None:
    # given an orchestrator that lets anyone in
    network.start_orchestrator(flags=["--open"], preset="lan")

    # when the printed command, which has no token on loopback, is typed
    command = join_command(network)
    assert "--token" not in command
    unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
    network.start_cli(*command, *unsafe, log=tmp_path / "typed")

    # then the machine is in
    network.wait_for(lambda: [n for n in network.client().nodes.list() if n.connected], "the node to join")


@pytest.mark.spec("N6")
def test_a_mistyped_token_is_named_before_anything_is_sent(served: LocalNetwork) -> None:
    node = served.start_node("ant", token="hf1_nonsense", wait=False)

    assert node.process.wait(60) == 78
    assert "[token_mistyped]" in node.output()
    assert "Traceback" not in node.output()


@pytest.mark.spec("N3")
def test_a_node_without_an_orchestrator_says_what_to_give(network: LocalNetwork) -> None:
    done = network.cli("node", "--name", "ant", check=78)
    assert "--orchestrator" in done.stderr


@pytest.mark.spec("N7", "H3")
def test_a_drained_node_gets_nothing_new_until_it_is_taken_back(network: LocalNetwork) -> None:
    # given one node
    network.start_orchestrator(preset="lan")
    network.start_node("ant")
    node = network.nodes["ant"].id

    # when it is drained
    assert "ant is drained" in network.cli("node", "drain", node, check=0).stdout
    job = network.client().jobs.submit(["true"], memory_mib=64, disk_mib=16)

    # then the listing says so, and work waits with a reason
    listed = network.cli("nodes", "--all", check=0).stdout
    assert "drained by the network's operator" in listed and "1 node: 1 drained" in listed
    explained = json.loads(network.cli("job", "explain", job.id, "--json", check=0).stdout)
    assert explained["phase"] == "queued"

    # when it is taken back, then the work is done
    assert json.loads(network.cli("node", "drain", node, "--off", "--json", check=0).stdout)["draining"] is False
    assert network.client().jobs.wait(job.id, timeout_s=100).verdict == "succeeded"


@pytest.mark.spec("N6")
def test_beyond_loopback_people_speak_tls_with_the_pinned_certificate(network: LocalNetwork, tmp_path: Path) -> None:
    # given an orchestrator that listens everywhere
    http, listen, files = (free_port("0.0.0.0") for _ in range(3))
    up = network.start_cli(
        "up", "--data-dir", str(network.home / "orchestrator"), "--http", f"0.0.0.0:{http}", "--listen",
        f"0.0.0.0:{listen}", "--files", f"0.0.0.0:{files}", "--preset", "test", log=tmp_path / "up.log",
    )  # fmt: skip
    network.wait_for(lambda: "Join a machine" in up.output(), "the orchestrator to be up")

    # then the local command line finds it, by https, and a certificate of someone else is refused
    assert f"https://127.0.0.1:{http}" in up.output()
    network.cli("nodes", check=0)
    with (
        Client.find(
            f"https://127.0.0.1:{http}", network.home / "orchestrator" / "admin.token", patience_s=1
        ) as stranger,
        pytest.raises(Exception, match="certificate"),
    ):
        stranger.nodes.list()


@pytest.mark.spec("J14")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--http", "nonsense"), 78, "HOST:PORT"),
        (("--preset", "mars"), 78, "mars"),
        (("--store", "sqlite:////proc/nowhere/state.db"), None, ""),
    ],
)
def test_up_says_in_words_why_it_cannot_start(
    network: LocalNetwork, words: tuple[str, str], code: int | None, says: str
) -> None:
    done = network.cli("up", "--listen", "127.0.0.1:0", *words, timeout_s=100)

    assert done.returncode not in (0, 70)
    assert code in (None, done.returncode)
    assert says in done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("J14")
def test_two_orchestrators_on_one_folder_are_one_too_many(served: LocalNetwork) -> None:
    second = served.cli("up", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", check=78)
    assert "[already_running]" in second.stderr
    # and the first one still serves, and is still found
    served.cli("nodes", check=0)


@contextlib.contextmanager
def object_store(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """A real S3 server; what the environment says of it."""
    (folder / bucket).mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    keys = ("someaccesskey", "somesecretkey")
    program = str(Path(sysconfig.get_path("scripts")) / "rclone")
    words = [program, "serve", "s3", "--auth-key", ",".join(keys), "--config", "", "--addr", address, str(folder)]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(address), "the object store to answer", 60)
        yield {
            "AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1], "AWS_ENDPOINT_URL": f"http://{address}",
        }  # fmt: skip
    finally:
        server.kill()
        server.wait()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


@pytest.mark.spec("J1", "N13")
def test_files_can_be_kept_in_an_object_store(network: LocalNetwork, tmp_path: Path) -> None:
    # given an object store with a bucket
    with object_store(tmp_path / "s3", "some-bucket") as where:
        network.start_orchestrator(flags=["--blobs", "s3://some-bucket/holdfast"], env=where, preset="lan")
        network.start_node("ant")

        # when a folder goes up and a job makes a file in it
        folder = tmp_path / "package"
        folder.mkdir()
        (folder / "given").write_text("given\n")
        client = network.client()
        sent = client.content.send(folder)
        small = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}
        job = client.jobs.run(["sh", "-c", "cat given given > made"], package=sent.manifest, timeout_s=100, **small)

        # then it came by the store, and from there to here
        assert job.files is not None
        client.content.fetch(job.files.manifest, tmp_path / "results")
        assert (tmp_path / "results" / "made").read_text() == "given\ngiven\n"
        assert any((tmp_path / "s3").rglob("owned/*/*/*")), "it lies in the bucket"


@pytest.mark.spec("A12", "J3")
def test_limits_on_connections_can_be_chosen(network: LocalNetwork) -> None:
    # given an orchestrator that lets a stranger have two connections
    network.start_orchestrator(flags=["--limit", "strangers_per_address_max=2", "--limit", "head_ms_max=0"])
    up = network.orchestrator
    assert up is not None
    host, _, port = up.url.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as open_ones:
        # when it opens a third one, then the first is closed
        lines = [open_ones.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(3)]
        assert lines[0].recv(1) == b""
    # and people are served
    assert network.client().doctor().ok


@pytest.mark.spec("A12", "J3")
def test_a_limit_that_does_not_exist_is_named(network: LocalNetwork) -> None:
    done = network.cli("up", "--limit", "strangers=1")
    assert done.returncode == 78
    assert "'strangers'" in done.stderr and "strangers_max" in done.stderr and "joins_max" in done.stderr
