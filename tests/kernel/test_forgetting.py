"""What is forgotten and what stays of it: departed nodes, expired tokens, jobs that ended long ago, old entries."""

from typing import Any

import pytest
from kernel_driver import ROOM, SETTINGS, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import joining, retention
from holdfast.kernel.commit import CommitLoop
from holdfast.kernel.decision import Deletions, Explanation, Rejected, Taken
from holdfast.kernel.events import (
    CancelAsked,
    DeletionAsked,
    ExplainAsked,
    FilesReceived,
    NodeJoined,
    NodeSaid,
    OldJob,
    Tick,
    TokenMade,
)
from holdfast.kernel.placement import NodeKind, plain_kind
from holdfast.kernel.retention import fingerprint
from holdfast.kernel.world import ENDED_MAX, KINDS_MAX, kind_of
from holdfast.model import (
    DeletedJob,
    DeletedNode,
    DeletedToken,
    Entry,
    Gpu,
    Hardware,
    Instant,
    Job,
    JoinToken,
    Keep,
    Need,
    NodeCause,
    NodeId,
    NodeState,
    Resources,
    TokenId,
    Verdict,
    job_id,
)
from holdfast.model.messages import HeldPhase, Hello, Leaving, Offers, Refusal, Welcome

KEEP_MS = 1_000_000
SHORT = replace(SETTINGS, nodes_keep_ms=KEEP_MS, tokens_keep_ms=KEEP_MS)
KEY = "k" * 64


def goodbye(network: Network, node: str) -> None:
    network.tell(NodeSaid(network.sessions[node], NodeId(node), Leaving(0, done=True)))


def departed(settings: Any = SHORT, nodes: int = 1) -> Network:
    """A network whose nodes said goodbye, one after the other."""
    network = Network(settings)
    for number in range(nodes):
        network.join(f"node_{number}")
        network.now += 1
        goodbye(network, f"node_{number}")
    return network


def tick(network: Network, ms: int = 0) -> tuple[Any, ...]:
    network.now += ms
    return network.tell(Tick()).changes


def deleted(changes: tuple[Any, ...]) -> list[str]:
    return [row.id for row in changes if isinstance(row, DeletedNode)]


# --- departed nodes ---


@pytest.mark.spec("N6", "S1")
def test_a_node_that_left_is_forgotten_in_its_moment_and_leaves_its_id_and_its_key() -> None:
    network = departed()
    assert deleted(tick(network, KEEP_MS - 1)) == []
    changes = tick(network, 1)
    assert [row for row in changes if isinstance(row, DeletedNode)] == [DeletedNode(NodeId("node_0"), fingerprint(KEY))]
    assert [row.kind for row in changes if isinstance(row, Entry)] == ["node.forgotten"]
    assert "node_0" not in network.rows and not network.kernel.knows_node(NodeId("node_0"))
    w = network.kernel._w
    assert not w.nodes and not w.fleet and not w.states and not w.shapes and not w.kinds and not w.departed
    assert not w.present and network.kernel.next_due() is None


@pytest.mark.spec("N6", "S1")
def test_a_node_that_was_lost_is_forgotten_and_no_need_waits_for_it_any_more() -> None:
    network = Network(SHORT)
    network.join("node_large", hardware=Hardware(total=replace(ROOM, gpus=1), gpus=(Gpu("H200", 143_000),)),
                 offered=replace(ROOM, gpus=1))  # fmt: skip
    network.join("node_small")
    network.leave("node_large")
    gpu = Need(Resources(100, 100, 100, 1))
    network.wait(SHORT.suspect_ms_max + 100, 1_000, report={"node_small": []})
    assert network.node("node_large").state is NodeState.LOST
    assert isinstance(network.submit("while it may return", need=gpu), Taken)

    network.wait(KEEP_MS, 1_000, report={"node_small": []})

    refused = network.submit("afterwards", need=gpu)
    assert isinstance(refused, Rejected) and refused.code == "no_fit"
    said = network.tell(ExplainAsked(job_id("ann", "while it may return"))).answer
    assert isinstance(said, Explanation) and "lost" not in said.gates


