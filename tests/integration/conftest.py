"""What integration tests share: attempts under real shims."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_attempts import Attempts

from holdfast.node.launcher import Launcher


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
    for attempt in attempts.made:
        attempt.clean_up()
