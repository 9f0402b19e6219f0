"""The operator's line to the agent on the same machine: shows what is hosted, and takes orders to host less (SPEC N8,
N10). A socket in the node's folder, which only its own user can open; one JSON object each way.

    {"ask": "status"}
    {"do": "pause", "grace_ms": 60000}      {"do": "resume"}
    {"do": "offer", "cpu_milli": …, "memory_mib": …, "disk_mib": …, "gpus": …}     what is missing stays as it is
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import Misconfigured, Misuse, Unreachable
from holdfast.model import Resources
from holdfast.node.core.stimuli import OfferAsked
from holdfast.node.home import write_durably

SOCKET = "agent.sock"
WISHES = "offer.json"
"""What the operator last asked for: it outlives the agent."""
_LINE_BYTES_MAX = 1 << 20
_ANSWER_S_MAX = 10.0
GRACE_MS_MAX = 7 * 24 * 3_600_000
AMOUNTS = ("cpu_milli", "memory_mib", "disk_mib", "gpus")


class Wishes(msgspec.Struct, frozen=True, omit_defaults=True):
    paused: bool = False
    offered: dict[str, int] = {}


def read_wishes(home: Path) -> Wishes:
    try:
        return msgspec.json.decode((home / WISHES).read_bytes(), type=Wishes)
    except (OSError, msgspec.DecodeError):
        return Wishes()


def limited(amounts: dict[str, int], usual: Resources, total: Resources) -> Resources:
    """What is offered: what the operator says, at most what is there."""
    found = {name: min(amounts.get(name, getattr(usual, name)), getattr(total, name)) for name in AMOUNTS}
    return Resources(**found)


class Desk:
    """Serves the socket. `feed` gets what the operator wants; `snapshot` is what is shown."""

    def __init__(
        self,
        home: Path,
        usual: Resources,
        total: Resources,
        feed: Callable[[OfferAsked], None],
        snapshot: Callable[[], dict[str, Any]],
    ) -> None:
        self._home = home
        self._usual = usual
        self._total = total
        self._feed = feed
        self._snapshot = snapshot
        self._wishes = read_wishes(home)

    async def open(self) -> asyncio.Server:
        """Take up where the last agent was told to stop."""
        wishes = self._wishes
        if wishes.paused or wishes.offered:
            self._feed(OfferAsked(limited(wishes.offered, self._usual, self._total), wishes.paused))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._home / SOCKET)
        line = socket.socket(socket.AF_UNIX)
        with _short(self._home) as folder:
            line.bind(f"{folder}/{SOCKET}")
        os.chmod(self._home / SOCKET, 0o600)
        return await asyncio.start_unix_server(self._serve, sock=line, limit=_LINE_BYTES_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S_MAX):
                answer = self._answer(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            match json.loads(line):
                case {"ask": "status"}:
                    pass
                case {"do": "pause", "grace_ms": int(grace)} if 0 <= grace <= GRACE_MS_MAX:
                    self._wish(Wishes(True, self._wishes.offered), OfferAsked(paused=True, grace_ms=grace))
                case {"do": "resume"}:
                    self._wish(Wishes(False, self._wishes.offered), OfferAsked(paused=False))
                case {"do": "offer", **amounts}:
                    self._offer(amounts)
                case _:
                    return {"error": "not understood"}
        except (ValueError, OSError) as wrong:
            return {"error": str(wrong)}
        return self._snapshot()

    def _offer(self, amounts: dict[str, Any]) -> None:
        for name, amount in amounts.items():
            if name not in AMOUNTS or type(amount) is not int or amount < 0:
                raise ValueError(f"{name} cannot be offered as {amount!r}")
        offered = {**self._wishes.offered, **amounts}
        now = limited(offered, self._usual, self._total)
        self._wish(Wishes(self._wishes.paused, offered), OfferAsked(offered=now))

    def _wish(self, wishes: Wishes, event: OfferAsked) -> None:
        """Written down first: what was acknowledged is not forgotten."""
        write_durably(self._home / WISHES, msgspec.json.encode(wishes))
        self._wishes = wishes
        self._feed(event)


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The folder by a name of few letters: a socket's name has a hundred at most."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)


def ask(home: Path, words: dict[str, Any]) -> dict[str, Any]:
    """From the operator's side: one question or order, and the node's state after it."""
    try:
        with _short(home) as folder, socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ANSWER_S_MAX)
            line.connect(f"{folder}/{SOCKET}")
            line.sendall(json.dumps(words).encode() + b"\n")
            answer = json.loads(line.makefile("rb").readline(_LINE_BYTES_MAX))
    except PermissionError:
        raise Misconfigured(f"the node in {home} belongs to another user", hint="Ask as that user.") from None
    except (OSError, ValueError):
        raise Unreachable(
            f"no node runs in {home}", hint="Start it with `holdfast node`, or name its folder with --home."
        ) from None
    if "error" in answer:
        raise Misuse(f"the node refuses: {answer['error']}")
    return answer