@pytest.mark.spec("N6")
def test_a_node_that_returns_in_time_is_not_forgotten() -> None:
    network = departed()
    network.now += KEEP_MS - 1
    network.join("node_0")
    assert deleted(tick(network, 1)) == []
    assert network.node("node_0").state is not NodeState.GONE and list(network.kernel._w.present) == ["node_0"]
    goodbye(network, "node_0")
    assert deleted(tick(network, KEEP_MS - 1)) == []
    assert deleted(tick(network, 1)) == ["node_0"]


@pytest.mark.spec("N6", "A6")
def test_of_too_many_departed_nodes_those_who_left_first_are_forgotten() -> None:
    network = departed(replace(SHORT, departed_nodes_max=2), nodes=2)
    assert deleted(tick(network)) == []
    for number in (2, 3, 4):
        network.join(f"node_{number}")
        goodbye(network, f"node_{number}")
    assert deleted(tick(network)) == ["node_0", "node_1", "node_2"]
    assert list(network.kernel._w.departed) == ["node_3", "node_4"]


@pytest.mark.spec("J14", "N6")
def test_a_new_leader_forgets_what_the_old_one_would_have() -> None:
    network = departed(replace(SHORT, departed_nodes_max=3), nodes=3)
    network.join("node_9")
    network.rows["node_0"], network.rows["node_2"] = (
        replace(network.rows["node_0"], state_since_ms=Instant(network.now)),
        replace(network.rows["node_2"], state_since_ms=Instant(1)),
    )
    network.restart(2)
    goodbye_first = list(network.kernel._w.departed)
    assert goodbye_first == ["node_2", "node_1", "node_0"], "in the order in which they left"
    assert deleted(tick(network, KEEP_MS - 4)) == []
    assert len(deleted(tick(network, 4))) == 3


@pytest.mark.spec("J14", "N6")
def test_departed_nodes_of_an_earlier_release_are_dated_by_the_first_leader() -> None:
    network = departed()
    network.rows["node_0"] = replace(network.rows["node_0"], state_until_ms=Instant(0))
    network.restart(2)
    assert network.node("node_0").state_until_ms == network.kernel._w.patience + KEEP_MS
    dated = network.node("node_0")
    network.restart(3)
    assert network.node("node_0") == dated, "once"
    assert deleted(tick(network, KEEP_MS)) == ["node_0"]


@pytest.mark.spec("N1", "N6")
@pytest.mark.parametrize("from_store", [False, True])
def test_the_id_of_a_forgotten_node_stays_bound_to_its_key(from_store: bool) -> None:
    network = departed()
    tick(network, KEEP_MS)
    bound = ""
    if from_store:
        network.restart(2)
        bound = fingerprint(KEY)

    network.join("node_0", key_sha256=bound, public_key="x" * 64)
    (refusal,) = network.said(Refusal)
    assert (refusal.code, refusal.final) == ("uuid_taken", True)
    assert "node_0" not in network.rows

    network.join("node_0", key_sha256=bound)
    assert network.said(Welcome) and network.node("node_0").joined_ms == network.now


@pytest.mark.spec("N6")
def test_a_forgotten_node_needs_a_token_again() -> None:
    network = departed()
    tick(network, KEEP_MS)
    network.kernel.settings = network.kernel._w.settings = replace(SHORT, open_join=False)
    network.join("node_0")
    (refusal,) = network.said(Refusal)
    assert refusal.code == "token_needed"


@pytest.mark.spec("J14")
def test_a_node_that_something_refers_to_is_looked_at_again_later() -> None:
    network = departed()
    w = network.kernel._w
    w.fleet[NodeId("node_0")].held = ("att_x.1",)  # pyright: ignore[reportAttributeAccessIssue]
    assert deleted(tick(network, KEEP_MS)) == []
    w.fleet[NodeId("node_0")].held = ()
    assert deleted(tick(network, retention.NEEDED_AGAIN_MS - 1)) == []
    assert deleted(tick(network, 1)) == ["node_0"]


@pytest.mark.spec("J14")
def test_a_node_that_leaves_and_is_forgotten_and_returns_in_one_batch_is_known() -> None:
    network = departed()
    loop = CommitLoop(network.kernel)
    loop.offer(Tick(), Instant(network.now + KEEP_MS))
    batch = loop._gathering
    assert ("deleted_node", "node_0") in batch.rows and ("node", "node_0") not in batch.rows
    hello = Hello(NodeId("node_0"), "i", KEY, "0.1.0", Hardware(total=ROOM), ROOM, "bubblewrap")
    loop.offer(NodeJoined(9, hello), Instant(network.now + KEEP_MS))
    assert ("deleted_node", "node_0") not in batch.rows and ("node", "node_0") in batch.rows
    loop.offer(NodeSaid(9, NodeId("node_0"), Leaving(0, done=True)), Instant(network.now + KEEP_MS))
    loop.offer(Tick(), Instant(network.now + 2 * KEEP_MS))
    assert ("deleted_node", "node_0") in batch.rows and ("node", "node_0") not in batch.rows


