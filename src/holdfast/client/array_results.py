"""Downloads the results of an array to one folder: one folder for each item by its index, and one index file.

    results/<array>/          <array>: its name if it has one, else its id
        0/ 1/ 2/ …            the results of each item, laid out as in `holdfast.client.results`
        2-<job>/              an earlier run of item 2, which has been run again since
        index.json            every item: its job, command, verdict, failure, folder; `complete` once all are here

An item that cannot be downloaded does not stop the others; it is reported. An interrupted download resumes: items that
the index lists as downloaded are not requested again.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.blobs.errors import InTheWay
from holdfast.blobs.unpacking import trouble
from holdfast.client import requests
from holdfast.client.results import HOME, PART, belongs_to, is_empty, make
from holdfast.client.steps import Steps, Together, Work
from holdfast.durable import durable_write
from holdfast.errors import HoldfastError, NotEnded
from holdfast.wire.http import ArrayItem, ArrayView, JobView

INDEX = "index.json"
INDEX_BYTES_MAX = 256 << 20
AT_ONCE = 4
"""Items downloaded at the same time. Most have a few small files, so nearly all the time is latency."""
NOTED_EVERY_S = 2.0
"""How often the index is written while items arrive."""


class ItemRecord(msgspec.Struct, frozen=True):
    """One item in `index.json`."""

    index: int
    job: str
    verdict: str | None
    failure: str | None
    """The failure code."""
    command: list[str]
    exit_code: int | None
    folder: str | None
    """Relative to the array's folder; None: nothing of the item was downloaded."""
    files: int = 0
    bytes: int = 0


class ArrayIndex(msgspec.Struct, frozen=True):
    """The content of `index.json`."""

    array: str
    complete: bool
    name: str
    counts: dict[str, int]
    submitted_ms: int
    items: list[ItemRecord]


class Collected(msgspec.Struct, frozen=True):
    """The local state of an array's results."""

    array: str
    folder: str
    index: str
    items: int
    """Items of which something is here."""
    files: int
    bytes: int
    missing: dict[int, str]
    """Items that could not be downloaded, by index, with the reason."""


