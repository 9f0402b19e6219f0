"""A node that invents checkpoints, or names files that it never sent, against a real orchestrator on the real wire."""

import itertools
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from orchestrators import PATIENT, OrchestratorProcess
from wire_node import WireNode

from holdfast.blobs import Blob, scan, sha_of
from holdfast.client import Client
from holdfast.model import Failure, FailureCode, Result
from holdfast.model.messages import Held, HeldPhase, Start
from holdfast.testing.processes import wait_for

SETTINGS = msgspec.structs.replace(PATIENT, backoff_ms=10, backoff_ms_max=10, newcomer_attempts=64, attempts_max=30)
SMALL: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 16, "disk_mib": 16}
SAVING: dict[str, Any] = {**SMALL, "recovery": "resume", "checkpoint_ms": 600_000}
EXIT = Failure(FailureCode.EXIT_CODE, "exit code 1", exit_code=1)
EMPTY = Result(sha256(b"").hexdigest(), 0)


class FilesNode(WireNode):
    """Does with its attempts only what the test says, and speaks to the files endpoint by hand."""

    def __init__(self, orchestrator: OrchestratorProcess, name: str) -> None:
        super().__init__(orchestrator.listen, name=name)
        self.name: str = name
        self._files = f"http://{orchestrator.config.files}"

    def __enter__(self) -> "FilesNode":
        self.start()
        return self

    def _perform(self, start: Start) -> None:
        """Runs until the test says otherwise."""

    def started(self, job: str, besides: tuple[Start, ...] = ()) -> Start:
        """A start of this job, other than these."""

        def told() -> Start | None:
            known = {start.attempt for start in besides}
            return next((s for s in reversed(self.starts) if s.job == job and s.attempt not in known), None)

        return wait_for(told, f"{self.name} to be told to start {job}")

    def lose(self, start: Start) -> None:
        """Give the attempt back, as a node does whose operator empties it: that costs it nothing."""
        self.end(start, Failure(FailureCode.DRAINED, "the machine is needed"))

    def end(self, start: Start, said: Failure | Result) -> None:
        result, failure = (said, None) if isinstance(said, Result) else (None, said)
        with self._lock:
            self.held[start.attempt] = Held(start.attempt, start.fence, HeldPhase.FINISHED, result, failure)
        self.report()

    # --- files ---

    def ask(self, method: str, start: Start, path: str, body: Any = None, fence: int = 0) -> httpx.Response:
        url = f"{self._files}/node/v1/attempts/{start.attempt}/{path}?fence={fence or start.fence}"
        return httpx.request(method, url, json=body, headers={"Authorization": f"Bearer {self.bulk_key}"}, timeout=60)

    def put(self, start: Start, *contents: bytes) -> None:
        blobs = [[sha_of(data), len(data)] for data in contents]
        urls = self.ask("POST", start, "links", {"blobs": blobs}).json()["urls"]
        for data in contents:
            assert httpx.put(httpx.URL(self._files).join(urls[sha_of(data)]), content=data).status_code == 201

    def save(self, start: Start, manifest: str) -> str:
        """Ask for it to be the job's checkpoint; the code of the refusal, `incomplete`, or empty."""
        answer = self.ask("POST", start, "checkpoint", {"manifest": manifest}).json()
        return answer.get("code", "") or ("incomplete" if answer.get("missing") else "")

    def saves(self, start: Start, folder: Path) -> str:
        """Send a folder and save it, as an honest node does."""
        data = scan(folder).manifest.to_bytes()
        self.put(start, *(file.read_bytes() for file in folder.iterdir()), data)
        assert self.save(start, sha_of(data)) == ""
        return sha_of(data)


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path_factory.mktemp("hostile"), settings=SETTINGS, open_join=True) as running:
        yield running.start()


@pytest.fixture
def client(orchestrator: OrchestratorProcess) -> Client:
    return orchestrator.client()


NUMBERS = itertools.count()


