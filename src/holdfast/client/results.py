"""Downloads the results of a job to a folder: its files, its output, and a small record of how it ended.

    results/<job>/            <job>: its name if it has one, else its id
        …                     the files it made, as it left them in its working folder
        stdout.log            output of the accepted attempt; if the job failed, of the last one
        stderr.log
        stdout.attempt-1.log  output of the other attempts, if they printed anything
        result.json           verdict, hashes, attempts, times; `complete` once everything is here

If a file of the job itself has one of these names, it keeps the name and ours is called `holdfast-…`. Files are
verified against their manifest, and stdout against the hash of the result. An interrupted download resumes. A folder
that holds something else is not touched.
"""

import hashlib
import os
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from holdfast.blobs.errors import InTheWay, Mismatch
from holdfast.blobs.transfer import TransferProgress
from holdfast.blobs.unpacking import trouble
from holdfast.client import content, requests
from holdfast.client.steps import Steps, Work
from holdfast.durable import durable_write
from holdfast.errors import NotEnded
from holdfast.wire.errors import FailureView
from holdfast.wire.http import AttemptView, JobView

HOME = "results"
RECORD = "result.json"
PART = ".holdfast-part"
"""The suffix of incomplete files."""
RECORD_BYTES_MAX = 1 << 20
STREAMS = ("stdout", "stderr")
_DRAFT = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Output(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    sha256: str


class ResultFiles(msgspec.Struct, frozen=True):
    manifest: str
    """The manifest's hash, which covers every name and byte."""
    files: int
    bytes: int


class Record(msgspec.Struct, frozen=True):
    """The content of `result.json`."""

    job: str
    complete: bool
    name: str
    argv: list[str]
    verdict: str | None
    exit_code: int | None
    failure: FailureView | None
    submitted_ms: int
    ended_ms: int | None
    accepted: str | None
    attempts: list[AttemptView]
    files: ResultFiles | None
    output: dict[str, Output]


class Synced(msgspec.Struct, frozen=True):
    """The local state of a job's results."""

    job: str
    verdict: str | None
    folder: str
    files: int
    bytes: int
    moved: int
    """Bytes of files downloaded this time."""
    record: str
    output: dict[str, Output]


class Results:
    """The results of one job that has ended."""

    def __init__(self, job: JobView) -> None:
        if job.phase != "ended":
            raise NotEnded(
                f"{job.id} is still {job.phase}: there are no results yet",
                hint=f"Follow it with `holdfast logs -f {job.id}`.",
            )
        self._job = job
        self._made: set[str] = set()
        """The job's own top-level names, case-folded: some file systems ignore case."""

    def sync(self, to: str | Path | None, told: Callable[[TransferProgress], None]) -> Steps[Synced]:
        """Download everything to `to`, or to `results/<job>/` in the current folder."""
        job = self._job
        if job.files is not None:
            manifest = yield from content.manifest(job.files.manifest)
            self._made = {entry.path.partition("/")[0].casefold() for entry in manifest.entries}
        folder = Path(to) if to is not None else place_for(job, Path(HOME))
        yield Work(lambda: self._claim(folder))
        last = TransferProgress(0, 0, 0, 0, 0)

        def heard(progress: TransferProgress) -> None:
            nonlocal last
            last = progress
            told(progress)

        if job.files is not None:
            yield from content.fetch(job.files.manifest, folder, told=heard)
        try:
            output = yield from self._outputs(folder)
            yield Work(lambda: self._write(folder / self._free(RECORD), self._record(output, complete=True)))
        except OSError as wrong:
            raise trouble(folder, wrong) from None
        files = job.files
        return Synced(
            job=job.id,
            verdict=job.verdict,
            folder=str(folder),
            files=files.files if files else 0,
            bytes=files.bytes if files else 0,
            moved=last.bytes_moved,
            record=self._free(RECORD),
            output=output,
        )

    # --- the folder ---

    def _claim(self, folder: Path) -> None:
        """Mark the folder as this job's before anything else is written, so that an interrupted sync can resume."""
        try:
            make(folder)
            if not is_empty(folder, RECORD) and not belongs_to(folder, self._job.id):
                raise InTheWay(
                    f"{folder} holds something else: the results of {self._job.id} are not mixed into it",
                    hint="Name an empty folder with --to, or move away what is there.",
                )
            self._write(folder / self._free(RECORD), self._record({}, complete=False))
        except OSError as wrong:
            raise trouble(folder, wrong) from None

    def _free(self, name: str) -> str:
        """The name, or a similar one that no file of the job itself has."""
        variants = (name if n == 0 else f"holdfast-{name}" if n == 1 else f"holdfast-{n}-{name}" for n in count())
        return next(variant for variant in variants if variant.casefold() not in self._made)

    def _write(self, path: Path, data: bytes) -> None:
        draft = path.with_name(self._free(f".{path.name}{PART}"))
        durable_write(path, data, mode=0o644, draft=draft)

    def _record(self, output: dict[str, Output], *, complete: bool) -> bytes:
        job, files = self._job, self._job.files
        record = Record(
            job=job.id,
            complete=complete,
            name=job.name,
            argv=job.argv,
            verdict=job.verdict,
            exit_code=job.exit_code,
            failure=job.failure,
            submitted_ms=job.submitted_ms,
            ended_ms=job.ended_ms,
            accepted=job.accepted,
            attempts=job.attempts,
            files=ResultFiles(files.manifest, files.files, files.bytes) if files else None,
            output=output,
        )
        return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"

    # --- output ---

    def _outputs(self, folder: Path) -> Steps[dict[str, Output]]:
        counts = self._job.accepted or (self._job.attempts[-1].id if self._job.attempts else "")
        found: dict[str, Output] = {}
        for attempt in self._job.attempts:
            for stream in STREAMS:
                number = attempt.id.rpartition(".")[2]
                plain = f"{stream}.log" if attempt.id == counts else f"{stream}.attempt-{number}.log"
                name = self._free(plain)
                expected = self._job.result_sha256 if attempt.id == self._job.accepted and stream == "stdout" else None
                output = yield from self._fetch(attempt.id, stream, folder, name, expected)
                if output.bytes or attempt.id == counts:
                    found[plain.removesuffix(".log")] = output
                else:
                    (folder / name).unlink(missing_ok=True)
        return found

    def _fetch(self, attempt: str, stream: str, folder: Path, name: str, expected: str | None) -> Steps[Output]:
        draft = folder / self._free(f".{name}{PART}")
        output = yield from self._appended(attempt, stream, draft, name)
        if expected is not None and output.sha256 != expected:
            draft.unlink(missing_ok=True)  # perhaps of something else, or damaged here
            output = yield from self._appended(attempt, stream, draft, name)
            if output.sha256 != expected:
                raise Mismatch(f"the {stream} of {self._job.id} does not have the hash {expected} of its result")
        draft.replace(folder / name)
        return output

    def _appended(self, attempt: str, stream: str, draft: Path, name: str) -> Steps[Output]:
        digest = hashlib.sha256()
        with open(os.open(draft, _DRAFT, 0o644), "r+b") as file:

            def read() -> None:
                while block := file.read(1 << 20):
                    digest.update(block)

            def write(data: bytes) -> None:
                file.write(data)
                digest.update(data)

            def kept() -> None:
                file.flush()
                os.fsync(file.fileno())

            yield Work(read)
            while data := (yield from requests.output(self._job.id, attempt, stream, file.tell())):
                yield Work(partial(write, data))
            size = file.tell()
            yield Work(kept)
        return Output(name, size, digest.hexdigest())


def make(folder: Path) -> None:
    """Create the folder unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InTheWay(
            f"{folder} cannot be a folder: something else has that name, or a part of it",
            hint="Name an empty folder with --to, or one that is not there yet.",
        ) from None


def place_for(job: JobView, home: Path) -> Path:
    """The default folder for a job's results. If another job of the same name used it, the id is appended."""
    plain = re.sub(r"[^\w.-]+", "-", job.name).strip(".-")[:80]
    folder = home / (plain or job.id)
    if not plain or _free_or_of(folder, job.id):
        return folder
    return home / f"{plain}-{job.id.removeprefix('job_')}"


def _free_or_of(folder: Path, job: str) -> bool:
    try:
        return not folder.exists() or is_empty(folder, RECORD) or belongs_to(folder, job)
    except OSError:
        return False


def is_empty(folder: Path, record: str) -> bool:
    """Whether the folder is empty, apart from the draft of a record that an earlier sync left when it died."""
    return all(path.name.endswith(f"{record}{PART}") for path in folder.iterdir())


def belongs_to(folder: Path, job: str) -> bool:
    """Whether an earlier sync of this job made the folder."""
    for path in sorted(folder.glob(f"*{RECORD}")):
        try:
            if path.stat().st_size > RECORD_BYTES_MAX:
                continue
            if msgspec.json.decode(path.read_bytes(), type=dict[str, object]).get("job") == job:
                return True
        except (OSError, msgspec.DecodeError):
            continue
    return False