@pytest.mark.spec("A6")
def test_what_was_deleted_last_is_remembered_and_no_more() -> None:
    w = Network(SHORT).kernel._w
    for number in range(ENDED_MAX + 1):
        w.remember_deleted(f"node_{number}", "key")
    assert len(w.deleted) == ENDED_MAX and "node_0" not in w.deleted and "node_1" in w.deleted


# --- tokens ---


@pytest.mark.spec("N6")
def test_a_token_is_forgotten_some_time_after_it_expired() -> None:
    network = Network(SHORT)
    expires = Instant(network.now + 500)
    network.tell(TokenMade(JoinToken(TokenId("tok_a"), "aa" * 32, Instant(network.now), expires, 1)))
    network.tell(Tick(late_ms=300))
    assert not [row for row in tick(network, 500 + KEEP_MS - 1) if isinstance(row, DeletedToken)]
    assert DeletedToken(TokenId("tok_a")) in tick(network, 301)
    assert "tok_a" not in network.rows and network.kernel.next_due() is None


# --- jobs ---


def ended_job(network: Network, key: str = "k") -> Job:
    network.submit(key)
    network.tell(CancelAsked(job_id("ann", key)))
    job = network.job(key)
    assert job.ended_ms == network.now
    return job


def ask(network: Network, *jobs: OldJob, **more: Any) -> Deletions:
    decision = network.tell(DeletionAsked(jobs, **more))
    assert isinstance(decision.answer, Deletions)
    assert len([row for row in decision.changes if isinstance(row, DeletedJob)]) == decision.answer.jobs
    return decision.answer


@pytest.mark.spec("J14", "J7")
def test_an_ended_job_goes_in_its_moment_and_keeps_its_key_used() -> None:
    network = Network()
    job = ended_job(network)
    network.now += SETTINGS.jobs_keep_ms - 1
    assert ask(network, OldJob(job)) == Deletions(0)
    network.now += 1
    network.restart(2)  # a leader that does not remember its end
    decision = network.tell(DeletionAsked((OldJob(job),)))
    assert decision.answer == Deletions(1)
    assert DeletedJob(job.id, job.owner, job.spec_hash, Verdict.CANCELLED, job.ended_ms or Instant(0)) in (
        decision.changes
    )
    again = network.submit("k")
    assert again == Taken(job.id, again=True) and job.id not in network.kernel._w.jobs
    assert ask(network, OldJob(job)) == Deletions(1), "a second time says the same, for the rows that a crash left"


@pytest.mark.spec("J14")
@pytest.mark.parametrize(
    ("more", "goes"),
    [
        ({}, True),
        ({"output": True}, False),
        ({"keep_ms": 0}, True),
        ({"keep_ms": 1}, False),
        ({"group_ms": None}, False),
        ({"group_ms": -SETTINGS.jobs_keep_ms}, True),
        ({"group_ms": -SETTINGS.jobs_keep_ms + 1}, False),
    ],
)
def test_a_job_goes_after_its_files_its_output_and_the_rest_of_its_array(more: dict[str, Any], goes: bool) -> None:
    network = Network()
    job = ended_job(network)
    network.now += SETTINGS.jobs_keep_ms
    keep = Keep(job.id, job.owner, ("aa",), Instant(network.now + more["keep_ms"])) if "keep_ms" in more else None
    group = more.get("group_ms", 0)
    group = Instant(network.now + group) if group else group
    old = OldJob(job, keep, None if "group_ms" in more and more["group_ms"] is None else group or Instant(0),
                 more.get("output", False))  # fmt: skip
    assert ask(network, old) == Deletions(int(goes))


