"""The orchestrator itself: whether it leads, its self-check, and its metrics."""

import msgspec

from holdfast.orchestrator.api.call import ApiCall, Reply
from holdfast.orchestrator.api.context import ApiContext
from holdfast.wire.http import DoctorView


async def doctor(call: ApiCall) -> DoctorView:
    return await call.context.self_check()


async def healthz(call: ApiCall) -> Reply:
    """200 while it leads, else 503 with the reason. Names no job, node or address, because it needs no token."""
    status, body = health(call.context)
    return Reply(body, "application/json", status=status)


def health(context: ApiContext) -> tuple[int, bytes]:
    leader = context.leader
    says = "leading" if not leader.trouble else "not leading: the store cannot be used, or this is just starting"
    body = {"ok": not leader.trouble, "epoch": leader.epoch, "says": says}
    return 503 if leader.trouble else 200, msgspec.json.encode(body)


async def metrics(call: ApiCall) -> bytes:
    return call.context.metrics.text()
