"""Answers of a store that was taken over: no byte of them is handed on unverified, and none is waited for in vain."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import httpx
import pytest

from holdfast.blobs import CHUNK_BYTES, Blob, sha_of
from holdfast.blobs.errors import LinkRefused, Mismatch
from holdfast.blobs.lines import INTO
from holdfast.blobs.transfer import TransferPatience, download

pytestmark = pytest.mark.spec("N13", "J10")

DATA = os.urandom(100_000)
BLOB = Blob(sha_of(DATA), len(DATA))
QUICK = TransferPatience(give_up_s=20, first_wait_s=0.001, longest_wait_s=0.002)


class AnyDoor:
    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return [b.sha for b in blobs]

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return {b.sha: f"http://127.0.0.1:1/{b.sha}" for b in blobs}


def fetch(answer: Any) -> list[bytes | bytearray]:
    """What is handed on."""
    handed: list[bytes | bytearray] = []

    async def story() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), follow_redirects=True) as http:
            await download([BLOB], lambda _, data: handed.append(bytes(data.data)), AnyDoor(), http, patience=QUICK)

    try:
        asyncio.run(story())
    except Mismatch:
        assert not handed
        raise
    return handed


def shas(handed: list[bytes | bytearray]) -> list[str]:
    """Short, because the whole of random bytes in a failure message takes a minute to write."""
    return [sha_of(data) for data in handed]


def saying(data: bytes) -> httpx.Response:
    async def body() -> Any:
        yield data

    return httpx.Response(200, content=body())


def test_what_is_right_is_handed_on() -> None:
    assert shas(fetch(lambda _: saying(DATA))) == [BLOB.sha]


@pytest.mark.parametrize("evil", [bytes(len(DATA)), DATA[:-1], DATA + b"x", b""])
def test_what_is_not_is_tried_again_and_never_handed_on(evil: bytes) -> None:
    answers = [evil, evil, DATA]
    assert shas(fetch(lambda _: saying(answers.pop(0)))) == [BLOB.sha]
    with pytest.raises(Mismatch):
        fetch(lambda _: saying(evil))


def test_endless_bytes_are_cut_off() -> None:
    sent = 0

    async def endless(request: httpx.Request) -> httpx.Response:
        async def body() -> Any:
            nonlocal sent
            while True:
                sent += 1 << 16
                yield bytes(1 << 16)

        return httpx.Response(200, content=body())

    with pytest.raises(Mismatch):
        fetch(endless)
    assert sent < CHUNK_BYTES


def test_redirects_are_not_followed() -> None:
    asked: list[str] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(302, headers={"location": "http://127.0.0.1:1/secret"})

    with pytest.raises(LinkRefused):
        fetch(elsewhere)
    assert set(asked) == {f"/{BLOB.sha}"}


class Lending(httpx.AsyncBaseTransport):
    """Puts every answer into the memory that it was lent, and remembers whose that was."""

    def __init__(self, answers: dict[str, list[bytes]]) -> None:
        self.answers = answers
        self.lent: list[object] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        room: memoryview = request.extensions[INTO]
        self.lent.append(room.obj)
        data = self.answers[request.url.path[1:]].pop(0)
        room[: len(data)] = data

        async def body() -> Any:
            yield room[: len(data)]

        return httpx.Response(200, content=body())


def test_lent_memory_is_used_again_once_all_is_written_and_never_after_a_failure() -> None:
    """A thread of a request that failed may still write there."""
    datas = [os.urandom(1000) for _ in range(3)]
    blobs = [Blob(sha_of(data), 1000) for data in datas]
    lines = Lending({blob.sha: [data] for blob, data in zip(blobs, datas, strict=True)})
    lines.answers[blobs[1].sha].insert(0, bytes(1000))
    written: dict[str, str] = {}

    async def story() -> None:
        async with httpx.AsyncClient(transport=lines) as http:
            patience = TransferPatience(give_up_s=20, first_wait_s=0.001, longest_wait_s=0.002, at_once=1)
            await download(
                blobs, lambda sha, found: written.update({sha: sha_of(found.data)}), AnyDoor(), http, patience=patience
            )

    asyncio.run(story())
    assert written == {blob.sha: blob.sha for blob in blobs}
    first, wrong, again, last = lines.lent
    assert wrong is first, "what was written is free"
    assert again is not wrong, "what failed is not"
    assert last is again
