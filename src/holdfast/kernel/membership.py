"""Decides which nodes may join, under which id, and how they leave (SPEC N1, N6, N7).

A node's id belongs to the first key that joined under it, also after the node was forgotten (kernel.retention). A token
is needed only the first time, and new machines are limited in number (kernel.joining). One identity has
one session: when the same agent process reconnects, its new session replaces the old one; another process with the
same identity must wait until the old one is shown to be silent.
"""

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, CloseSession, Done, Rejected, ToSession
from holdfast.kernel.events import NodeJoined
from holdfast.kernel.health import (
    await_return,
    begin_probation,
    change,
    fleet_too_thin,
    forgiven,
    heard,
    ping_due,
    suspect,
)
from holdfast.kernel.joining import joined, limit_refusal, note_refusal, unrest
from holdfast.kernel.reconcile import compare
from holdfast.kernel.recovery import drain_due, make_fit, write_off
from holdfast.kernel.retention import fingerprint
from holdfast.kernel.world import World, node_label
from holdfast.model import DrainChange, Facts, Instant, Node, NodeCause, NodeId, NodeState, PauseCause, after
from holdfast.model.cause_text import draining_text, pause_text
from holdfast.model.messages import Drained, Hello, Leaving, Load, Offers, Ping, Refusal, Welcome


def join(w: World, event: NodeJoined) -> None:
    """A node that proved its key asks to join."""
    session, hello = event.session, event.hello
    node = w.nodes.get(hello.node)
    refusal = _wrong_key(w, node, event) or _token_refusal(w, node, hello) or _too_often(w, node, event)
    refusal = refusal or _taken(w, hello)
    if refusal is not None:
        w.send(ToSession(session, hello.node, refusal), CloseSession(session, refusal.says))
        if refusal.final and node is not None:
            note_refusal(w, hello.node, refusal)
        return
    if node is None:
        joined(w, hello, event.address)
    presence = w.presence(hello.node)
    if presence.session is not None:
        w.send(CloseSession(presence.session, "replaced by a newer session of the same node"))
    presence.session, presence.instance, presence.seq = session, hello.instance, 0
    presence.heard_ms = presence.watched_ms = w.patience
    presence.load = Load()  # nothing is known yet of this session
    presence.late_at_join_ms = w.meta.late_ms
    presence.contested_ms = None
    s = w.settings
    w.send(
        ToSession(
            session,
            hello.node,
            Welcome(
                hello.node,
                w.meta.epoch,
                s.heartbeat_ms,
                s.keepalive_ms,
                s.lease_ms,
                s.orphan_ms_max,
                s.stop_grace_ms,
            ),
        )
    )
    away = node is not None and node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE)
    _enter(w, node, hello)
    if w.nodes[hello.node].drained_by_network:
        w.send(ToSession(session, hello.node, Drained(w.meta.epoch, True)))
    w.deadlines.add(w.soon(w.settings.silence_floor_ms), "silence", hello.node)
    for attempt in w.held_by(hello.node):
        w.claim(attempt).sent_ms = Instant(0)  # what was sent to the old session may never have arrived
        w.lifecycle.reconnected(w, attempt)
    back = away and w.nodes[hello.node].state is not NodeState.QUARANTINED
    compare(w, hello.node, hello.held, full=True, seq=0, came_back=back)


def _enter(w: World, node: Node | None, hello: Hello) -> None:
    known = {
        "version": hello.version, "hardware": hello.hardware, "offered": hello.offered,
        "isolation": hello.isolation, "name": hello.name, "site": hello.site, "features": hello.features,
    }  # fmt: skip
    if node is None:
        fresh = Node(hello.node, hello.public_key, hello.version, hello.hardware, w.now)
        fresh = replace(fresh, operator=_use_token(w, hello))
        change(w, replace(fresh, **known), NodeState.READY, Facts(node_cause=NodeCause.JOINED))
        return
    updated: Node = replace(node, **known)
    if node.leaving or node.state is NodeState.GONE:
        # The node reports again what its own operator wants; what the network's operator wants is kept here.
        kept = node.drained_by_network
        updated = replace(updated, draining=kept, drained=kept, leaving=False, leaving_why="", pause_cause=None)
    left_ms = node.quarantined_until_ms - w.patience
    match node.state:
        case NodeState.SUSPECT | NodeState.LOST | NodeState.GONE if left_ms > 0 and not fleet_too_thin(w):
            change(w, updated, NodeState.QUARANTINED, Facts(node_cause=NodeCause.CAME_BACK_EARLY), left_ms)
        case NodeState.SUSPECT | NodeState.LOST:
            begin_probation(w, updated, NodeCause.CAME_BACK)
        case NodeState.GONE:
            if node.strikes:
                begin_probation(w, updated, NodeCause.JOINED_AGAIN)
            else:
                change(w, updated, NodeState.READY, Facts(node_cause=NodeCause.JOINED_AGAIN))
        case NodeState.PROBATION:
            w.put(updated)
            w.presence(node.id).pings = 0
            ping_due(w, node.id)
        case _:
            if updated != node:
                w.put(updated)
    w.freed[hello.node] = None
    w.reindex(hello.node)


