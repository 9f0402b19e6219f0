"""Tests marked `serial` run last, and with no other test beside them on this machine.

Every test holds a lock while it runs: ordinary ones share it, serial ones own it. The lock is taken outside
of the test's own timeout, since waiting for neighbours is not the test's fault. It is a kernel lock that belongs
to the worker's process alone: one that dies gives it back, even if something that it forked lives on.
"""

import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

LOCK = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    path = Path(tempfile.gettempdir()) / f"holdfast-tests-{os.getuid()}.lock"
    config.stash[LOCK] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOCK in config.stash:
        os.close(config.stash[LOCK])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Serial tests go to the end, and with `--dist loadgroup` all to the same worker."""
    for item in items:
        if item.get_closest_marker("serial"):
            item.add_marker(pytest.mark.xdist_group("serial"))
        if getattr(config.option, "loadgroup", False):
            _name_group(item)
    items.sort(key=lambda item: item.get_closest_marker("serial") is not None)


def _name_group(item: pytest.Item) -> None:
    """Put a test's group behind its id, where the scheduler looks for it.

    pytest-xdist does this itself, by an attribute that pytest no longer has since 9.2: groups were ignored.
    """
    groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args})
    known = getattr(item, "_id", None)
    if groups and known is not None and not item.nodeid.endswith("@" + "_".join(groups)):
        item._id = type(known).parse(f"{item.nodeid}@{'_'.join(groups)}")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    lock = item.config.stash[LOCK]
    fcntl.lockf(lock, fcntl.LOCK_EX if item.get_closest_marker("serial") else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN)
