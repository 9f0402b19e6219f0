"""Space that rows took and do not take any more goes back to the disk (SQLite)."""

import sqlite3
from pathlib import Path

import pytest

from holdfast.model import Entry, Instant
from holdfast.state import Store
from holdfast.state import store as store_module

pytestmark = pytest.mark.spec("A12", "J14")

ENTRIES = 1_500


def entry(seq: int) -> Entry:
    return Entry(seq, Instant(seq), "job.queued", "x" * 2_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def grown(file: Path) -> tuple[Store, int]:
    """A store with a journal of some MiB, and its leader's epoch."""
    store = Store.open(f"sqlite:///{file}")
    epoch = store.take_lead("me")
    store.commit([entry(seq) for seq in range(1, ENTRIES + 1)], epoch)
    return store, epoch


def test_the_file_shrinks_by_what_was_deleted_and_keeps_the_rest(file: Path) -> None:
    store, epoch = grown(file)
    assert store.shrink() == 0, "nothing was deleted"
    before = file.stat().st_size
    store.forget_entries(ENTRIES - 10, epoch)
    unused = store.reusable_bytes()
    assert unused > 2 << 20
    assert store.shrink() == unused and store.reusable_bytes() == 0
    assert file.stat().st_size <= before - unused
    assert [kept.seq for kept in store.entries()] == list(range(ENTRIES - 9, ENTRIES + 1))
    assert store.shrink() == 0
    store.close()


def test_little_is_left_in_the_file_and_much_goes_in_steps(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, epoch = grown(file)
    store.forget_entries(ENTRIES - 10, epoch)
    unused = store.reusable_bytes()
    monkeypatch.setattr(store_module, "SHRUNK_BYTES_MIN", unused + 1)
    assert store.shrink() == 0
    monkeypatch.setattr(store_module, "SHRUNK_BYTES_MIN", unused)
    monkeypatch.setattr(store_module, "SHRUNK_PAGES_MAX", 100)
    assert store.shrink() == 100 * 4096
    store.close()


def test_a_file_of_an_earlier_release_is_made_so_that_it_shrinks(file: Path) -> None:
    with sqlite3.connect(file) as earlier:
        earlier.execute("CREATE TABLE other (id INTEGER)")
    earlier.close()
    store, epoch = grown(file)
    store.forget_entries(ENTRIES, epoch)
    assert store.shrink() > 2 << 20
    store.close()


def test_a_file_stays_as_it_is_if_a_copy_has_no_space(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(file) as earlier:
        earlier.execute("CREATE TABLE other (id INTEGER)")
    earlier.close()
    monkeypatch.setattr("holdfast.state.engines.os.statvfs", lambda _: type("Full", (), {"f_bavail": 1, "f_frsize": 1}))
    store, epoch = grown(file)
    store.forget_entries(ENTRIES, epoch)
    assert store.shrink() == 0
    store.close()