@pytest.mark.spec("J14", "J7")
def test_a_job_that_lives_or_has_a_live_attempt_is_not_deleted() -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    live = network.job()
    network.tell(CancelAsked(live.id))
    ended = network.job()
    settings = network.kernel._w.settings = replace(SETTINGS, jobs_keep_ms=1)
    network.now += settings.jobs_keep_ms
    assert ask(network, OldJob(live)) == Deletions(0)
    assert ask(network, OldJob(replace(ended, ended_ms=None))) == Deletions(0)
    assert ask(network, OldJob(ended)) == Deletions(0), "its revoked attempt is not gone from its node yet"
    network.report(attempt.node)
    assert not network.attempts()[0].live
    assert ask(network, OldJob(ended)) == Deletions(1)


@pytest.mark.spec("J14")
def test_a_stale_row_does_not_delete_a_job_that_is_live_here() -> None:
    network = with_two_nodes()
    job = ended_job(network, "old")
    network.submit("k")
    stale = replace(job, id=job_id("ann", "k"))
    network.now += SETTINGS.jobs_keep_ms
    assert ask(network, OldJob(stale)) == Deletions(0)


@pytest.mark.spec("J6", "J14")
def test_files_of_a_deleted_job_are_not_received_any_more() -> None:
    network = Network()
    job = ended_job(network)
    network.now += SETTINGS.jobs_keep_ms
    ask(network, OldJob(job))
    decision = network.tell(FilesReceived(job))
    assert isinstance(decision.answer, Rejected) and decision.answer.code == "job_deleted"
    assert not [row for row in decision.changes if isinstance(row, Keep)]


@pytest.mark.spec("H4")
def test_the_journal_goes_up_to_an_entry_that_is_old_enough() -> None:
    network = Network()
    keep_ms = SETTINGS.journal_keep_ms
    network.now += keep_ms
    at = network.now - keep_ms
    assert ask(network, entry_seq=7, entry_ms=Instant(at)) == Deletions(0, 7)
    assert ask(network, entry_seq=7, entry_ms=Instant(at + 1)) == Deletions(0, 0)
    assert ask(network) == Deletions(0, 0)


# --- joining ---


LIMITED = replace(SETTINGS, joins_per_token_max=2, joins_per_address_max=3, joins_max=4, joins_ms=1_000)


def dial(network: Network, node: str, address: str = "", token: str = "") -> str:
    network.join(node, address, token_id=token)
    refusals = network.said(Refusal)
    assert all(refusal.final is (refusal.code == "uuid_taken") for refusal in refusals)
    return refusals[0].code if refusals else ""


@pytest.mark.spec("N5", "N6")
def test_new_machines_are_limited_by_token_address_and_in_all() -> None:
    network = Network(LIMITED)
    assert [dial(network, f"node_{n}", token="tok_a") for n in range(3)] == ["", "", "join_limit"]
    assert dial(network, "node_3", "ipv4:10.0.0.7", "tok_b") == ""
    assert dial(network, "node_0", token="tok_a") == "", "who is known does not join"
    assert dial(network, "node_4", "ipv4:10.0.0.7") == ""
    assert dial(network, "node_5") == "join_limit", "four have joined"
    network.now += LIMITED.joins_ms - 1
    assert dial(network, "node_5") == "join_limit"
    network.now += 1
    assert [dial(network, f"node_{n}", "ipv4:10.0.0.7") for n in range(5, 9)] == ["", "", "", "join_limit"]
    assert dial(network, "node_9", "ipv4:10.0.0.8") == ""


@pytest.mark.spec("N5")
def test_a_machine_that_was_refused_does_not_count() -> None:
    network = Network(replace(LIMITED, open_join=False))
    for n in range(9):
        network.join(f"node_{n}", "ipv4:10.0.0.7", token_id="tok_x")
        assert [refusal.code for refusal in network.said(Refusal)] == ["token_wrong"]
    assert network.kernel._w.limits.joins.total == 0 and not network.kernel._w.limits.joins.by_address


@pytest.mark.spec("H4", "N5")
def test_strangers_who_claim_an_identity_fill_no_journal() -> None:
    network = Network()
    nodes = [f"node_{n:03}" for n in range(joining.REFUSALS_NOTED_MAX + 5)]
    for node in nodes:
        network.join(node)

    def claimed(node: str) -> int:
        network.join(node, public_key="x" * 64)
        assert [refusal.code for refusal in network.said(Refusal)] == ["uuid_taken"]
        return network.kernel._w.written

    before = network.kernel._w.written
    assert claimed(nodes[0]) == before + 1
    for _ in range(100):
        assert claimed(nodes[0]) == before + 1
    assert network.kernel._w.limits.refusals.noted[NodeId(nodes[0])] == 100
    for node in nodes:
        claimed(node)
    assert network.kernel._w.written == before + joining.REFUSALS_NOTED_MAX
    network.now += joining.REFUSALS_MS - 1
    assert claimed(nodes[0]) == before + joining.REFUSALS_NOTED_MAX
    network.now += 1
    assert claimed(nodes[0]) == before + joining.REFUSALS_NOTED_MAX + 1