@pytest.fixture
def liar(orchestrator: OrchestratorProcess) -> Iterator[FilesNode]:
    """Not there yet: the test decides who gets a job first."""
    node = FilesNode(orchestrator, f"liar-{next(NUMBERS)}")
    yield node
    node.stop()


@pytest.fixture
def honest(orchestrator: OrchestratorProcess) -> Iterator[FilesNode]:
    with FilesNode(orchestrator, f"honest-{next(NUMBERS)}") as node:
        node.wait_welcome()
        yield node


def state(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "state").write_text(text)
    return folder


@pytest.mark.spec("A12", "J6", "J8")
def test_an_invented_checkpoint_is_refused(client: Client, liar: FilesNode, tmp_path: Path) -> None:
    # given a node with two attempts
    liar.start().wait_welcome()
    job, other = (client.jobs.submit(["true"], **SAVING).id for _ in range(2))
    start, beside = liar.started(job), liar.started(other)
    # when it saves what nobody ever sent, or what only its other attempt sent
    assert liar.save(start, "ab" * 32) == "not_found"
    data = scan(state(tmp_path / "beside", "of another job")).manifest.to_bytes()
    liar.put(beside, b"of another job", data)
    assert liar.save(start, sha_of(data)) == "not_found"
    # or a true one in the name of an attempt that does not exist, or under another fence
    invented = msgspec.structs.replace(start, attempt=start.attempt.replace(".1", ".7"))
    assert liar.save(invented, sha_of(data)) == "not_found"
    refused = liar.ask("POST", beside, "checkpoint", {"manifest": sha_of(data)}, fence=beside.fence + 1)
    assert refused.json()["code"] == "not_found", refused.text
    # then neither job has a checkpoint, and the next attempt starts from the beginning
    liar.lose(start)
    assert liar.started(job, (start,)).checkpoint == ""
    for one in (job, other):
        client.jobs.stop(one)


@pytest.mark.spec("A12", "J1", "J6")
def test_a_node_that_knows_a_hash_cannot_read_the_owners_file_in_its_next_attempt(
    client: Client, liar: FilesNode, tmp_path: Path
) -> None:
    # given a file of the owner that the job was not given, and a node that knows its hash
    secret = state(tmp_path / "secret", "the owner's secret " * 200_000)
    owned = client.content.send(secret)
    (blob,) = scan(secret).manifest.blobs
    liar.start().wait_welcome()
    job = client.jobs.submit(["true"], **SAVING).id
    start = liar.started(job)
    # when it names the file in a manifest of its own, beside something that it does send
    mine = state(tmp_path / "mine", "sent")
    named = scan(_both(tmp_path / "both", mine, secret)).manifest
    own = [found for found in named.blobs if found.sha != blob.sha]
    data = named.to_bytes()
    liar.put(start, *_contents(tmp_path / "both", own), data)
    # then it is not told that the owner has it, and the checkpoint is not accepted
    asked = {"blobs": [[blob.sha, blob.size]]}
    assert liar.ask("POST", start, "missing", asked).json()["missing"] == [blob.sha]
    assert liar.save(start, sha_of(data)) == "incomplete"
    assert liar.save(start, owned.manifest) == "not_found"
    # and its next attempt has no checkpoint to read it from, under either name
    liar.lose(start)
    again = liar.started(job, (start,))
    assert again.checkpoint == ""
    for manifest in (owned.manifest, sha_of(data)):
        assert liar.ask("GET", again, f"manifests/{manifest}").status_code == 404
        links = liar.ask("POST", again, f"manifests/{manifest}/links", {"blobs": [blob.sha]})
        assert links.status_code == 404, links.text
    client.jobs.stop(job)


def _both(folder: Path, *sources: Path) -> Path:
    folder.mkdir()
    for number, source in enumerate(sources):
        (folder / f"{number}").write_bytes((source / "state").read_bytes())
    return folder


def _contents(folder: Path, blobs: list[Blob]) -> list[bytes]:
    """The bytes of these blobs: a file each, as all of them are small or alone."""
    found = {sha_of(file.read_bytes()): file.read_bytes() for file in folder.iterdir()}
    return [found[blob.sha] for blob in blobs]


