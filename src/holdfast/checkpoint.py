"""Checkpoints for code that runs as a job, in two lines. One file, standard library only: it can be copied alone.

    from holdfast import checkpoint

    state = checkpoint.load({"step": 0})            # what an earlier attempt saved, or this
    for step in range(state["step"], 1000):
        ...
        checkpoint.save({"step": step + 1})         # complete or not at all, whatever happens meanwhile

States may be bytes (stored as they are) or anything that `pickle` accepts; with `as_json=True` the file is JSON, for
other programs to read. For states that are files:

    with checkpoint.saving() as folder:             # an empty folder; it counts once the block has succeeded
        model.save_pretrained(folder)
    ...
    saved = checkpoint.newest()                     # its path in a later attempt, or None

A state is written under a name that starts with "." and ends with ".new", synced, and renamed; then older states are
removed. So there is a complete newest state at any moment. `save(state, every_s=30)` does nothing until 30 s have
passed since the last save; use it in a fast loop, because a state that is replaced before it is captured is wasted
time.

States are stored in $HOLDFAST_CHECKPOINT_DIR, which a job submitted with --checkpoint has. In a job submitted without,
nothing is saved, and stderr says so once. Outside of Holdfast the folder is `.holdfast/checkpoint` in the current
folder, so that a program can be stopped and resumed locally as well. Only one process may save at a time.
"""

# Images have their own Python: nothing here needs more than 3.8.
from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Unreadable", "folder", "load", "newest", "save", "saving"]

AT_HOME = Path(".holdfast") / "checkpoint"
_SAVED = re.compile(r"state-([0-9]{1,12})(\.bytes|\.json|\.pickle)?")
_DRAFT = re.compile(r"\.state-[0-9]{1,12}(\.[a-z]+)?\.new")


class Unreadable(RuntimeError):
    """There is a checkpoint, but this program cannot read it."""


def folder() -> Path | None:
    """Where states are stored; None in a job that was submitted without --checkpoint."""
    given = os.environ.get("HOLDFAST_CHECKPOINT_DIR")
    if given:
        return Path(given)
    return None if os.environ.get("HOLDFAST_JOB") else AT_HOME


def newest() -> Path | None:
    """The newest state: a file, or the folder that a `saving()` filled. None: there is none."""
    place = folder()
    found = _saved(place) if place is not None else []
    return found[-1][1] if found else None


def load(default: Any = None) -> Any:
    """The newest state as it was passed to `save`, or `default`. Raises Unreadable."""
    path = newest()
    if path is None:
        return default
    if path.is_dir():
        raise Unreadable(f"{path} was made by saving(): read its files, newest() gives its path")
    data = path.read_bytes()
    if path.suffix == ".bytes":
        return data
    try:
        return json.loads(data) if path.suffix == ".json" else pickle.loads(data)
    except Exception as wrong:
        raise Unreadable(f"{path} cannot be read: {wrong}. Remove it to start from the beginning.") from wrong


def save(state: Any, *, every_s: float = 0.0, as_json: bool = False) -> bool:
    """Replace the stored state. Returns False if nothing was saved, because it is too early or there is no folder."""
    place = _due(every_s)
    if place is None:
        return False
    if as_json:
        data, ending = json.dumps(state).encode(), ".json"
    elif isinstance(state, (bytes, bytearray, memoryview)):
        data, ending = bytes(state), ".bytes"
    else:
        data, ending = pickle.dumps(state), ".pickle"
    name = _next(place) + ending
    draft = place / f".{name}.new"
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _put(draft, place / name)
    return True


@contextlib.contextmanager
def saving() -> Iterator[Path]:
    """An empty folder that becomes the newest state when the block ends without an error."""
    place = _due(0.0)
    if place is None:
        # The caller still gets a folder to fill; it is discarded.
        import tempfile

        with tempfile.TemporaryDirectory() as nowhere:
            yield Path(nowhere)
        return
    name = _next(place)
    draft = place / f".{name}.new"
    draft.mkdir()
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    for path in sorted(draft.rglob("*"), reverse=True):
        if not path.is_symlink():
            _sync(path)
    _sync(draft)
    _put(draft, place / name)


# --- internals ---

_last_s: float | None = None
_told = False


def _due(every_s: float) -> Path | None:
    """The folder to save to now, with remains of an unfinished save removed. None: it is too early, or there is no
    folder."""
    global _told
    place = folder()
    if place is None:
        if not _told:
            sys.stderr.write("holdfast.checkpoint: nothing is saved; send the job with --checkpoint\n")
        _told = True
        return None
    if every_s and _last_s is not None and time.monotonic() - _last_s < every_s:
        return None
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        if _DRAFT.fullmatch(path.name):
            _remove(path)
    return place


def _saved(place: Path) -> list[tuple[int, Path]]:
    """All complete states, oldest first."""
    try:
        found = [(match, path) for path in place.iterdir() if (match := _SAVED.fullmatch(path.name))]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), path) for match, path in found)


def _next(place: Path) -> str:
    found = _saved(place)
    return f"state-{found[-1][0] + 1 if found else 1:08}"


def _put(draft: Path, path: Path) -> None:
    """Rename a draft to its final name, then remove the states that it replaces."""
    global _last_s
    older = _saved(path.parent)
    draft.rename(path)
    _sync(path.parent)
    for _, old in older:
        _remove(old)
    _last_s = time.monotonic()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Renamed first: a folder that is partly removed must not look like a state.
        trash = path if _DRAFT.fullmatch(path.name) else path.with_name(f".{path.name}.new")
        path.rename(trash)
        shutil.rmtree(trash)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