@pytest.mark.spec("H4", "N5")
def test_a_node_that_dials_in_for_ever_is_taken_so_many_times_and_then_later() -> None:
    network = Network(replace(SETTINGS, unrest_max=3, unrest_ms=10_000))
    network.join("node_a")
    written = []
    for _ in range(6):
        network.leave("node_a")
        assert dial(network, "node_a") == ("" if len(written) < 3 else "busy")
        written.append(network.kernel._w.written)
    assert written[2] < written[3] == written[5], "the last end of a session, and nothing after it"
    network.now += 9_999
    assert dial(network, "node_a") == "busy"
    network.now += 1
    assert dial(network, "node_a") == ""


@pytest.mark.spec("H4", "N5")
@pytest.mark.parametrize("paused", [False, True])
def test_a_node_that_changes_its_offer_for_ever_is_suspected(paused: bool) -> None:
    network = Network(replace(SETTINGS, unrest_max=3))
    network.join("node_a")

    def offer(number: int) -> None:
        offered = ROOM if paused else replace(ROOM, cpu_milli=1_000 + number)
        message = Offers(offered, paused=paused and number % 2 == 0)
        network.tell(NodeSaid(network.sessions["node_a"], NodeId("node_a"), message))

    for number in range(3):
        offer(number)
        assert network.node("node_a").state is NodeState.READY
    offer(2)
    assert network.node("node_a").state is NodeState.READY, "the same again is no change"
    offer(3)
    assert network.node("node_a").state is NodeState.SUSPECT
    assert network.node("node_a").cause_code is NodeCause.RESTLESS


# --- kinds ---


def strange(number: int) -> dict[str, Any]:
    gpus = (Gpu(f"Model {number}", 10_000 + number, f"{number}.1", "12.0"),)
    return {"hardware": Hardware(f"arch_{number}", total=ROOM, gpus=gpus), "features": ("jobs", f"x{number}")}


@pytest.mark.spec("A6", "N5")
def test_however_many_kinds_nodes_say_they_are_few_are_told_apart() -> None:
    network = Network()
    for number in range(KINDS_MAX):
        network.join(f"node_{number}", **strange(number))
    w = network.kernel._w
    assert len(w.kinds) == KINDS_MAX
    for number in range(KINDS_MAX, KINDS_MAX + 100):
        network.join(f"node_{number}", **strange(number))
    assert len(w.kinds) == KINDS_MAX + 1
    last = w.fleet[NodeId(f"node_{KINDS_MAX + 99}")]
    assert last.kind == NodeKind("", gpu_memory_mib=8_192, features=("jobs",))
    assert w.fleet[NodeId("node_7")].kind == kind_of(w.nodes[NodeId("node_7")]), "those who were first keep theirs"
    goodbye(network, "node_7")
    goodbye(network, "node_8")
    network.join("node_next", **strange(999_999))
    assert w.fleet[NodeId("node_next")].kind.gpu_model == "Model 999999"
    assert len(w.kinds) == KINDS_MAX


@pytest.mark.spec("A6")
def test_a_plain_kind_keeps_what_nobody_can_invent() -> None:
    assert plain_kind(NodeKind("x86_64", "H200", 1, "1", "2", ("container", "jobs", "plain"))) == NodeKind(
        "x86_64", gpu_memory_mib=1, features=("jobs", "plain")
    )
    assert plain_kind(NodeKind("aarch64", features=("plain",))) == NodeKind("aarch64", features=("plain",))
    assert plain_kind(NodeKind("riscv", gpu_memory_mib=4_096)).arch == ""
    assert plain_kind(NodeKind("riscv", gpu_memory_mib=4_095)).gpu_memory_mib == 2_048
    assert plain_kind(NodeKind("riscv", gpu_memory_mib=4_096)).gpu_memory_mib == 4_096