# --- refusals ---


def _wrong_key(w: World, node: Node | None, event: NodeJoined) -> Refusal | None:
    """An id stays bound to its first key, also after its node was forgotten."""
    hello = event.hello
    if node is not None:
        other = node.public_key != hello.public_key
    else:
        bound = event.key_sha256 or w.deleted.get(hello.node, "")
        other = bound not in ("", fingerprint(hello.public_key))
    if other:
        says = (
            f"{hello.node} belongs to another key. Give this machine an id of its own (PNODE_UUID), or restore its key."
        )
        return Refusal("uuid_taken", says, final=True)
    return None


def _token_refusal(w: World, node: Node | None, hello: Hello) -> Refusal | None:
    if node is not None or w.settings.open_join:
        return None
    return _token_fault(w, hello)


def _token_fault(w: World, hello: Hello) -> Refusal | None:
    """Why nobody may join with the token of this hello."""
    token = w.tokens.get(hello.token_id)  # pyright: ignore[reportArgumentType]
    fresh = "Ask the network's operator for a new one: `holdfast token new`."
    if not hello.token_id:
        return Refusal("token_needed", f"This network needs a join token. {fresh}", final=True)
    if token is None or token.secret_sha256 != hello.token_sha256:
        return Refusal("token_wrong", f"The join token is not one of this network. {fresh}", final=True)
    if token.revoked:
        return Refusal("token_revoked", f"The join token was revoked. {fresh}", final=True)
    if token.expires_ms <= w.now:
        return Refusal("token_expired", f"The join token has expired. {fresh}", final=True)
    if token.uses_left == 0:
        return Refusal("token_used", f"The join token was used up by another machine. {fresh}", final=True)
    return None


def _too_often(w: World, node: Node | None, event: NodeJoined) -> Refusal | None:
    """New machines are limited in number; a known one only in how often it dials in."""
    if node is None:
        return limit_refusal(w, event.hello, event.address)
    if unrest(w, w.presence(node.id)):
        return Refusal("busy", f"{node.id} dials in too often; it is taken later.", final=False)
    return None


def _use_token(w: World, hello: Hello) -> str:
    """Count a use of the token that a new node shows. Returns who made it; empty: nobody, or the token is not good,
    which an open network does not ask for."""
    if _token_fault(w, hello) is not None:
        return ""
    token = w.tokens[hello.token_id]  # pyright: ignore[reportArgumentType]
    if token.uses_left > 0:
        w.put(replace(token, uses_left=token.uses_left - 1))
    return token.made_by


def _taken(w: World, hello: Hello) -> Refusal | None:
    """Another agent process holds this identity: ping it, and let the new one join only if it stays silent."""
    member = w.fleet.get(hello.node)
    if member is None or member.presence.session is None or member.presence.instance == hello.instance:
        return None
    presence = member.presence
    if presence.contested_ms is not None and w.patience >= after(presence.contested_ms, w.settings.silence_floor_ms):
        return None
    if presence.contested_ms is None:
        presence.contested_ms = w.patience
        presence.nonce += 1
        w.send(ToSession(member.presence.session, hello.node, Ping(w.meta.epoch, presence.nonce)))
    says = f"{hello.node} is connected from another machine. If that one is gone, this will work in a few seconds."
    return Refusal("uuid_in_use", says, final=False)


# --- leaving ---


def broke(w: World, session: int, node_id: NodeId, why: str) -> None:
    """A stream ended without a goodbye."""
    member = w.fleet.get(node_id)
    if member is None or member.presence.session != session:
        return
    presence = member.presence
    presence.session = None
    w.reindex(node_id)
    slow = presence.seq == 0 and w.meta.late_ms > presence.late_at_join_ms
    if slow and presence.excused_ms is None:
        presence.excused_ms = w.patience
    excused = presence.excused_ms is not None and w.patience < after(presence.excused_ms, w.settings.reconnect_grace_ms)
    if forgiven(w) or (slow and excused):
        # This side was away, or so slow that the node never got its welcome: the node is not to blame.
        await_return(w, node_id)
    else:
        suspect(w, node_id, Facts(node_cause=NodeCause.LINK_BROKE, detail=why))


