"""Whoever asks about hashes takes no memory for those that nobody stored, and not without end for the others."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

import holdfast
from holdfast.blobs import Blob, FolderStore, owned_key, sha_of
from holdfast.blobs.keys import client_uploader, owner_hash
from holdfast.blobs.manifest import ManifestLimits
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content import service
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.uploaders import Uploader

pytestmark = pytest.mark.spec("A12", "N5")

ANN = "ann"
SENDER = Uploader(client_uploader(ANN), "owner ann", ManifestLimits(), 1 << 40, 1 << 40)
HOLDFAST = Path(holdfast.__file__).parent
QUESTIONS, HASHES = 4, 500
BYTES_MAX = 64 * 1024
"""What questions about 2,000 hashes may leave behind; an entry for each would be half a megabyte."""


@pytest.fixture
def content(tmp_path: Path) -> ContentService:
    store = FolderStore(tmp_path)
    asyncio.run(store.probe())
    return ContentService(store)


def pledged(content: ContentService) -> int:
    return content.collector.pledged(owner_hash(ANN), 0)


def asked_about(question: int) -> list[Blob]:
    return [Blob(sha_of(b"%d %d" % (question, number)), 1) for number in range(HASHES)]


def test_hashes_that_nobody_stored_leave_nothing_in_memory(content: ContentService) -> None:
    async def story() -> None:
        tracemalloc.start()
        absent = [len(await content.missing(ANN, SENDER, asked_about(question))) for question in range(QUESTIONS)]
        gc.collect()
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{HOLDFAST}/*")])
        tracemalloc.stop()
        assert absent == [HASHES] * QUESTIONS
        assert pledged(content) == 0
        assert sum(trace.size for trace in ours.traces) < BYTES_MAX

    asyncio.run(story())


def test_a_blob_that_was_asked_about_under_a_wrong_size_is_not_pledged(content: ContentService) -> None:
    async def story() -> None:
        there = Blob(sha_of(b"there"), 5)
        await content.store.put(owned_key(owner_hash(ANN), there.sha), b"there")
        assert await content.missing(ANN, SENDER, [Blob(there.sha, 6)]) == [there.sha]
        assert pledged(content) == 0
        assert await content.missing(ANN, SENDER, [there]) == []
        assert pledged(content) == 1
        assert await content.missing(ANN, SENDER, [Blob(there.sha, 6)]) == [there.sha]
        assert pledged(content) == 1, "a wrong question takes back nothing that somebody was told"

    asyncio.run(story())


def test_an_owner_with_too_many_pledges_is_refused_and_others_are_not(
    content: ContentService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(service, "PLEDGED_MAX", 2)
        blobs = [Blob(sha_of(data), 1) for data in (b"a", b"b", b"c")]
        for blob, data in zip(blobs, (b"a", b"b", b"c"), strict=True):
            await content.store.put(owned_key(owner_hash(ANN), blob.sha), data)
        assert await content.missing(ANN, SENDER, blobs[:1]) == []
        assert await content.missing(ANN, SENDER, blobs[1:2]) == []
        for refused in (content.missing(ANN, SENDER, blobs[2:]), content.take(ANN, SENDER, sha_of(b"manifest"))):
            with pytest.raises(Unavailable) as wrong:
                await refused
            assert wrong.value.code == "over_quota"
        assert await content.missing("bob", SENDER, blobs[2:]) == [blobs[2].sha]

    asyncio.run(story())
