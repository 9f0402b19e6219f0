"""The operator socket of the agent: shows what is hosted, and accepts commands to host less (SPEC N8, N10). A socket in
the node's folder that only its own user can open; one JSON object each way.

    {"ask": "status"}
    {"do": "pause", "grace_ms": 60000}      {"do": "resume"}
    {"do": "offer", "cpu_milli": …, "memory_mib": …, "disk_mib": …, "gpus": …, "hours": "20:00-08:00"}
                                            missing fields stay as they are

Outside its hours a node is paused as if by its operator: what it hosts is moved within its grace.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.durable import durable_write
from holdfast.errors import Misconfigured, Misuse, Unreachable
from holdfast.model import Resources
from holdfast.node.core.events import OfferAsked
from holdfast.node.operator.hours import Hours, local, parse_hours, says, spoken
from holdfast.tasks import OwnedTasks

SOCKET = "agent.sock"
WISHES = "offer.json"
"""What the operator last asked for. Survives the agent."""
_LINE_BYTES_MAX = 1 << 20
_ANSWER_S_MAX = 10.0
LOOK_S = 1.0
"""How often the hours are checked against the clock, which may be set at any time."""
GRACE_MS_MAX = 7 * 24 * 3_600_000
AMOUNTS = ("cpu_milli", "memory_mib", "disk_mib", "gpus")

log = logging.getLogger("holdfast.node")


class OfferChange(msgspec.Struct, frozen=True, omit_defaults=True):
    paused: bool = False
    offered: dict[str, int] = {}
    hours: str | None = None
    """None: as configured."""


def read_wishes(home: Path) -> OfferChange:
    try:
        return msgspec.json.decode((home / WISHES).read_bytes(), type=OfferChange)
    except (OSError, msgspec.DecodeError):
        return OfferChange()


def limited(amounts: dict[str, int], usual: Resources, total: Resources) -> Resources:
    """What is offered: the operator's amounts, limited to what the machine has."""
    found = {name: min(amounts.get(name, getattr(usual, name)), getattr(total, name)) for name in AMOUNTS}
    return Resources(**found)


class OperatorSocket:
    """Serves the socket. `feed` gets the operator's changes; `snapshot` returns the status."""

    def __init__(
        self,
        home: Path,
        usual: Resources,
        total: Resources,
        feed: Callable[[OfferAsked], None],
        snapshot: Callable[[], dict[str, Any]],
        *,
        hours: str = "",
        grace_ms: int = 0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`hours`, `grace_ms`: as configured."""
        self._home = home
        self._usual = usual
        self._total = total
        self._feed = feed
        self._snapshot = snapshot
        self._wishes = read_wishes(home)
        self._grace_ms = grace_ms
        self._now_s = now_s
        self._configured = hours
        self._hours = self._hours_wished()
        self._within = True
        self._server: asyncio.Server | None = None
        self._tasks = OwnedTasks()

    async def open(self) -> None:
        """Open the socket and restore what the operator last asked for."""
        wishes = self._wishes
        self._within = self._hours.hold(local(self._now_s()))
        if wishes.paused or wishes.offered or not self._within:
            self._feed(OfferAsked(limited(wishes.offered, self._usual, self._total), self._paused, why=self._why()))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._home / SOCKET)
        line = socket.socket(socket.AF_UNIX)
        with _short(self._home) as folder:
            line.bind(f"{folder}/{SOCKET}")
        os.chmod(self._home / SOCKET, 0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=line, limit=_LINE_BYTES_MAX)
        self._tasks.start("watch the hours", self._look_at_the_clock())

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.close()

    def status(self) -> dict[str, Any]:
        """The node's status, with its hours."""
        now_s = self._now_s()
        hours = {"set": spoken(self._hours), "within": self._within, "says": says(self._hours, now_s)}
        return {**self._snapshot(), "paused_by_operator": self._wishes.paused, "hours": hours}

    # --- hours ---

    @property
    def _paused(self) -> bool:
        return self._wishes.paused or not self._within

    def _why(self) -> str:
        """Why it is paused, for people elsewhere; empty: by its operator, or not paused."""
        return "" if self._wishes.paused else self._outside()

    def _outside(self) -> str:
        return "" if self._within else says(self._hours, self._now_s())

    def _hours_wished(self) -> Hours:
        wished = self._configured if self._wishes.hours is None else self._wishes.hours
        try:
            return parse_hours(wished)
        except ValueError as wrong:
            log.error("the hours in %s cannot be read and are ignored: %s", self._home / WISHES, wrong)
            return Hours()

    async def _look_at_the_clock(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Pause or resume if the clock says so."""
        within = self._hours.hold(local(self._now_s()))
        if within == self._within:
            return
        paused_before = self._paused
        self._within = within
        log.info("%s", says(self._hours, self._now_s()) or "no hours are set any more")
        if self._paused != paused_before:
            self._feed(OfferAsked(paused=self._paused, grace_ms=self._grace_ms, why=self._why()))

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
                    self._wish(replace(self._wishes, paused=True), OfferAsked(paused=True, grace_ms=grace))
                case {"do": "resume"}:
                    event = OfferAsked(paused=not self._within, grace_ms=self._grace_ms, why=self._outside())
                    self._wish(replace(self._wishes, paused=False), event)
                case {"do": "offer", **amounts}:
                    self._offer(amounts)
                case _:
                    return {"error": "not understood"}
        except (ValueError, OSError) as wrong:
            return {"error": str(wrong)}
        return self.status()

    def _offer(self, amounts: dict[str, Any]) -> None:
        hours = amounts.pop("hours", None)
        if hours is not None:
            hours = spoken(parse_hours(str(hours)))
        for name, amount in amounts.items():
            if name not in AMOUNTS or type(amount) is not int or amount < 0:
                raise ValueError(f"{name} cannot be offered as {amount!r}")
        offered = {**self._wishes.offered, **amounts}
        now = limited(offered, self._usual, self._total)
        wishes = replace(self._wishes, offered=offered, hours=self._wishes.hours if hours is None else hours)
        if amounts:
            self._wish(wishes, OfferAsked(offered=now))
        else:
            self._write(wishes)
        self._hours = self._hours_wished()
        self.look()

    def _wish(self, wishes: OfferChange, event: OfferAsked) -> None:
        self._write(wishes)
        self._feed(event)

    def _write(self, wishes: OfferChange) -> None:
        """Store it before it is acknowledged."""
        durable_write(self._home / WISHES, msgspec.json.encode(wishes))
        self._wishes = wishes


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A short path to the folder: a socket path may have about 100 bytes."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)


def ask(home: Path, words: dict[str, Any]) -> dict[str, Any]:
    """Called by the operator's command: send one request and return the node's status after it."""
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
