"""Fetches an input from an address on the web, within limits of size and time (SPEC N13). Knows no job.

The URL is untrusted: it must not lead into the node's own network. Every name is resolved here, all its addresses are
checked, and the connection goes to exactly the address that was checked. A URL that the orchestrator signed may be
anywhere the network's operator says; it is requested before each try, opens one object for a short time, and is a
secret: it is neither shown nor stored.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx

from holdfast.model import Failure, FailureCode
from holdfast.node import linux
from holdfast.node.addresses import non_public

REDIRECTS_MAX = 5
CONNECT_S_MAX = 10.0
SILENT_S_MAX = 30.0
TRIES = 3
AGAIN_S = 1.0

Signed = Callable[[], Awaitable[str]]
FetchProgress = Callable[[int, int], None]


class Unfetched(Exception):
    """It could not be fetched; `failure` has the blame."""

    def __init__(self, code: FailureCode, says: str) -> None:
        super().__init__(says)
        self.failure = Failure(code, says)


async def fetch(
    url: str,
    into: Path,
    *,
    bytes_max: int,
    seconds_max: float,
    sha256: str = "",
    private: bool = False,
    signed: Signed | None = None,
    progress: FetchProgress = lambda done, total: None,
) -> str:
    """Write the content of the URL to a new file and return its hash. `private`: addresses inside this network are
    allowed. `signed`: asks the orchestrator for the signed form of `url`."""
    try:
        async with asyncio.timeout(seconds_max):
            found = await _tried(_Fetch(url, into, bytes_max, private, signed, progress))
    except TimeoutError:
        raise Unfetched(FailureCode.NETWORK, f"{_shown(url)} did not arrive within {seconds_max:.0f} s") from None
    if sha256 and found != sha256:
        into.unlink(missing_ok=True)
        raise Unfetched(FailureCode.DATA, f"{_shown(url)} has the hash {found}, not {sha256}")
    return found


class _Fetch(NamedTuple):
    """What is fetched, and its limits."""

    url: str
    into: Path
    bytes_max: int
    private: bool
    signed: Signed | None
    told: FetchProgress

    @property
    def shown(self) -> str:
        return _shown(self.url)


async def _tried(what: _Fetch) -> str:
    for _ in range(TRIES - 1):
        try:
            return await _fetch(what)
        except Unfetched as wrong:
            if wrong.failure.code is not FailureCode.NETWORK:
                raise
        await asyncio.sleep(AGAIN_S)
    return await _fetch(what)


async def _fetch(what: _Fetch) -> str:
    url = what.url if what.signed is None else await what.signed()
    # The operator's own store may be in the operator's own network; a redirect from it may not lead there.
    private = what.private or what.signed is not None
    timeout = httpx.Timeout(SILENT_S_MAX, connect=CONNECT_S_MAX)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as http:
        for _ in range(REDIRECTS_MAX + 1):
            request = await _request(http, url, private)
            try:
                answer = await http.send(request, stream=True)
            except httpx.HTTPError as wrong:
                raise Unfetched(FailureCode.NETWORK, f"{what.shown} cannot be reached: {wrong}") from None
            try:
                if answer.has_redirect_location:
                    url, private = urljoin(url, answer.headers["location"]), what.private
                    continue
                _check_status(what, answer.status_code)
                return await _save(what, answer)
            finally:
                await answer.aclose()
    raise Unfetched(FailureCode.DATA, f"{what.shown} redirects too many times")


async def _request(http: httpx.AsyncClient, url: str, private: bool) -> httpx.Request:
    """A request to the address that was checked, even if the name resolves to another one a moment later."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unfetched(FailureCode.DATA, f"{_shown(url)} is not an http:// or https:// URL")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, UnicodeError) as wrong:
        raise Unfetched(FailureCode.NETWORK, f"{parts.hostname} cannot be found: {wrong}") from None
    hosts = [str(info[4][0]).partition("%")[0] for info in found]
    # The machine's own addresses are read each time: interfaces come and go.
    own = () if private else linux.own_addresses()
    if not private and (kinds := [kind for host in hosts if (kind := non_public(host, own))]):
        raise Unfetched(
            FailureCode.DATA,
            f"{parts.hostname} is not public ({kinds[0]}): nothing is fetched from a node's own network",
        )
    host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    direct = parts._replace(netloc=f"{host}:{port}", fragment="").geturl()
    headers = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity"}
    extensions = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
    return http.build_request("GET", direct, headers=headers, extensions=extensions)


def _check_status(what: _Fetch, status: int) -> None:
    if status == 200:
        return
    # Access to the store is between the operator and the store: it is not the fault of the job's owner.
    denied = what.signed is not None and status in (401, 403)
    passing = denied or status in (408, 425, 429) or status >= 500
    raise Unfetched(FailureCode.NETWORK if passing else FailureCode.DATA, f"{what.shown} answered with status {status}")


async def _save(what: _Fetch, answer: httpx.Response) -> str:
    length = answer.headers.get("content-length", "")
    total = int(length) if length.isdigit() else 0
    digest = hashlib.sha256()
    done = 0
    try:
        with what.into.open("wb") as file:
            async for piece in answer.aiter_raw(1 << 20):
                done += len(piece)
                if max(done, total) > what.bytes_max:
                    raise Unfetched(FailureCode.DATA, f"{what.shown} is larger than {what.bytes_max} bytes")
                digest.update(piece)
                await asyncio.to_thread(file.write, piece)
                what.told(done, total)
            await asyncio.to_thread(os.fsync, file.fileno())
    except httpx.HTTPError as wrong:
        raise Unfetched(FailureCode.NETWORK, f"{what.shown} broke off after {done} bytes: {wrong}") from None
    if total and done != total:
        raise Unfetched(FailureCode.NETWORK, f"{what.shown} broke off after {done} of {total} bytes")
    return digest.hexdigest()


def _shown(url: str) -> str:
    """Without parts that may be secret: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"[:300]
