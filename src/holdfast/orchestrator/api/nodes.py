"""Nodes: list, show, drain."""

from holdfast.kernel.events import DrainAsked
from holdfast.model import Entry, Node
from holdfast.orchestrator.api.call import ApiCall
from holdfast.orchestrator.api.refusals import decided
from holdfast.orchestrator.api.views import node_view
from holdfast.orchestrator.api.visibility import JournalFilter, seen_entry, seen_node, sees_node
from holdfast.wire.http import NodeView


async def list_nodes(call: ApiCall) -> list[NodeView]:
    """A node operator sees those that joined with its tokens; a user sees no private facts of any."""
    nodes = await call.context.queries.nodes()
    return [_shown(call, node) for node in nodes if sees_node(call.principal, node)]


async def show_node(call: ApiCall, node: str) -> NodeView:
    found = await call.node(node)
    recent = await call.context.queries.recent_of_node(found.id)
    readable = JournalFilter(call)
    return _shown(call, found, [seen_entry(call.principal, one) for one in recent if await readable(one)])


async def drain_node(call: ApiCall, node: str, on: bool = True) -> NodeView:
    context = call.context
    found = await call.node(node)
    decided(await context.leader.ask(DrainAsked(found.id, on, by=call.principal.name)))
    return _shown(call, await call.node(found.id))


def _shown(call: ApiCall, node: Node, events: list[Entry] | None = None) -> NodeView:
    fleet = call.context.fleet
    held, load, silent_ms = fleet.held_by(node.id), fleet.load_of(node.id), fleet.silent_ms(node.id)
    view = node_view(node, call.context.dated, held, fleet.is_connected(node.id), load, events or [], silent_ms)
    return seen_node(call.principal, view, held)