def leaving(w: World, session: int, node_id: NodeId, message: Leaving) -> None:
    """The node's operator asked it to leave."""
    node = w.nodes[node_id]
    heard(w, node_id, w.presence(node_id))
    if not message.done:
        if not node.leaving:
            _drain_requested(w, node_id, "its own operator", message.grace_ms, leaves=True, pause=PauseCause.LEAVING)
        return
    change(w, node, NodeState.GONE, Facts(node_cause=NodeCause.GOODBYE), w.settings.nodes_keep_ms)
    w.presence(node_id).session = None
    w.reindex(node_id)
    w.send(CloseSession(session, "goodbye"))
    write_off(w, node_id)


def offers(w: World, node_id: NodeId, message: Offers) -> None:
    """Its operator offers more or less, or nothing for now. What no longer fits moves, the youngest first."""
    node = w.nodes[node_id]
    presence = w.presence(node_id)
    heard(w, node_id, presence)
    if (message.offered != node.offered or message.paused != node.leaving) and unrest(w, presence):
        suspect(w, node_id, Facts(node_cause=NodeCause.RESTLESS))
        return
    if message.offered != node.offered:
        w.put(replace(node, offered=message.offered))
        w.note("node.offers", Facts(label=node_label(node), room=message.offered), node=node_id)
        w.reindex(node_id)
        make_fit(w, node_id)
    node = w.nodes[node_id]
    if message.paused and not node.leaving:
        pause = PauseCause.STATED if message.why else PauseCause.OPERATOR
        why = pause_text(pause, message.why)
        _drain_requested(w, node_id, why, message.grace_ms, leaves=True, pause=pause, stated=message.why)
    elif not message.paused and node.leaving:
        _drain_requested(w, node_id, "its own operator", leaves=False)


def drain(w: World, node_id: NodeId, on: bool, by: str) -> Answer:
    """The network's operator drains a node: it gets no new work; what runs may finish within the grace, then moves."""
    node = w.nodes.get(node_id)
    if node is None or (node.state is NodeState.GONE and (on or not node.drained_by_network)):
        return Rejected("no_such_node", f"There is no node {node_id}.")
    if node.drained_by_network == on:
        return Done("it is draining already" if on else "it is not draining")
    if node.state is NodeState.GONE:
        # What its own operator wanted ended with its goodbye; the node reports it again if it comes back.
        w.put(replace(node, draining=False, drained=False, leaving=False, leaving_why="", pause_cause=None))
        w.note("node.undrained", Facts(drain=DrainChange.FORGOTTEN, label=node_label(node), by=by), node=node_id)
        return Done("not drained any more")
    _drain_requested(w, node_id, by, drained=on)
    session = w.presence(node_id).session
    if session is not None:
        w.send(ToSession(session, node_id, Drained(w.meta.epoch, on)))
    return Done("draining" if on else draining_text(w.nodes[node_id]) or "taking work again")


def _drain_requested(
    w: World,
    node_id: NodeId,
    by: str,
    grace_ms: int | None = None,
    *,
    drained: bool | None = None,
    leaves: bool | None = None,
    pause: PauseCause | None = None,
    stated: str = "",
) -> None:
    """The network's operator (`drained`) or the node's own operator (`leaves`, with the reason) changed a request. The
    node drains while either requests it."""
    before = w.nodes[node_id]
    node = replace(before, drained=before.drained_by_network if drained is None else drained)
    if leaves is not None:
        words = "" if pause is None else pause_text(pause, stated)
        node = replace(node, leaving=leaves, leaving_why=words, pause_cause=pause)
    on, more = node.drained or node.leaving, drained or leaves
    until = before.drain_until_ms
    if more:
        given = w.soon(w.settings.drain_ms if grace_ms is None else grace_ms)
        until = min(given, until) if before.draining else given
    node = replace(node, draining=on, drain_until_ms=until)
    w.put(node)
    facts = Facts(drain=DrainChange.DRAINED if more else DrainChange.UNDRAINED, label=node_label(node), by=by)
    if on and not more:
        facts = replace(facts, drain=DrainChange.STILL_DRAINED, detail=draining_text(node))
    w.note("node.draining" if on else "node.undrained", facts, node=node_id)
    if on and not w.fleet[node_id].held:
        drain_due(w, node_id)
