"""What a job needs before it runs cannot be had: who is told, in which words, whose fault it is, and whether it is
tried again. From the command line through a real network to a real engine and a real registry."""

import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_network import FaultNetwork

from holdfast.testing.engines import Docker, Registry, busybox_tar, tar_of
from holdfast.testing.packages import make_wheel, offline_pip
from holdfast.testing.processes import wait_for

pytestmark = [pytest.mark.xdist_group("faults-containers"), pytest.mark.timeout(300)]

SMALL = ("--memory", "128MiB", "--disk", "64MiB", "--cpu", "500m", "--no-results")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def image(registry: Registry) -> str:
    return registry.add_image("test/system", busybox_tar())


@pytest.fixture(scope="module")
def network(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    """One node with Docker, which may ask the registry of this machine, and a pip that knows one package."""
    folder = tmp_path_factory.mktemp("containers")
    (folder / "wheels").mkdir()
    make_wheel(folder / "wheels", "apple", "1.0", needs="pear>=2")
    make_wheel(folder / "wheels", "pear", "1.0")
    with Docker() as engine, FaultNetwork(folder) as network:
        network.start_orchestrator(preset="lan")
        flags = ["--engine", engine.socket, "--private-inputs"]
        network.start_node("ant", flags=flags, env=offline_pip(folder / "wheels"))
        yield network


class Told(dict[str, Any]):
    """How a job ended, as the command's JSON says it, and what it said on the screen."""

    screen = ""


def ended(network: FaultNetwork, exit_code: int, *words: str, cwd: Path | None = None) -> Told:
    done = network.cli("run", *SMALL, "--json", *words, cwd=cwd, timeout_s=120, check=exit_code)
    told = Told(json.loads(done.stdout)["job"])
    told.screen = done.stderr
    assert "Traceback" not in done.stderr
    return told


def assert_users_and_not_tried_again(told: Told, code: str) -> None:
    assert (told["failure"]["code"], told["failure"]["blame"]) == (code, "user"), told["failure"]
    assert told["attempts_made"] == 1, "what cannot work is not tried again"
    assert f"{code}: " in told.screen, "the screen names it"


@pytest.mark.spec("J7", "J8")
def test_a_registry_that_is_down_is_the_networks_fault_and_is_tried_again(
    network: FaultNetwork, registry: Registry, image: str
) -> None:
    # given an image of a registry that is down
    reference = registry.add_image("test/late", tar_of({"late": b"late"}))
    registry.stop()
    try:
        # when a job needs it, then it is tried again, and in the end nobody pays
        told = ended(network, 75, "--no-folder", "--attempts", "2", "--image", reference, "--", "/late")
        assert (told["failure"]["code"], told["failure"]["blame"]) == ("network", "network")
        assert told["attempts_made"] == 2 and not told["failure"]["billable"]
        assert "network's, not billed" in told.screen

        # and when the registry comes back while another waits, then that one runs as if nothing had been
        job = network.client().jobs.submit(["echo", "hello"], image=image, memory_mib=128, attempts_max=9).id
        wait_for(lambda: network.journal("attempt.failed", job=job), "a first try to fail", 60)
    finally:
        registry.start()
    view = network.client().jobs.wait(job, timeout_s=90)
    assert view.verdict == "succeeded" and view.attempts_made > 1
    assert network.output(job) == "hello\n"


@pytest.mark.spec("J7")
def test_an_image_that_is_nowhere_is_the_users(network: FaultNetwork, registry: Registry, image: str) -> None:
    missing = f"{registry.address}/test/nowhere:v1"
    told = ended(network, 1, "--no-folder", "--image", missing, "--", "true")
    assert_users_and_not_tried_again(told, "image")
    assert "no such image" in told["failure"]["detail"]  # and nothing that its registry said


@pytest.mark.spec("J7", "J11")
def test_an_image_that_is_not_what_its_digest_says_is_never_run(network: FaultNetwork, registry: Registry) -> None:
    # given a registry in whose storage one layer was exchanged
    reference = registry.add_image("test/tampered", tar_of({"bin/good": b"#!/bin/false"}))
    (layer,) = registry.layers(reference)
    layer.write_bytes(gzip.compress(tar_of({"bin/good": b"#!/bin/evil!"}), 1, mtime=0))

    told = ended(network, 1, "--no-folder", "--image", reference, "--", "/bin/good")
    assert_users_and_not_tried_again(told, "image")


@pytest.mark.spec("J1", "J7")
@pytest.mark.parametrize(
    ("last", "words"),
    [("RUN echo this is why; exit 3", "this is why"), ("COPY nothing /", "nothing"), ("NONSENSE", "")],
)
def test_a_dockerfile_that_fails_is_the_users_and_its_last_words_are_shown(
    network: FaultNetwork, image: str, tmp_path: Path, last: str, words: str
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\n{last}\n")
    told = ended(network, 1, "--dockerfile", "Dockerfile", "--", "true", cwd=tmp_path)
    assert_users_and_not_tried_again(told, "build")
    assert words in told.screen


@pytest.mark.spec("J1", "J7")
def test_requirements_that_do_not_resolve_are_the_users_in_pips_words(network: FaultNetwork, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("apple\n")
    told = ended(network, 1, "--requirements", "requirements.txt", "--", "true", cwd=tmp_path)
    assert_users_and_not_tried_again(told, "build")
    assert "pear>=2" in told.screen


@pytest.mark.spec("J7")
@pytest.mark.parametrize("contained", [True, False], ids=["container", "sandbox"])
@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("./plain", 126)])
def test_what_cannot_be_run_ends_as_it_would_in_a_shell(
    network: FaultNetwork, image: str, tmp_path: Path, command: str, code: int, contained: bool
) -> None:
    # given a command that is not there, or a file that nobody may run
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    flags = ["--image", image] if contained else []

    # then the exit code is the one that every shell gives, and it is not tried again
    told = ended(network, code, *flags, "--", command, cwd=tmp_path)
    assert_users_and_not_tried_again(told, "exit_code")
    assert told["failure"]["exit_code"] == code


@pytest.mark.spec("J7", "H3")
def test_none_of_this_is_held_against_the_node(network: FaultNetwork, image: str, tmp_path: Path) -> None:
    # given another build that fails
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN false\n")
    ended(network, 1, "--dockerfile", "Dockerfile", "--", "true", cwd=tmp_path)

    # then its machine is as trusted as before, and takes the next job
    node = network.nodes["ant"]
    assert not network.journal("node.strike", node=node.id)
    done: subprocess.CompletedProcess[str] = network.cli(
        "run", *SMALL, "--no-folder", "--image", image, "--", "echo", "on", check=0
    )
    assert done.stdout == "on\n"
