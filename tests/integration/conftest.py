"""What integration tests share: attempts under real shims, container engines, an image registry."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.launcher import Launcher
from holdfast.testing.attempts import Attempts
from holdfast.testing.engines import Docker, Podman, Registry, busybox_tar


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    launcher.start()
    yield launcher
    launcher.close()


@pytest.fixture
def attempts(tmp_path: Path, launcher: Launcher) -> Iterator[Attempts]:
    attempts = Attempts(tmp_path, launcher)
    yield attempts
    attempts.clean_up()


# Engines take seconds to start and to stop: one of each for a whole run. Tests that use them are in one xdist group
# (`engines`), so that one worker has them all.


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    with Docker(live_restore=True) as engine:
        yield engine


@pytest.fixture(scope="session")
def podman(registry: Registry) -> Iterator[Podman]:
    with Podman(insecure=[registry.address]) as engine:
        yield engine


@pytest.fixture(scope="session")
def busybox() -> bytes:
    """A small system. Its shell runs `date` as a program of its own, and libfaketime can be loaded into that."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return busybox_tar({"sh": Path("/bin/sh").resolve(), "date": Path("/bin/date")}, [library])


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user of the machine can reach: programs of a sandbox are run by another than ours."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-public-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
