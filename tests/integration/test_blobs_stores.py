"""Every store keeps the same promises: a folder, an S3 server without conditional writes, and a strict one."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from blob_stores import OWNER, UPLOADER, FolderDoor, StoreDoor, moto, rclone
from msgspec.structs import replace

from holdfast.blobs import (
    Blob,
    BlobStore,
    FolderStore,
    LinkSigner,
    Manifest,
    ManifestLimits,
    accept,
    incoming_key,
    missing,
    owned_key,
    owner_hash,
    scan,
    sha_of,
)
from holdfast.blobs.errors import (
    BlobExists,
    BlobMissing,
    BlobStoreError,
    Damaged,
    LinkRefused,
    ManifestTooLarge,
    Mismatch,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreSlow,
)
from holdfast.blobs.s3 import S3Place, S3Store
from holdfast.blobs.source import FolderSource
from holdfast.blobs.store import Condition
from holdfast.testing.processes import free_port

pytestmark = pytest.mark.spec("J1", "N13")

T = TypeVar("T")

BOB = owner_hash("bob")


@pytest.fixture(scope="module")
def rclone_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    with rclone(tmp_path_factory.mktemp("rclone")) as place:
        yield place


@pytest.fixture(scope="module")
def moto_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    with moto(tmp_path_factory.mktemp("moto")) as place:
        yield place


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FolderDoor]:
    door = FolderDoor(tmp_path_factory.mktemp("folder") / "store")
    door.start()
    yield door
    door.stop()


@pytest.fixture(params=["folder", "rclone", "moto"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


CHECKS_ADDRESSES = pytest.mark.parametrize("kind", ["folder", "rclone"])
"""The strict server is strict about conditions and looks at no signature."""


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest) -> BlobStore:
    if kind == "folder":
        return request.getfixturevalue("door").store
    return S3Store(request.getfixturevalue(f"{kind}_place"))


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


async def keys_of(store: BlobStore, prefix: str) -> dict[str, int]:
    return {s.key: s.size async for batch in store.list(prefix) for s in batch}


def fresh(size: int = 1000) -> tuple[str, bytes]:
    data = os.urandom(size)
    return sha_of(data), data


# --- what every store does ---


@pytest.mark.spec("J6", "J7")
def test_what_is_not_what_its_name_says_is_named_set_aside_and_replaced(store: BlobStore) -> None:
    sha, data = fresh()
    key = owned_key(OWNER, sha)
    found: list[str] = []
    store.on_damage = found.append

    async def story() -> None:
        assert await store.scrub(key) is Condition.ABSENT
        await store.put(key, data)
        assert await store.scrub(key) is Condition.SOUND and found == []
        for wrong in (bytes([data[0] ^ 1]) + data[1:], data[:-1], b""):
            # whoever reads it gets an error, never the wrong bytes
            await store.put(key, wrong)
            with pytest.raises(Damaged):
                await store.get(key, bytes_max=2000)
            # and from then on it counts as missing, so that it is sent again
            assert await store.head(key) is None
            assert await store.scrub(key) is not Condition.SOUND
            await store.put(key, data)
            assert await store.get(key, bytes_max=2000) == data
        assert found == [key] * 3
        # a scrub finds the same
        await store.put(key, data + b"more")
        assert await store.scrub(key) is Condition.DAMAGED
        assert await store.head(key) is None and len(found) == 4
        # content that is on its way is not judged by this
        with pytest.raises(LinkRefused):
            await store.scrub(incoming_key(UPLOADER, sha))
        await store.delete([key])

    run(story())


def test_the_probe_finds_out_whether_create_only_holds(store: BlobStore, kind: str) -> None:
    assert run(store.probe()).create_only is {"folder": True, "rclone": False, "moto": True}[kind]
    assert run(keys_of(store, "incoming/probe/")) == {}, "it leaves nothing behind"


def test_bytes_come_back_and_keys_are_listed_and_deleted(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        key = incoming_key(UPLOADER, sha)
        assert await store.head(key) is None
        with pytest.raises(BlobMissing) as missing:
            await store.get(key, bytes_max=10_000)
        assert missing.value.code == "blob_missing"
        await store.put(key, data)
        assert await store.get(key, bytes_max=1000) == data
        with pytest.raises(Mismatch):
            await store.get(key, bytes_max=999)
        there = await store.head(key)
        assert there is not None and there.size == 1000
        assert abs(there.modified_ms - time.time() * 1000) < 60_000
        assert (await keys_of(store, f"incoming/{UPLOADER}/"))[key] == 1000
        assert key not in await keys_of(store, "owned/")
        await store.delete([key, incoming_key(UPLOADER, sha_of(b"never there"))])
        assert await store.head(key) is None

    run(story())


def test_only_keys_are_opened(store: BlobStore) -> None:
    async def story() -> None:
        for key in ("../outside", "/etc/passwd", "owned/x", "incoming/a/../../x", ""):
            with pytest.raises(LinkRefused):
                await store.put(key, b"x")
            with pytest.raises(LinkRefused):
                await store.get(key, bytes_max=1)
            with pytest.raises(LinkRefused):
                await store.sign("GET", key, size=1, expires_s=60)

    run(story())


@CHECKS_ADDRESSES
def test_signed_addresses_open_one_key_for_one_method(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        key = incoming_key(UPLOADER, sha)
        put = await store.sign("PUT", key, size=len(data), expires_s=60)
        get = await store.sign("GET", key, size=len(data), expires_s=60)
        other = incoming_key(UPLOADER, sha_of(b"other"))
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(get)).status_code == 404
            assert (await http.put(put, content=data)).status_code == 200
            assert (await http.get(get)).content == data
            assert (await http.get(put)).status_code >= 400
            assert (await http.get(get.replace(key, other))).status_code >= 400
        assert await store.get(key, bytes_max=1000) == data

    run(story())


@CHECKS_ADDRESSES
def test_an_expired_address_opens_nothing(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        key = incoming_key(UPLOADER, sha)
        await store.put(key, data)
        short = await store.sign("GET", key, size=len(data), expires_s=1)
        deadline = time.monotonic() + 60
        async with httpx.AsyncClient(timeout=60) as http:
            while (await http.get(short)).status_code < 400:
                assert time.monotonic() < deadline, "it still opens"
                await asyncio.sleep(0.2)

    run(story())


# --- promotion ---


def test_promotion_makes_verified_bytes_the_owners(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        source, target = incoming_key(UPLOADER, sha), owned_key(OWNER, sha)
        await store.put(source, data)
        await store.promote(source, target, len(data))
        assert await store.get(target, bytes_max=1000) == data
        assert await store.head(source) is None
        with pytest.raises(BlobMissing):
            await store.promote(source, target, len(data))
        # and once more from another attempt: the same content, the same key
        await store.put(source, data)
        await store.promote(source, target, len(data))
        assert await store.get(target, bytes_max=1000) == data
        assert await store.head(source) is None

    run(story())


@pytest.mark.spec("J10")
def test_bytes_that_are_not_what_their_name_says_are_never_owned(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        source, target = incoming_key(UPLOADER, sha), owned_key(OWNER, sha)
        for evil in (bytes(1000), data[:-1], data + b"x", b""):
            await store.put(source, evil)
            with pytest.raises(Mismatch):
                await store.promote(source, target, len(data))
            assert await store.head(target) is None
        await store.put(source, data)
        with pytest.raises(Mismatch):
            await store.promote(source, target, len(data) + 1)

    run(story())


def test_nothing_is_promoted_under_another_name(store: BlobStore) -> None:
    async def story() -> None:
        sha, data = fresh()
        source = incoming_key(UPLOADER, sha)
        await store.put(source, data)
        for target in (owned_key(OWNER, sha_of(b"other")), source, "owned/x"):
            with pytest.raises(LinkRefused):
                await store.promote(source, target, len(data))
        with pytest.raises(LinkRefused):
            await store.promote(owned_key(BOB, sha), owned_key(OWNER, sha), len(data))

    run(story())


@pytest.mark.spec("J10")
def test_whoever_overwrites_while_it_is_verified_changes_nothing(store: BlobStore) -> None:
    """Given an uploader that keeps overwriting its blob with junk, then what is owned is right or not there."""

    async def story() -> None:
        for _ in range(5):
            sha, data = fresh(200_000)
            source, target = incoming_key(UPLOADER, sha), owned_key(OWNER, sha)
            await store.put(source, data)
            over = asyncio.Event()

            async def overwrite(source: str = source, data: bytes = data, over: asyncio.Event = over) -> None:
                while not over.is_set():
                    await store.put(source, bytes(len(data)))
                    await store.put(source, data)

            meddler = asyncio.create_task(overwrite())
            for _ in range(5):
                with contextlib.suppress(Mismatch, BlobMissing):
                    await store.promote(source, target, len(data))
            over.set()
            await meddler
            if await store.head(target) is not None:
                assert await store.get(target, bytes_max=len(data)) == data

    run(story())


# --- taking over a whole upload ---


@pytest.fixture
def sent(tmp_path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """A manifest and all blobs of it, itself among them."""
    salt = os.urandom(8).hex()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(5_000_000))
    for i in range(20):
        (folder / f"small{i}").write_text(f"{salt} {i}")
    manifest = scan(folder).manifest
    source = FolderSource(folder, manifest)
    blobs = {b.sha: bytes(source.read(b.sha)) for b in manifest.blobs}
    return manifest, {**blobs, manifest.name: manifest.to_bytes()}


def test_an_upload_is_accepted_whole_or_says_what_it_lacks(
    store: BlobStore, sent: tuple[Manifest, dict[str, bytes]]
) -> None:
    manifest, bytes_of = sent

    async def story() -> None:
        with pytest.raises(BlobMissing):
            await accept(store, UPLOADER, OWNER, manifest.name)
        await store.put(incoming_key(UPLOADER, manifest.name), bytes_of[manifest.name])
        for number, blob in enumerate(manifest.blobs):
            answer = await accept(store, UPLOADER, OWNER, manifest.name)
            assert answer.missing == manifest.blobs[number:]
            assert await store.head(owned_key(OWNER, manifest.name)) is None, "the manifest comes last"
            await store.put(incoming_key(UPLOADER, blob.sha), bytes_of[blob.sha])
        told: list[int] = []
        answer = await accept(store, UPLOADER, OWNER, manifest.name, progress=told.append)
        assert answer.missing == () and answer.manifest == manifest.outline and sum(told) == manifest.blob_bytes
        for sha, data in bytes_of.items():
            assert await store.get(owned_key(OWNER, sha), bytes_max=len(data)) == data
            assert await store.head(incoming_key(UPLOADER, sha)) is None
        again = await accept(store, UPLOADER, OWNER, manifest.name)
        assert again.missing == () and again.promoted_bytes == 0

    run(story())


@pytest.mark.spec("J10")
def test_a_tampered_blob_counts_as_missing_and_is_thrown_away(
    store: BlobStore, sent: tuple[Manifest, dict[str, bytes]]
) -> None:
    manifest, bytes_of = sent

    async def story() -> None:
        for sha, data in bytes_of.items():
            await store.put(incoming_key(UPLOADER, sha), data)
        victim = manifest.blobs[0]
        await store.put(incoming_key(UPLOADER, victim.sha), bytes(victim.size))
        answer = await accept(store, UPLOADER, OWNER, manifest.name)
        assert answer.missing == (victim,)
        assert await store.head(owned_key(OWNER, victim.sha)) is None
        assert await missing(store, UPLOADER, OWNER, [victim]) == [victim.sha]
        await store.put(incoming_key(UPLOADER, victim.sha), bytes_of[victim.sha])
        assert (await accept(store, UPLOADER, OWNER, manifest.name)).missing == ()

    run(story())


def test_a_tampered_manifest_counts_as_missing_and_is_thrown_away(
    store: BlobStore, sent: tuple[Manifest, dict[str, bytes]]
) -> None:
    """Its author may be honest: bytes can be damaged on their way."""
    manifest, bytes_of = sent

    async def story() -> None:
        for sha, data in bytes_of.items():
            await store.put(incoming_key(UPLOADER, sha), data)
        await store.put(incoming_key(UPLOADER, manifest.name), bytes_of[manifest.name] + b" ")
        answer = await accept(store, UPLOADER, OWNER, manifest.name)
        assert [blob.sha for blob in answer.missing] == [manifest.name]
        assert await store.head(incoming_key(UPLOADER, manifest.name)) is None
        await store.put(incoming_key(UPLOADER, manifest.name), bytes_of[manifest.name])
        accepted = await accept(store, UPLOADER, OWNER, manifest.name)
        assert (accepted.manifest, accepted.missing) == (manifest.outline, ())

    run(story())


def test_a_manifest_that_is_too_large_is_refused_before_it_is_read(
    store: BlobStore, sent: tuple[Manifest, dict[str, bytes]]
) -> None:
    manifest, bytes_of = sent
    size = len(bytes_of[manifest.name])

    async def story() -> None:
        for sha, data in bytes_of.items():
            await store.put(incoming_key(UPLOADER, sha), data)
        with pytest.raises(ManifestTooLarge):
            await accept(store, UPLOADER, OWNER, manifest.name, limits=ManifestLimits(manifest_bytes=size - 1))
        fits = ManifestLimits(manifest_bytes=size)
        assert (await accept(store, UPLOADER, OWNER, manifest.name, limits=fits)).missing == ()

    run(story())


def test_nothing_is_sent_twice_and_owners_do_not_share(
    store: BlobStore, sent: tuple[Manifest, dict[str, bytes]]
) -> None:
    manifest, bytes_of = sent

    async def story() -> None:
        everything = [b.sha for b in manifest.blobs]
        assert await missing(store, UPLOADER, OWNER, manifest.blobs) == everything
        first = manifest.blobs[0]
        await store.put(incoming_key(UPLOADER, first.sha), bytes_of[first.sha][:-1])
        assert await missing(store, UPLOADER, OWNER, manifest.blobs) == everything, "half a blob is none"
        for sha, data in bytes_of.items():
            await store.put(incoming_key(UPLOADER, sha), data)
        assert await missing(store, UPLOADER, OWNER, manifest.blobs) == []
        await accept(store, UPLOADER, OWNER, manifest.name)
        assert await missing(store, "att_other.1", OWNER, manifest.blobs) == []
        assert await missing(store, "att_other.1", BOB, manifest.blobs) == everything
        for refused in (None, lambda: False):
            hold = partial(_held, first.sha, refused)
            assert await missing(store, "att_x.1", OWNER, manifest.blobs, hold) == [first.sha]
            answer = await accept(store, "att_x.1", OWNER, manifest.name, hold=hold)
            assert answer.missing == (first,), "what must not be relied on just now is sent again"

    run(story())


def _held(
    refused: str, answer: Callable[[], bool] | None, sha: str
) -> "contextlib.nullcontext[Callable[[], bool] | None]":
    """One hash cannot be relied on: when the look begins (None), or when it ends."""
    return contextlib.nullcontext(answer if sha == refused else lambda: True)


# --- the folder store alone ---


def test_create_only_replaces_nothing(door: FolderDoor) -> None:
    sha, data = fresh()
    key = incoming_key(UPLOADER, sha)
    run(door.store.put(key, data, create_only=True))
    with pytest.raises(BlobExists):
        run(door.store.put(key, b"other", create_only=True))
    assert run(door.store.get(key, bytes_max=1000)) == data


def test_what_a_loss_of_power_tore_is_sent_again(tmp_path: Path, sent: tuple[Manifest, dict[str, bytes]]) -> None:
    """Given incoming blobs of the right size whose bytes never reached the disk, then they count as missing."""
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    manifest, bytes_of = sent
    for sha, data in bytes_of.items():
        run(store.put(incoming_key(UPLOADER, sha), data))
    for blob in manifest.blobs:
        (tmp_path / "s" / incoming_key(UPLOADER, blob.sha)).write_bytes(bytes(blob.size))
    assert run(accept(store, UPLOADER, OWNER, manifest.name)).missing == manifest.blobs
    assert run(missing(store, UPLOADER, OWNER, manifest.blobs)) == [b.sha for b in manifest.blobs]


# --- trouble, by name ---


def test_an_s3_server_that_is_not_there_is_gone(rclone_place: S3Place) -> None:
    store = S3Store(replace(rclone_place, endpoint=f"http://127.0.0.1:{free_port()}", timeout_s=3))
    with pytest.raises(StoreGone, match="nobody answers"):
        run(store.probe())


def test_wrong_credentials_are_named_and_not_shown(rclone_place: S3Place) -> None:
    store = S3Store(replace(rclone_place, secret_access_key="wrong-secret-0000"))
    with pytest.raises(StoreRefused) as caught:
        run(store.probe())
    assert caught.value.code == "store_refused" and "wrong-secret" not in str(caught.value)
    assert rclone_place.secret_access_key not in repr(rclone_place)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (507, "Whatever", StoreFull), (503, "QuotaExceeded", StoreFull), (503, "SlowDown", StoreGone),
        (403, "RequestTimeTooSkewed", StoreGone),
        (403, "AccessDenied", StoreRefused), (400, "NoSuchBucket", StoreRefused), (500, "InternalError", StoreGone),
    ],
)  # fmt: skip
def test_an_s3_servers_answers_have_names(status: int, code: str, error: type[BlobStoreError]) -> None:
    with answering(status, f"<Error><Code>{code}</Code></Error>") as url:
        store = S3Store(
            S3Place(bucket="b", endpoint=url, access_key_id="k" * 12, secret_access_key="s" * 12, timeout_s=60)
        )
        with pytest.raises(error):
            run(store.put(incoming_key(UPLOADER, sha_of(b"")), b"x"))


def test_an_s3_server_that_does_not_answer_is_slow() -> None:
    with answering(0, "") as url:
        store = S3Store(
            S3Place(bucket="b", endpoint=url, access_key_id="k" * 12, secret_access_key="s" * 12, timeout_s=0.5)
        )
        with pytest.raises(StoreSlow):
            run(store.put(incoming_key(UPLOADER, sha_of(b"")), b"x"))


@contextlib.contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """A server that says the same to everybody; with status 0 it says nothing."""
    import http.server
    import threading

    over = threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if not status:
                over.wait(60)
                return
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def test_the_door_of_a_store_keeps_keys_apart(store: BlobStore) -> None:
    """What is written lies with the uploader, what is read lies with the owner."""
    door = StoreDoor(store)
    blob = Blob(sha_of(b"x"), 1)
    written, read = run(door.links("PUT", [blob])), run(door.links("GET", [blob]))
    assert incoming_key(UPLOADER, blob.sha) in written[blob.sha]
    assert owned_key(OWNER, blob.sha) in read[blob.sha]


def test_signers_of_different_secrets_do_not_open_each_others_doors(door: FolderDoor) -> None:
    sha, data = fresh()
    key = incoming_key(UPLOADER, sha)
    forged = LinkSigner(b"f" * 32, f"http://127.0.0.1:{door.port}/blobs").make(
        "PUT", key, len(data), int(time.time()) + 60
    )
    assert httpx.put(forged, content=data, timeout=60).status_code == 403
    assert run(door.store.head(key)) is None
