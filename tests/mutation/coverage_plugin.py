"""A pytest plugin for the measuring run: names the running test to coverage, and writes down how long each took."""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    running = coverage.Coverage.current()
    assert running is not None, "start this by `coverage run`"
    running.switch_context(item.nodeid)
    began = time.process_time()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = round(time.process_time() - began, 4)
        running.switch_context("")


def pytest_unconfigure() -> None:
    Path(os.environ["HOLDFAST_MUTATION_SECONDS"]).write_text(json.dumps(_seconds))
