"""Sends what a job needs: the folder, the files that it is built from, its inputs. Refuses what cannot be meant.

Everything that can be checked on this machine is checked first; then it is sent. What the network does with it is not
known here.
"""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from holdfast.blobs.ignore import Ignore
from holdfast.cli.render.progress_bars import Bar
from holdfast.client import folders
from holdfast.client.folder_keys import refuse_keys
from holdfast.client.selection import USUAL, FolderRules, NotSentWhy, Selection, left_out_line
from holdfast.errors import Misuse
from holdfast.quantities import counted, spoken_bytes

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.content import Sent
    from holdfast.wire.http import InputRequest

CHOICES = "Or send a chosen folder, of any size, with --folder DIR; or none with --no-folder."
INDEX_KEEP_S = 60 * 86_400
"""Seconds for which the index of a folder is kept after the folder was last sent."""
_INPUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class OnlyOne(Ignore):
    """Leaves out everything but one file at the top."""

    def __init__(self, name: str) -> None:
        super().__init__(())
        self._name = name

    def leaves_out(self, path: str, folder: bool) -> bool:
        return path != self._name


class Given(NamedTuple):
    """An input as typed."""

    name: str
    url: str = ""
    sha256: str = ""
    job: str = ""
    path: Path | None = None


class Packing:
    """What is sent with one job, checked as far as possible on this machine."""

    def __init__(
        self,
        folder: str | None,
        no_folder: bool,
        image: str | None,
        dockerfile: str | None,
        requirements: str | None,
        inputs: list[str],
        rules: FolderRules = USUAL,
    ) -> None:
        if sum(word is not None for word in (image, dockerfile, requirements)) > 1:
            raise Misuse(
                "--image, --dockerfile and --requirements exclude each other",
                hint="Give one of them. Requirements for an image belong in its Dockerfile.",
            )
        if folder is not None and no_folder:
            raise Misuse("--folder and --no-folder contradict each other", hint="Give one of them.")
        if rules.include and no_folder:
            raise Misuse("--include names files of a folder, but --no-folder sends none", hint="Leave one of them out.")
        self.rules = rules
        self.folder = None if no_folder else _chosen(folder, rules)
        self.built_from = {
            flag: _inside(self.folder, flag, path, rules)
            for flag, path in (("dockerfile", dockerfile), ("requirements", requirements))
            if path is not None
        }
        self.inputs = [given(text) for text in inputs]

    def send(self, client: "Client") -> dict[str, Any]:
        """Send everything; returns the fields of the job's request that refer to it."""
        fields: dict[str, Any] = dict(self.built_from)
        # A job gets an empty folder anyway.
        if self.folder is not None and any(self.folder.iterdir()):
            fields["package"] = _send(client, self.folder, rules=self.rules).manifest
        fields["inputs"] = [_brought(client, item) for item in self.inputs]
        return fields


# --- the folder ---


def _chosen(named: str | None, rules: FolderRules) -> Path:
    folder = Path(named or ".").resolve()
    if not folder.is_dir():
        raise Misuse(f"{named} is not a folder", hint="--folder takes an existing folder.")
    if named is None:
        folders.check(folder, CHOICES, rules)
    refuse_keys(folder)
    return folder


def _inside(folder: Path | None, flag: str, path: str, rules: FolderRules) -> str:
    """The path of a file in the folder that is sent, as the job finds it."""
    if folder is None:
        raise Misuse(f"--{flag} names a file in the folder, but --no-folder sends none", hint="Leave one of them out.")
    place = Path(path).resolve()
    if not place.is_file() and (folder / path).is_file():
        place = (folder / path).resolve()
    if not place.is_relative_to(folder):
        raise Misuse(
            f"--{flag} {path} is outside {folder}, the folder that is sent",
            hint="Move it into that folder, or send a folder that holds it with --folder.",
        )
    if not place.is_file():
        raise Misuse(f"--{flag} {path} is not a file", hint=f"It was searched for here and in {folder}.")
    inside = place.relative_to(folder)
    selection = Selection(folder, rules)
    parts = [(parent.as_posix(), True) for parent in reversed(inside.parents) if parent.name]
    for name, is_folder in [*parts, (inside.as_posix(), False)]:
        if selection.leaves_out(name, is_folder) and not (is_folder and selection.enters(name)):
            kept = selection.left.get(name)
            own = kept is not None and kept.reason is NotSentWhy.OWN_KEYS
            raise Misuse(
                f"--{flag} {path} is left out of what is sent: {name} {kept.why if kept else 'is ignored'}",
                hint="Move it out of there." if own else f"Send it with --include {inside.as_posix()}.",
            )
    return inside.as_posix()


