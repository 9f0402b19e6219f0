"""What each role sees of nodes, attempts and journal entries. Removes from a view what the caller may not see; makes no
views itself.

    network operator   everything
    node operator      its own nodes, without the jobs of others: neither their ids nor their failures
    user               its own jobs; of every node what is needed to choose one, and nothing about its owner
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from holdfast.model import Attempt, Entry, Node, RevokeCause, Role
from holdfast.model.cause_text import entry_text
from holdfast.orchestrator.api.call import ApiCall, Principal
from holdfast.wire.http import AttemptView, NodeView

HIDDEN = "(its operator knows more)"
REMEMBERED_MAX = 10_000
"""Jobs and nodes that one reader of the journal remembers."""
_SAYS_WHY_AWAY = (RevokeCause.AWAY_BEFORE_START, RevokeCause.AWAY_BEFORE_MOVE)
"""Causes whose sentence repeats what a node said of itself."""


def sees_node(principal: Principal, node: Node) -> bool:
    return principal.operates is None or node.operator == principal.operates


class JournalFilter:
    """Whether the caller of a request may read an entry of the journal. Remembers what it looked up."""

    def __init__(self, call: ApiCall) -> None:
        self._queries = call.context.queries
        self._principal = call.principal
        self._readable: dict[str, bool] = {}

    async def __call__(self, entry: Entry) -> bool:
        principal = self._principal
        if principal.role is Role.NETWORK_OPERATOR:
            return True
        if principal.role is Role.NODE_OPERATOR:
            return entry.job is None and entry.node is not None and await self._known(entry.node, self._operates)
        return entry.job is not None and await self._known(entry.job, self._owns)

    async def _known(self, id: str, look: Callable[[str], Awaitable[bool]]) -> bool:
        if id not in self._readable:
            if len(self._readable) >= REMEMBERED_MAX:
                self._readable.clear()
            self._readable[id] = await look(id)
        return self._readable[id]

    async def _owns(self, job: str) -> bool:
        found = (await self._queries.known_jobs([job])).get(job)
        return found is not None and found.owner == self._principal.sees

    async def _operates(self, node: str) -> bool:
        found = await self._queries.ask(self._queries.store.node, node)
        return found is not None and sees_node(self._principal, found)


def seen_node(principal: Principal, view: NodeView, held: Sequence[Attempt]) -> NodeView:
    """The node as the caller may see it."""
    if principal.role is Role.NETWORK_OPERATOR:
        return view
    mine = [attempt.id for attempt in held if attempt.owner == principal.name]
    view = replace(view, attempts=mine)
    if principal.role is Role.NODE_OPERATOR:
        return view
    return replace(view, cause="", hostname="", load={}, silent_ms=None, draining_because="", operator="")


def seen_attempt(principal: Principal, view: AttemptView) -> AttemptView:
    """An attempt of the caller's own job. What a machine said of itself is for its operators."""
    if principal.role is Role.NETWORK_OPERATOR or view.revoke_cause not in _SAYS_WHY_AWAY or view.revoked is None:
        return view
    return replace(view, revoked=replace(view.revoked, detail=HIDDEN))


def seen_entry(principal: Principal, entry: Entry) -> Entry:
    """An entry that the caller may see, in words that it may see."""
    if principal.role is Role.NETWORK_OPERATOR or entry.facts is None:
        return entry
    strikes = entry.job is None and entry.facts.failure is not None
    about_node = entry.job is not None and entry.facts.node_cause is not None
    if not (strikes if principal.role is Role.NODE_OPERATOR else about_node):
        return entry
    # A strike without its detail is shown with the meaning of its code; what a node said of itself has no such words.
    facts = replace(entry.facts, detail="" if strikes else HIDDEN)
    return replace(entry, facts=facts, text=entry_text(entry.kind, facts))
