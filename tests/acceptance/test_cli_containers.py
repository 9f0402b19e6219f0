"""Images, Dockerfiles and requirements from the command line, through a real network to a real Docker and Podman."""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.engines import Docker, EngineService, Podman, Registry, busybox_tar
from holdfast.testing.packages import make_wheel, offline_pip
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = [pytest.mark.xdist_group("cli-containers"), pytest.mark.timeout(300)]

SMALL = ("--memory", "128MiB", "--disk", "64MiB", "--cpu", "500m")
NEAR, FAR = "203.0.115.1", "203.0.115.2"
FETCH = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 30 {FAR} 8000"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def image(registry: Registry) -> str:
    """A small system with a shell, by its digest, in the registry and nowhere else."""
    return registry.add_image("test/system", busybox_tar(), config={"Env": ["COLOUR=green"]})


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, registry: Registry) -> Iterator[EngineService]:
    with Docker() if request.param == "docker" else Podman(insecure=[registry.address]) as engine:
        yield engine


@pytest.fixture(scope="module")
def network(engine: EngineService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    folder = tmp_path_factory.mktemp(f"on-{engine.kind}")
    wheels = folder / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "apple", "1.1", needs="pear")
    make_wheel(wheels, "pear", "2.0")
    with LocalNetwork(folder) as network:
        network.start_orchestrator(preset="lan")
        # The registry of the tests is on this machine: such addresses are asked only where the operator says so.
        network.start_node("ant", flags=["--engine", engine.socket, "--private-inputs"], env=offline_pip(wheels))
        yield network


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine at the other end of a cable, with a server that says `outside`."""
    name, here = f"hf-far-{os.getpid()}", f"hff{os.getpid()}"
    folder = tmp_path_factory.mktemp("far")
    (folder / "index.html").write_text("outside\n")
    words = [
        ["netns", "add", name],
        ["link", "add", here, "type", "veth", "peer", "name", "far0", "netns", name],
        ["addr", "add", f"{NEAR}/24", "dev", here],
        ["link", "set", here, "up"],
        ["-n", name, "addr", "add", f"{FAR}/24", "dev", "far0"],
        ["-n", name, "link", "set", "far0", "up"],
    ]
    server = None
    try:
        for word in words:
            subprocess.run(["ip", *word], check=True, capture_output=True, timeout=60)
        serve = [sys.executable, "-m", "http.server", "--bind", FAR, "--directory", str(folder), "8000"]
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, *serve], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{FAR}:8000/", timeout=5) as answer:
                return answer.status == 200
            return False

        wait_for(answers, "the far server to answer")
        yield
    finally:
        if server is not None:
            server.kill()
            server.wait(60)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=60)
        subprocess.run(["ip", "link", "delete", here], capture_output=True, timeout=60)


@pytest.mark.spec("J1", "J2", "J10")
def test_a_folder_runs_in_an_image_and_what_it_makes_comes_back(
    network: LocalNetwork, image: str, tmp_path: Path
) -> None:
    # given a folder with a script, and an image that only a registry has
    (tmp_path / "work.sh").write_text("echo $COLOUR; id -u; grep -c : /proc/net/dev; echo made > out; echo oops >&2")

    # when the script is run in the image
    done = network.cli("run", *SMALL, "--image", image, "--name", "one", "--", "sh", "work.sh", cwd=tmp_path, check=0)

    # then it saw the image, was nobody of importance, had no network, and what it made is here
    colour, user, links = done.stdout.split()
    assert colour == "green" and user != "0" and links == "1", done.stdout
    assert "oops" in done.stderr
    assert (tmp_path / "results" / "one" / "out").read_text() == "made\n"
    assert (tmp_path / "results" / "one" / "stdout.log").read_text() == done.stdout


@pytest.mark.spec("N4", "J2")
def test_only_with_leave_does_it_reach_the_network(network: LocalNetwork, image: str, far: None) -> None:
    words = ["run", *SMALL, "--no-folder", "--no-results", "--image", image]
    may = network.cli(*words, "--network", "--", "sh", "-c", FETCH, check=0)
    may_not = network.cli(*words, "--", "sh", "-c", FETCH, check=1)

    assert may.stdout.endswith("outside\n")
    assert "outside" not in may_not.stdout and "exit_code" in may_not.stderr


@pytest.mark.spec("J1", "J3")
def test_an_image_is_built_from_the_folder(network: LocalNetwork, image: str, tmp_path: Path) -> None:
    # given a folder with a Dockerfile in it that needs another file of it
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text(f"FROM {image}\nCOPY word /word\nRUN cat /word > /built\n")
    (tmp_path / "word").write_text("built in\n")

    # when a job runs in what is built from it, twice
    words = ["run", *SMALL, "--no-results", "--dockerfile", "docker/Dockerfile", "--", "cat", "/built"]
    first = network.cli(*words, cwd=tmp_path, check=0)
    again = network.cli(*words, cwd=tmp_path, check=0)

    # then it is there
    assert first.stdout == again.stdout == "built in\n"


@pytest.mark.spec("J1", "N3", "N10")
@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_a_node_whose_operator_refuses_builds_runs_images_but_builds_none(
    network: LocalNetwork, engine: EngineService, image: str, tmp_path: Path
) -> None:
    # given one node that builds, and a second one that does not
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN true\n")
    ant = network.nodes["ant"]
    bee = network.start_node("bee", flags=["--engine", engine.socket, "--private-inputs", "--no-builds"])

    # when the first one is paused
    network.cli("node", "pause", "--home", str(ant.home), check=0)
    network.wait_for(lambda: network.client().nodes.get(ant.id).draining, "the pause to be told")
    imaged = network.cli("run", *SMALL, "--no-results", "--image", image, "--", "echo", "image", cwd=tmp_path, check=0)
    built = network.cli(
        "run", *SMALL, "--no-results", "--detach", "--dockerfile", "Dockerfile", "--", "true", cwd=tmp_path, check=0
    )

    # then the second one runs an image, and what is to be built waits for the first
    assert imaged.stdout == "image\n"
    job = built.stdout.split()[0]
    assert network.client().jobs.explain(job).gate_codes == {"draining": 1, "kind": 1}
    network.cli("node", "resume", "--home", str(ant.home), check=0)
    network.client().jobs.wait(job, timeout_s=100)
    bee.terminate()


@pytest.mark.spec("J1")
@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_requirements_are_installed_first(network: LocalNetwork, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("apple>=1\n")
    (tmp_path / "use.py").write_text("import apple, pear; print(apple.VERSION, pear.VERSION)\n")

    done = network.cli(
        "run", *SMALL, "--no-results", "--requirements", "requirements.txt", "--", "python3", "use.py", cwd=tmp_path,
        check=0,
    )  # fmt: skip

    assert done.stdout == "1.1 2.0\n"
