"""The wheel holds the program and what it needs to run, and nothing else; installed where nothing is, it runs."""

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version
from shipped import ROOT, lend_packages

import holdfast
from holdfast import parts
from holdfast.testing.processes import free_port, wait_for

pytestmark = [pytest.mark.spec("N12"), pytest.mark.xdist_group("wheel")]  # it is built once

EXTRAS = {"neural", "torch", "postgres", "docs", "dev", "release"}


def test_the_wheel_holds_every_module_and_what_they_read_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    about = {name for name in inside if ".dist-info/" in name}
    source = ROOT / "src"
    kinds = {".py", ".pyi", ".proto", ".typed"}
    written = {path for path in (source / "holdfast").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    other = [path.name for path in written if path.suffix not in kinds and path.name != "py.typed"]

    assert not other, "the wheel would leave these out"
    assert inside - about == {path.relative_to(source).as_posix() for path in written}
    assert {"holdfast/py.typed", "holdfast/__init__.pyi", "holdfast/wire/node.proto"} <= inside
    assert any(name.startswith("holdfast/state/migrations/versions/v0001") for name in inside)
    assert any(name.endswith("/LICENSE") for name in about)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(archive.read(name))
    assert said["Name"] == holdfast.DISTRIBUTION == parts.DISTRIBUTION and said["Version"] == holdfast.__version__
    assert wheel.name == f"holdfast_compute-{holdfast.__version__}-py3-none-any.whl"
    assert set(said.get_all("Provides-Extra", [])) == EXTRAS
    entries = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "holdfast = holdfast.cli.main:main" in entries


def test_every_extra_is_explained_and_its_packages_are_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "installing.md").read_text()
    pinned = {normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(extras) == EXTRAS
    for name, packages in extras.items():
        assert f"`{name}`" in page, f"docs/installing.md does not explain the extra {name}"
        assert {normal(package) for package in packages} <= pinned


def test_every_package_that_is_needed_has_a_lowest_version_that_can_work() -> None:
    # `make release-check` runs with the lowest ones; here is what can be said without installing anything
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = about["optional-dependencies"]
    lowest: dict[str, Version] = {}
    for line in (*about["dependencies"], *extras["neural"], *extras["postgres"]):
        name, _, bound = line.partition(">=")
        assert bound, f"{name} has no lowest version"
        lowest[normal(name)] = Version(bound)
    pins = (line.partition("==")[::2] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {normal(name): Version(version) for name, version in pins}
    assert {name: (low, pinned[name]) for name, low in lowest.items() if low > pinned[name]} == {}
    # the generated code refuses to be imported beside an older runtime than it was generated for
    wire = ROOT / "src" / "holdfast" / "wire"
    protobuf = re.search(r"Protobuf Python Version: (\S+)", (wire / "node_pb2.py").read_text())
    grpc = re.search(r"GRPC_GENERATED_VERSION = '(\S+)'", (wire / "node_pb2_grpc.py").read_text())
    assert protobuf and lowest["protobuf"] >= Version(protobuf[1])
    assert grpc and lowest["grpcio"] >= Version(grpc[1])


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]*", package).group().lower())  # pyright: ignore


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`holdfast` in an environment where nobody ever saw this repository."""
    environment = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    lend_packages(environment)
    words = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*words, "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel)], check=True)
    return environment / "bin" / "holdfast"


@pytest.mark.spec("N1", "J1")
def test_what_the_wheel_installs_runs_a_network(command: Path, tmp_path: Path) -> None:
    # Given the command as it is installed
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PYTHON", "PNODE"))}
    env = kept | {"HOLDFAST_HOME": str(tmp_path / "home")}
    running: list[subprocess.Popen[bytes]] = []

    def holdfast_says(*words: str) -> str:
        done = subprocess.run([command, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(*words: str) -> None:
        with (tmp_path / f"{words[0]}.log").open("wb") as log:
            running.append(subprocess.Popen([command, *words], env=env, cwd=tmp_path, stdout=log, stderr=log))

    # Then it says its version, and comes from where it was installed
    assert holdfast_says("version").startswith(f"holdfast {holdfast.__version__} ")
    place = subprocess.run(
        [command.parent / "python", "-c", "import holdfast; print(holdfast.__file__)"],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert place.startswith(str(command.parent.parent))

    # When an orchestrator and a node are started with it
    ports = [free_port() for _ in range(3)]
    try:
        people, nodes, files = (f"127.0.0.1:{port}" for port in ports)
        start("up", "--http", people, "--listen", nodes, "--files", files, "--open", "--preset", "test")
        wait_for((tmp_path / "home" / "orchestrator" / "endpoint.json").exists, "the orchestrator to serve")
        start("node", "--orchestrator", nodes, "--name", "a")

        # Then it runs a job
        assert (
            holdfast_says("run", "--no-folder", "--no-results", "--", "echo", "from the wheel").count("from the wheel")
            == 1
        )
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            process.wait(60)