class ArrayResults:
    """The results of one array that has ended."""

    def __init__(self, array: ArrayView) -> None:
        if not array.ended:
            done = sum(array.counts.get(word, 0) for word in ("succeeded", "failed", "cancelled"))
            raise NotEnded(
                f"{array.id} has not ended: {done} of {array.items} items have",
                hint=f"See how far it is with `holdfast jobs --array {array.id}`.",
            )
        self._array = array

    def sync(self, to: str | Path | None, told: Callable[[int, int], None]) -> Steps[Collected]:
        """Download everything to `to`, or to `results/<array>/` in the current folder."""
        folder = Path(to) if to is not None else place_for(self._array, Path(HOME))
        yield Work(lambda: self._claim(folder))
        found = dict(self._before)
        missing: dict[int, str] = {}
        told(0, self._array.items)
        noted = time.monotonic()
        count = 0

        def heard(place: int, answer: Any) -> None:
            nonlocal noted, count
            item = self._array.jobs[place]
            if isinstance(answer, HoldfastError):
                found[item.index] = _item(item)
                missing[item.index] = f"{answer.says} [{answer.code}]"
            else:
                found[item.index] = answer
            count += 1
            told(count, self._array.items)
            if time.monotonic() - noted > NOTED_EVERY_S:
                self._note(folder, found, complete=False)
                noted = time.monotonic()

        try:
            yield Together([partial(self._bring, folder, item) for item in self._array.jobs], AT_ONCE, heard)
        except BaseException:
            self._note(folder, found, complete=False)
            raise
        items = self._note(folder, found, complete=not missing)
        return Collected(
            array=self._array.id,
            folder=str(folder),
            index=INDEX,
            items=sum(item.folder is not None for item in items),
            files=sum(item.files for item in items),
            bytes=sum(item.bytes for item in items),
            missing=dict(sorted(missing.items())),
        )

    # --- one item ---

    def _bring(self, folder: Path, item: ArrayItem) -> Steps[ItemRecord]:
        before = self._before.get(item.index)
        place = folder / str(item.index)
        yield Work(lambda: self._make_way(place, item))
        view = yield from requests.job(item.job)
        if before is not None and before.job == item.job and before.folder is not None and place.is_dir():
            if view.files is not None and not view.files.received:
                yield from requests.received(item.job)  # downloaded earlier, but the confirmation was lost
            return before
        if item.verdict == "cancelled" or not view.attempts:
            return _item(item, view)
        yield from requests.results(item.job, to=place)
        return _item(item, view, place.name)

    def _make_way(self, place: Path, item: ArrayItem) -> None:
        """Move an earlier run of the same item aside as a whole: files that somebody may have read are not
        overwritten."""
        before = self._before.get(item.index)
        earlier = before.job if before else item.job
        if earlier == item.job or not place.is_dir() or not belongs_to(place, earlier):
            return
        aside = place.with_name(f"{place.name}-{earlier.removeprefix('job_')}")
        try:
            place.rename(aside)
        except OSError as wrong:
            raise InTheWay(
                f"{place} holds an earlier run of item {item.index} and cannot be moved aside: {wrong.strerror}",
                hint="Move it away, and get the results again.",
            ) from None

    # --- the folder ---

    def _claim(self, folder: Path) -> None:
        """Mark the folder as this array's before anything else is written, so that an interrupted sync can resume."""
        before = index_of(folder)
        try:
            make(folder)
            if not is_empty(folder, INDEX) and (before is None or before.array != self._array.id):
                raise InTheWay(
                    f"{folder} holds something else: the results of {self._array.id} are not mixed into it",
                    hint="Name an empty folder with --to, or move away what is there.",
                )
        except OSError as wrong:
            raise trouble(folder, wrong) from None
        self._before = {item.index: item for item in before.items} if before else {}
        """The job that each item's folder was made for."""
        self._note(folder, self._before, complete=False)

    def _note(self, folder: Path, found: dict[int, ItemRecord], *, complete: bool) -> list[ItemRecord]:
        array = self._array
        items = [found[index] for index in sorted(found)]
        _write(folder / INDEX, ArrayIndex(array.id, complete, array.name, array.counts, array.submitted_ms, items))
        return items


def _item(item: ArrayItem, view: JobView | None = None, folder: str | None = None) -> ItemRecord:
    files = view.files if view else None
    return ItemRecord(
        index=item.index,
        job=item.job,
        verdict=item.verdict,
        failure=item.failure,
        command=view.argv if view else [],
        exit_code=view.exit_code if view else None,
        folder=folder,
        files=files.files if files else 0,
        bytes=files.bytes if files else 0,
    )


def index_of(folder: Path) -> ArrayIndex | None:
    """The index that an earlier sync wrote there."""
    path = folder / INDEX
    try:
        if path.stat().st_size > INDEX_BYTES_MAX:
            return None
        return msgspec.json.decode(path.read_bytes(), type=ArrayIndex)
    except (OSError, msgspec.DecodeError):
        return None


def place_for(array: ArrayView, home: Path) -> Path:
    """The default folder for an array's results. If another array of the same name used it, the id is appended."""
    plain = re.sub(r"[^\w.-]+", "-", array.name).strip(".-")[:80]
    folder = home / (plain or array.id)
    if not plain:
        return folder
    try:
        free = not folder.exists() or is_empty(folder, INDEX)
    except OSError:
        free = False
    before = index_of(folder)
    if free or (before is not None and before.array == array.id):
        return folder
    return home / f"{plain}-{array.id.removeprefix('arr_')}"


def _write(path: Path, index: ArrayIndex) -> None:
    draft = path.with_name(f".{path.name}{PART}")
    try:
        durable_write(path, msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n", mode=0o644, draft=draft)
    except OSError as wrong:
        raise trouble(path.parent, wrong) from None
