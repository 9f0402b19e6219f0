"""Nodes: list, show, drain."""

from holdfast.kernel.events import DrainAsked
from holdfast.model import Entry, Node
from holdfast.orchestrator.api.call import ApiCall
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.refusals import decided
from holdfast.orchestrator.api.views import node_view
from holdfast.wire.http import NodeView


async def list_nodes(call: ApiCall) -> list[NodeView]:
    context = call.context
    return [_shown(context, node) for node in await context.queries.nodes()]


async def show_node(call: ApiCall, node: str) -> NodeView:
    context = call.context
    found = await context.queries.node(node)
    return _shown(context, found, await context.queries.recent_of_node(found.id))


async def drain_node(call: ApiCall, node: str, on: bool = True) -> NodeView:
    context = call.context
    found = await context.queries.node(node)
    decided(await context.leader.ask(DrainAsked(found.id, on, by=call.principal.name)))
    return _shown(context, await context.queries.node(found.id))


def _shown(context: ApiContext, node: Node, events: list[Entry] | None = None) -> NodeView:
    fleet = context.fleet
    held, load, silent_ms = fleet.held_by(node.id), fleet.load_of(node.id), fleet.silent_ms(node.id)
    return node_view(node, context.dated, held, fleet.is_connected(node.id), load, events or [], silent_ms)
