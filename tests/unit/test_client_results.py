"""A job's results on this machine: nothing of theirs or ours is overwritten, nothing unverified is believed."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from holdfast.blobs import File, Manifest
from holdfast.blobs.errors import BlobError, DiskFull, DiskRefused, InTheWay, Mismatch, StoreGone
from holdfast.blobs.transfer import TransferProgress
from holdfast.client import Endpoint, results
from holdfast.client.results import Results, place_for
from holdfast.client.steps import Now, Steps
from holdfast.client.transport import Transport
from holdfast.errors import NotEnded
from holdfast.wire.http import AttemptView, FilesView, JobView

pytestmark = pytest.mark.spec("J10")

OUT = b"line 1\nline 2\n\xff\xfe\n"
ATTEMPTS = [AttemptView(f"att_1.{n}", "node_1", "ended", 0, 1, 2, None, None) for n in (1, 2)]
JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="ended", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=8_200, verdict="succeeded", failure=None, result_sha256=hashlib.sha256(OUT).hexdigest(),
    result_bytes=len(OUT), exit_code=0, attempts_made=2, attempts=ATTEMPTS, accepted="att_1.2",
    files=FilesView("0" * 64, 1, 5),
)  # fmt: skip


class Network:
    """As much of one as results need: what attempts printed, and the names of the files that were made."""

    def __init__(self, *made: str, printed: dict[str, bytes] | None = None) -> None:
        self.printed = {"att_1.2/stdout": OUT} if printed is None else printed
        self.asked: list[str] = []
        self.listing = Manifest.of([File(name, 0, False, ()) for name in made])
        self.cut = False
        self.transport = Transport(Endpoint("http://127.0.0.1:1", "secret"), wire=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        key = "/".join(request.url.path.split("/")[-2:])
        start = int(request.url.params["offset"])
        return httpx.Response(200, content=self.printed.get(key, b"")[start : start + 6])

    def manifest(self, name: str) -> Steps[Manifest]:
        yield Now()
        return self.listing

    def fetch(self, manifest: str, into: Path, *, told: Callable[[TransferProgress], None]) -> Steps[Manifest]:
        yield Now()
        if self.cut:
            raise StoreGone("in the middle")
        for entry in self.listing.entries:
            (into / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (into / entry.path).write_text("theirs")
        told(TransferProgress(5, 5, 1, 1, 5))
        return self.listing

    def sync(self, to: Path, job: JobView = JOB) -> "dict[str, object]":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(results, "content", self)
            synced = self.transport.run(Results(job).sync(to, lambda progress: None))
        return msgspec.to_builtins(synced)


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_files_output_and_record_lie_in_one_folder(tmp_path: Path) -> None:
    # given a job that made a file, and printed in both of its attempts
    network = Network("model/a", printed={"att_1.2/stdout": OUT, "att_1.1/stdout": b"lost\n", "att_1.2/stderr": b"e"})

    # when its results are brought
    synced = network.sync(tmp_path / "to")

    # then all is there, byte for byte, under names that say what it is
    folder = tmp_path / "to"
    assert names(folder) == ["model/a", "result.json", "stderr.log", "stdout.attempt-1.log", "stdout.log"]
    assert (folder / "stdout.log").read_bytes() == OUT
    assert (folder / "stdout.attempt-1.log").read_bytes() == b"lost\n"
    record = json.loads((folder / "result.json").read_text())
    assert (record["job"], record["complete"], record["verdict"], record["exit_code"]) == (
        "job_1",
        True,
        "succeeded",
        0,
    )
    assert record["output"]["stdout"]["sha256"] == JOB.result_sha256
    assert record["files"]["manifest"] == "0" * 64
    assert len(record["attempts"]) == 2
    assert (synced["files"], synced["moved"]) == (1, 5)


def test_a_job_that_has_not_ended_has_no_results(tmp_path: Path) -> None:
    with pytest.raises(NotEnded, match="running"):
        Network().sync(tmp_path, msgspec.structs.replace(JOB, phase="running"))


def test_what_the_job_itself_calls_so_keeps_its_name(tmp_path: Path) -> None:
    synced = Network("STDOUT.log", "result.json", "holdfast-result.json", "stderr.log/deep").sync(tmp_path)

    assert (tmp_path / "result.json").read_text() == "theirs"
    assert (tmp_path / "STDOUT.log").read_text() == "theirs"
    assert (tmp_path / "holdfast-stdout.log").read_bytes() == OUT, "some file systems do not tell letters apart"
    assert synced["record"] == "holdfast-2-result.json"
    assert json.loads((tmp_path / "holdfast-2-result.json").read_text())["job"] == "job_1"


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InTheWay):
        Network("thesis.txt").sync(tmp_path)
    assert names(tmp_path) == ["thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("to", ["file", "file/below"])
def test_a_file_that_stands_where_the_folder_should_is_named_as_such(tmp_path: Path, to: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InTheWay, match="cannot be a folder") as caught:
        Network().sync(tmp_path / to)
    assert caught.value.exit_code == 73 and "--to" in caught.value.hint
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(errno.ENOSPC, DiskFull, 74), (errno.EDQUOT, DiskFull, 74), (errno.EACCES, DiskRefused, 74),
     (errno.EROFS, DiskRefused, 74), (errno.EISDIR, InTheWay, 73)],
)  # fmt: skip
def test_a_disk_that_refuses_is_told_by_its_kind_and_nothing_counts_as_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[BlobError], code: int
) -> None:
    # given a disk that takes the beginning of it
    network = Network("a")
    wrote = Results._write

    def refuse(self: Results, path: Path, data: bytes) -> None:
        if b'"complete": true' in data:
            raise OSError(number, os.strerror(number), str(path))
        wrote(self, path, data)

    # when it refuses the rest
    monkeypatch.setattr(Results, "_write", refuse)
    with pytest.raises(kind) as caught:
        network.sync(tmp_path)

    # then that is said, and what is there says of itself that it is not all
    assert caught.value.exit_code == code and str(tmp_path) in caught.value.says
    assert json.loads((tmp_path / "result.json").read_text())["complete"] is False

    # and it goes on when there is room
    monkeypatch.undo()
    network.sync(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["complete"] is True


def test_a_sync_that_was_cut_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    # given one that was cut in the middle of the files
    network = Network("a")
    network.cut = True
    with pytest.raises(StoreGone):
        network.sync(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["complete"] is False

    # when it is tried again, then it is completed; and a third time changes nothing
    network.cut = False
    network.sync(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    network.sync(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before
    assert json.loads(before["result.json"])["complete"] is True


def test_output_that_was_cut_is_asked_for_from_where_it_was(tmp_path: Path) -> None:
    network = Network("a")
    network.cut = True
    with pytest.raises(StoreGone):
        network.sync(tmp_path)
    (tmp_path / ".stdout.log.holdfast-part").write_bytes(OUT[:9])

    network.cut = False
    network.sync(tmp_path)

    offsets = [int(re.findall(r"offset=(\d+)", url)[0]) for url in network.asked if "att_1.2/stdout" in url]
    assert offsets[0] == 9
    assert (tmp_path / "stdout.log").read_bytes() == OUT


def test_a_damaged_draft_is_thrown_away(tmp_path: Path) -> None:
    network = Network("a")
    network.cut = True
    with pytest.raises(StoreGone):
        network.sync(tmp_path)
    (tmp_path / ".stdout.log.holdfast-part").write_bytes(b"of something else")

    network.cut = False
    network.sync(tmp_path)

    assert (tmp_path / "stdout.log").read_bytes() == OUT


def test_output_that_is_not_what_the_result_says_is_refused(tmp_path: Path) -> None:
    network = Network(printed={"att_1.2/stdout": b"forged\n"})
    with pytest.raises(Mismatch, match="stdout"):
        network.sync(tmp_path, msgspec.structs.replace(JOB, files=None))
    assert not (tmp_path / "stdout.log").exists()


def test_a_link_that_stands_where_we_write_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    network = Network()
    folder = tmp_path / "to"
    network.sync(folder)
    (folder / ".stdout.log.holdfast-part").symlink_to(victim)

    with pytest.raises(InTheWay, match="is in the way"):
        network.sync(folder)
    assert victim.read_text() == "mine"


def test_a_job_that_failed_leaves_its_last_words(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(JOB, verdict="failed", files=None, accepted=None, result_sha256=None, exit_code=3)
    Network(printed={"att_1.2/stderr": b"it broke\n"}).sync(tmp_path, failed)
    assert (tmp_path / "stderr.log").read_bytes() == b"it broke\n"
    assert json.loads((tmp_path / "result.json").read_text())["verdict"] == "failed"


@pytest.mark.parametrize(
    ("name", "place"),
    [("", "job_1"), ("night run", "night-run"), ("../../etc", "etc"), ("..", "job_1"), (".hidden", "hidden"),
     ("a/b\\c:d", "a-b-c-d"), ("été", "été"), ("x" * 300, "x" * 80)],
)  # fmt: skip
def test_a_name_becomes_a_folder_beside_the_others(tmp_path: Path, name: str, place: str) -> None:
    found = place_for(msgspec.structs.replace(JOB, name=name), tmp_path)
    assert found == tmp_path / place
    assert found.parent == tmp_path


def test_a_name_that_an_earlier_job_used_gets_the_id(tmp_path: Path) -> None:
    named = msgspec.structs.replace(JOB, name="nightly")
    Network().sync(place_for(named, tmp_path), msgspec.structs.replace(named, files=None))
    later = msgspec.structs.replace(named, id="job_2")

    assert place_for(named, tmp_path) == tmp_path / "nightly", "its own is found again"
    assert place_for(later, tmp_path) == tmp_path / "nightly-2"
