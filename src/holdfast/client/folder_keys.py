"""Recognises folders that hold keys of Holdfast: those of an orchestrator, of a node, of this user. They are never
sent, whatever their names are and whatever anybody says."""

import os
from pathlib import Path

from holdfast.blobs.errors import FolderRefused
from holdfast.client.endpoint import home

KEYS = ("admin.token", "blobs.key")
"""Files in the folder of an orchestrator and in each copy of it. Each of them gives authority over the network."""
BESIDE_KEYS = ("certificate.key", "state.db", "endpoint.json")
"""Further files there, with names that other programs use too."""
NODE_KEY = "key"
"""A file in the folder of a node. Other programs use this name too: it counts only if it contains a private key."""
_PRIVATE = b"-----BEGIN PRIVATE KEY"


def own_keys_in(folder: Path, own: Path | None) -> str:
    """Why the folder stays here, for people; empty: it holds no keys. `own`: Holdfast's data folder of this user."""
    if folder == own:
        return "holds Holdfast's own data"
    name = _key_in(folder)
    return f"holds a key of Holdfast ({name})" if name else ""


def refuse_keys(folder: Path) -> None:
    """Raises FolderRefused for a folder that holds keys of Holdfast, or is inside the data folder of Holdfast or of an
    orchestrator. A node's data folder is allowed: it contains the folders of jobs, which may send their own files."""
    place, own = folder.resolve(), own_home()
    if own is not None and place.is_relative_to(own):
        says = f"{place} belongs to {own}, where Holdfast keeps your private data"
    elif name := _key_in(place):
        says = f"{place} holds a key of Holdfast ({name})"
    elif above := next((one for one in place.parents if _is_orchestrators(one)), None):
        says = f"{place} is inside {above}, the data folder of an orchestrator"
    else:
        return
    raise FolderRefused(f"{says}: that is never sent", hint="Put what the job needs into another folder.")


def _key_in(folder: Path) -> str:
    return next((name for name in KEYS if os.path.isfile(folder / name)), "") or _nodes_key(folder)


def _is_orchestrators(folder: Path) -> bool:
    """A single file may be a copy that somebody made to use it."""
    return sum(os.path.isfile(folder / name) for name in (*KEYS, *BESIDE_KEYS)) > 1


def _nodes_key(folder: Path) -> str:
    try:
        if not os.path.isfile(folder / NODE_KEY):  # opening a pipe would block
            return ""
        with (folder / NODE_KEY).open("rb") as file:
            return NODE_KEY if file.read(len(_PRIVATE)) == _PRIVATE else ""
    except OSError:
        return ""  # an unreadable file cannot be sent either


def own_home() -> Path | None:
    """Holdfast's data folder of this user; None: there is no place for one."""
    try:
        return home().resolve()
    except RuntimeError:
        return None