def handed_on(client: Client, liar: FilesNode, honest: FilesNode, tmp_path: Path) -> tuple[str, Start, str]:
    """An honest node saved the state of a job, the liar saved an invented one after it, and the honest node goes on
    from that. The job, that attempt, and the honest checkpoint."""
    job = client.jobs.submit(["true"], **SAVING).id
    first = honest.started(job)
    good = honest.saves(first, state(tmp_path / "good", "computed"))
    liar.start().wait_welcome()
    honest.lose(first)
    second = liar.started(job)
    assert second.checkpoint == good
    invented = liar.saves(second, state(tmp_path / "invented", "invented"))
    liar.lose(second)

    def came_over() -> Start | None:
        for again in [start for start in liar.starts if start.job == job]:
            if (held := liar.held.get(again.attempt)) is not None and held.failure is None:
                liar.lose(again)
        return next((s for s in honest.starts if s.job == job and s.attempt != first.attempt), None)

    third = wait_for(came_over, "the honest node to have the job again")
    assert third.checkpoint == invented, "nothing is known against it yet"
    return job, third, good


def baited(client: Client, liar: FilesNode, honest: FilesNode) -> list[Start]:
    """Jobs that the liar is given, because the honest node has no room for all of them."""
    before = {start.attempt for start in (*liar.starts, *honest.starts)}
    jobs = [client.jobs.submit(["true"], **{**SMALL, "cpu_milli": 2_000}).id for _ in range(5)]

    def given(node: FilesNode) -> list[Start]:
        return [start for start in node.starts if start.job in jobs and start.attempt not in before]

    wait_for(lambda: given(liar) and len(given(liar) + given(honest)) == len(jobs), "all of them to be started")
    for start in given(honest):
        honest.end(start, EMPTY)
    return given(liar)


def redone(client: Client, honest: FilesNode, job: str, grown: Start, good: str) -> None:
    """What grew from the invented checkpoint is revoked, and redone from the last good one."""
    wait_for(lambda: any(d.attempt == grown.attempt for d in honest.discards), "what grew from it to be revoked")
    again = honest.started(job, tuple(s for s in honest.starts if s.job == job and s.fence <= grown.fence))
    assert again.checkpoint == good
    honest.end(again, EMPTY)
    view = client.jobs.wait(job, timeout_s=60)
    assert view.verdict == "succeeded" and view.accepted == again.attempt


@pytest.mark.spec("A12", "J8", "H3")
def test_what_grew_from_an_invented_checkpoint_is_redone_once_its_author_delivers_a_false_result(
    client: Client, liar: FilesNode, honest: FilesNode, tmp_path: Path
) -> None:
    job, grown, good = handed_on(client, liar, honest, tmp_path)
    # when the liar delivers a result in another job that is not what it printed
    liar.end(baited(client, liar, honest)[0], Result(sha256(b"never printed").hexdigest(), 13))
    # then its checkpoint is not believed any more
    redone(client, honest, job, grown, good)


@pytest.mark.spec("A12", "J8", "H3")
def test_what_grew_from_an_invented_checkpoint_is_redone_once_its_authors_exit_codes_set_it_aside(
    client: Client, liar: FilesNode, honest: FilesNode, tmp_path: Path
) -> None:
    job, grown, good = handed_on(client, liar, honest, tmp_path)
    # when other machines refute what the liar says of three jobs
    for _ in range(3):
        assert not any(discard.attempt == grown.attempt for discard in honest.discards), "programs fail by chance"
        bait, *others = baited(client, liar, honest)
        for start in others:
            liar.end(start, EMPTY)
        liar.end(bait, EXIT)
        honest.end(honest.started(bait.job), EMPTY)
        assert client.jobs.wait(bait.job, timeout_s=60).verdict == "succeeded"
    # then its checkpoint is not believed any more
    redone(client, honest, job, grown, good)