# --- inputs ---


def given(text: str) -> Given:
    """Parse `NAME=WHAT`."""
    name, equals, what = text.partition("=")
    if not equals or not what or not _INPUT_NAME.fullmatch(name):
        raise Misuse(
            f"{text!r} is not an input",
            hint="Write NAME=WHAT: a name of letters, digits, '.', '_', '-'; and an address, job:ID, file or folder.",
        )
    if what.startswith(("http://", "https://", "s3://")):
        url, pinned, sha256 = what.partition("#sha256=")
        if pinned and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise Misuse(f"the hash of the input {name} is not 64 hex digits", hint="Write URL#sha256=HEX.")
        return Given(name, url=url, sha256=sha256.lower())
    if what.startswith("job:"):
        if not what.removeprefix("job:"):
            raise Misuse(f"the input {name} names no job", hint=f"Write {name}=job:ID.")
        return Given(name, job=what.removeprefix("job:"))
    if "://" in what:
        raise Misuse(
            f"the input {name} has the address {what!r}, which cannot be fetched",
            hint="Addresses start with http://, https:// or s3://.",
        )
    path = Path(what).resolve()
    if not path.exists():
        raise Misuse(f"the input {name} is {what}, which does not exist", hint="Name a file or folder on this machine.")
    refuse_keys(path if path.is_dir() else path.parent)
    return Given(name, path=path)


def _brought(client: "Client", item: Given) -> "InputRequest":
    from holdfast.wire.http import InputRequest

    if item.path is None:
        return InputRequest(item.name, url=item.url, sha256=item.sha256, job=item.job)
    if item.path.is_dir():
        # Whoever names a folder of data means what Git ignores in it, too; but not secrets.
        sent = _send(client, item.path, rules=FolderRules(gitignore=False))
    else:
        sent = _send(client, item.path.parent, ignore=OnlyOne(item.path.name), what=item.path.name)
    return InputRequest(item.name, manifest=sent.manifest)


# --- sending ---


def _send(
    client: "Client", folder: Path, *, rules: FolderRules = USUAL, ignore: Ignore | None = None, what: str = ""
) -> "Sent":
    shown = what or f"{folder.name}/"
    index = _index_of(folder, what)
    with Bar("sending", shown) as bar:
        sent = client.content.send(
            folder,
            index_file=index,
            ignore=ignore,
            include=rules.include,
            gitignore=rules.gitignore,
            told=bar.told,
            read=bar.read,
        )
    forget_old(index.parent)
    if line := left_out_line(sent.left_out, "--include PATH sends a file all the same"):
        typer.secho(f"-- {line}", err=True, dim=True)
    if sent.files:
        new = "all there already" if not sent.moved else f"{spoken_bytes(sent.moved)} sent"
        typer.secho(f"-- {shown}: {counted(sent.files, 'file')}, {spoken_bytes(sent.bytes)}; {new}", err=True, dim=True)
    return sent


def _index_of(folder: Path, what: str) -> Path:
    """The file that records what was read from a folder, so that it need not be read again."""
    from hashlib import sha256

    from holdfast.client.endpoint import home

    name = sha256(os.fsencode(folder / what)).hexdigest()[:32]
    return home() / "cache" / "folders" / f"{name}.index"


def forget_old(indexes: Path) -> None:
    """Delete the indexes of folders that were last sent long ago. At worst, such a folder is read once more."""
    since = time.time() - INDEX_KEEP_S
    with contextlib.suppress(OSError):
        for index in indexes.glob("*.index"):
            with contextlib.suppress(OSError):
                if index.stat().st_mtime < since:
                    index.unlink()
