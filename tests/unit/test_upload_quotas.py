"""How much a node and a person may have stored before it counts, and after."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from holdfast.blobs.incoming import IncomingBytes
from holdfast.blobs.keys import Stored, client_uploader, incoming_key
from holdfast.blobs.manifest import Blob, ManifestLimits
from holdfast.model import Attempt, AttemptId, AttemptPhase, Instant, JobId, NodeId, Settings
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content import upload_counts
from holdfast.orchestrator.content.upload_counts import PERIODS, STALE_MS, UploadCounts
from holdfast.orchestrator.content.uploaders import ACCEPTED_MS, Uploader, attempt_uploader, owner_uploader

pytestmark = pytest.mark.spec("A12", "N13")

MIB = 1 << 20
SENDER = Uploader("att_abcd.1", "node ant", ManifestLimits(), 100, 50)
NOW_MS = 10**12


class Shelf:
    """A store of which only the incoming area matters."""

    def __init__(self) -> None:
        self.found: dict[str, Stored] = {}
        self.looked = 0

    def put(self, number: int, size: int, age_ms: int = 0, uploader: str = SENDER.id) -> str:
        key = incoming_key(uploader, f"{number:064x}")
        self.found[key] = Stored(key, size, NOW_MS - age_ms)
        return key

    def now_ms(self) -> int:
        return NOW_MS

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Stored]]:
        self.looked += 1
        for stored in list(self.found.values()):
            if stored.key.startswith(prefix):
                yield [stored]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.found[key]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def granted(counts: UploadCounts, *sizes: int, uploader: Uploader = SENDER) -> str:
    blobs = [Blob(f"{number:064x}", size) for number, size in enumerate(sizes)]
    try:
        asyncio.run(counts.grant(uploader, blobs))
    except Unavailable as refused:
        return refused.code
    return "granted"


def counting(shelf: Shelf) -> UploadCounts:
    return UploadCounts(shelf)  # type: ignore[arg-type]


# --- incoming ---


def test_urls_are_given_up_to_the_quota_and_for_not_a_byte_more(shelf: Shelf) -> None:
    counts = counting(shelf)
    assert granted(counts, 101) == "over_quota"
    assert granted(counts, 60, 40) == "granted"
    # nothing of it was sent: the store says so, and they may be asked for again
    assert granted(counts, 60, 40) == "granted"
    shelf.put(1, 60)
    assert granted(counts, 41) == "over_quota"
    assert granted(counts, 40) == "granted"


def test_what_was_sent_before_counts_and_others_have_their_own(shelf: Shelf) -> None:
    shelf.put(1, 70)
    shelf.put(2, 1_000, uploader="att_abcd.11")
    counts = counting(shelf)
    assert granted(counts, 31) == "over_quota"
    assert granted(counts, 30) == "granted"
    assert granted(counts, 100, uploader=msgspec.structs.replace(SENDER, id="att_other.1")) == "granted"


def test_the_store_is_read_again_only_if_the_quota_may_be_used_up(shelf: Shelf) -> None:
    counts = counting(shelf)
    for _ in range(10):
        assert granted(counts, 10) == "granted"
    assert shelf.looked == 1
    assert granted(counts, 10) == "granted"
    assert shelf.looked == 2


def test_what_lies_there_for_long_makes_room_the_oldest_first(shelf: Shelf) -> None:
    old = [shelf.put(number, 30, STALE_MS + number) for number in (1, 2)]
    young = shelf.put(3, 30, STALE_MS - 1)
    counts = counting(shelf)
    assert granted(counts, 10) == "granted"
    assert len(shelf.found) == 3, "there was room"
    assert granted(counts, 40) == "granted"
    assert sorted(shelf.found) == sorted([old[0], young])
    assert granted(counts, 71) == "over_quota"
    assert sorted(shelf.found) == [young]
    assert granted(counts, 70) == "granted"


def test_counts_that_are_forgotten_are_read_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_counts, "UPLOADERS_MAX", 2)
    counts = counting(shelf)
    for number in range(3):
        assert granted(counts, 10, uploader=msgspec.structs.replace(SENDER, id=f"att_abcd.{number}")) == "granted"
    assert len(counts._incoming) == 1


# --- accepted ---


def over(counts: UploadCounts, now_ms: int, uploader: Uploader = SENDER) -> bool:
    try:
        counts.need_accepted(uploader, now_ms)
    except Unavailable as refused:
        return refused.code == "over_quota"
    return False


def test_accepted_bytes_count_for_as_long_as_unused_content_is_kept(shelf: Shelf) -> None:
    counts = counting(shelf)
    for _ in range(2):
        counts.accepted(SENDER, 25, 0)
    assert not over(counts, 0)
    counts.accepted(SENDER, 1, ACCEPTED_MS // PERIODS)
    assert over(counts, ACCEPTED_MS // PERIODS)
    assert not over(counts, 0, msgspec.structs.replace(SENDER, id="att_other.1"))
    assert over(counts, ACCEPTED_MS - 1)
    assert not over(counts, ACCEPTED_MS), "the first ones do not count any more"
    counts.accepted(SENDER, 50, ACCEPTED_MS)
    assert over(counts, ACCEPTED_MS)
    assert len(counts._accepted[SENDER.id]) == 2


def test_nothing_is_remembered_of_who_had_nothing_accepted_for_long(shelf: Shelf) -> None:
    counts = counting(shelf)
    counts.accepted(SENDER, 0, 0)
    assert not counts._accepted
    counts.accepted(SENDER, 5, 0)
    other = msgspec.structs.replace(SENDER, id="att_other.1")
    counts.accepted(other, 5, ACCEPTED_MS - 1)
    assert set(counts._accepted) == {SENDER.id, other.id}
    counts.accepted(msgspec.structs.replace(SENDER, id="att_third.1"), 5, ACCEPTED_MS)
    assert set(counts._accepted) == {other.id, "att_third.1"}


# --- who may have how much ---


def an_attempt(phase: AttemptPhase) -> Attempt:
    return Attempt(AttemptId("att_abcd.1"), JobId("job_abcd"), NodeId("node_1"), 7, Instant(0), phase=phase)


def test_an_attempt_may_send_what_fits_on_its_jobs_disk_and_save_it_a_few_times() -> None:
    running = attempt_uploader(an_attempt(AttemptPhase.RUNNING), 1)
    assert (running.id, running.party, running.one_refusal) == ("att_abcd.1", "node node_1", True)
    assert running.limits == ManifestLimits.of_disk(MIB)
    whole = MIB + running.limits.manifest_bytes
    assert (running.incoming_bytes_max, running.accepted_bytes_max) == (2 * whole, 8 * whole)
    assert running.blob_bytes_max == 4 * MIB, "a chunk"
    # and a result that comes after many checkpoints need not wait
    ending = attempt_uploader(an_attempt(AttemptPhase.UPLOADING), 0)
    assert (ending.incoming_bytes_max, ending.accepted_bytes_max) == (2 * whole, 10 * whole)
    assert attempt_uploader(an_attempt(AttemptPhase.RUNNING), 100_000).blob_bytes_max == 64 * MIB


def test_a_person_may_send_what_the_settings_say() -> None:
    settings = msgspec.structs.replace(Settings.lan(), owner_incoming_bytes_max=1_000)
    uploader = owner_uploader("ann", settings)
    assert uploader == Uploader(client_uploader("ann"), "owner ann", ManifestLimits(), 1_000, 8_000)


@pytest.mark.parametrize(
    ("disk", "entries", "manifest_bytes"),
    [(0, 4_096, MIB), (1023, 4_096, MIB), (1024, 4_097, MIB + 256), (16 * MIB, 20_480, 5 * MIB),
     (257_949 * 1024, 262_045, 262_045 * 256), (258_048 * 1024, 262_144, 64 * MIB), (1 << 40, 500_000, 64 * MIB)],
)  # fmt: skip
def test_a_manifest_may_be_as_large_as_the_files_of_its_disk_need(disk: int, entries: int, manifest_bytes: int) -> None:
    limits = ManifestLimits.of_disk(disk)
    assert limits == ManifestLimits(manifest_bytes=manifest_bytes, entries=entries, blobs=entries, total_bytes=disk)


# --- what is arriving ---


def test_uploads_in_progress_count_until_they_end_and_stay_counted_if_they_are_kept() -> None:
    counts = IncomingBytes(lambda _: 0)
    assert not counts.known("a")
    assert counts.begin("a", 60, 100) and counts.known("a")
    assert not counts.begin("a", 41, 100)
    assert counts.begin("a", 40, 100) and counts.begin("b", 100, 100)
    counts.end("a", 60, stored=False)
    assert counts.begin("a", 60, 100)
    counts.end("a", 60, stored=True)
    counts.end("a", 40, stored=True)
    assert not counts.begin("a", 1, 100)
    counts.measured("a", 30)
    assert counts.begin("a", 70, 100)
    counts.measured("a", 30)
    assert not counts.begin("a", 1, 100), "what is arriving is not measured"


def test_only_those_that_are_sending_are_remembered_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.blobs.incoming.UPLOADERS_MAX", 2)
    counts = IncomingBytes(lambda _: 0)
    for name in "abc":
        assert counts.begin(name, 1, 10)
    counts.end("a", 1, stored=True)
    assert [counts.known(name) for name in "abc"] == [False, True, True]
