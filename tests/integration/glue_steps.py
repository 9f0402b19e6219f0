"""What tests of a node's parts share: a story with a deadline, waiting for something, an order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.model import AttemptId
from holdfast.node.core.order import Order

ATTEMPT = AttemptId("att_00000000000000.1")
WAIT_S = 20.0


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), 60)

    asyncio.run(bounded())


async def until(holds: Callable[[], Any], what: str) -> Any:
    end = asyncio.get_running_loop().time() + WAIT_S
    while not (found := holds()):
        assert asyncio.get_running_loop().time() < end, f"{what} did not happen"
        await asyncio.sleep(0.005)
    return found


async def soon() -> None:
    """Everything that is due has run."""
    turns = 50
    while turns:
        turns -= 1
        await asyncio.sleep(0)


def an_order(attempt: str = ATTEMPT) -> Order:
    return Order(
        attempt=attempt,
        job="job_00000000000000",
        fence=7,
        argv=("true",),
        time_limit_ms=60_000,
        orphan_ms_max=60_000,
        stop_grace_ms=500,
        log_bytes_max=1 << 20,
    )
