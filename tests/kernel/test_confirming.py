"""A failure that is blamed on a job's owner counts when another machine confirms it (SPEC A12, J7)."""

from typing import Any

import pytest
from kernel_driver import GOOD, ROOM, SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.decision import Done, Explanation, Rejected
from holdfast.kernel.events import CancelAsked, Checkpointed, ExplainAsked, MoveAsked, Verified
from holdfast.model import (
    Attempt,
    Blame,
    Confirmation,
    Entry,
    Failure,
    FailureCode,
    Gate,
    JobId,
    JobPhase,
    Need,
    NodeId,
    NodeState,
    Purpose,
    Recovery,
    Resources,
    Settings,
    Verdict,
    WaitReason,
)
from holdfast.model.messages import HeldPhase

EXIT = Failure(FailureCode.EXIT_CODE, "exit code 1", exit_code=1)
STRICT = replace(Settings.test(), open_join=True)
ALL = Need(ROOM)


def network_of(*nodes: str, settings: Settings = STRICT) -> Network:
    network = Network(settings)
    for node in nodes:
        network.join(node)
    return network


def fail(network: Network, attempt: Attempt, failure: Failure = EXIT) -> None:
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING), full=False)
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, failure=failure), full=False)


def succeed(network: Network, attempt: Attempt) -> None:
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING), full=False)
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD), full=False)
    network.tell(Verified(attempt.id, attempt.fence, ok=True))


def doubted_while_the_other_is_busy() -> tuple[Network, Attempt, Attempt]:
    """Two machines: what the other one runs, and the attempt that failed."""
    network = network_of("node_a", "node_b")
    network.submit("busy", need=ALL)
    held = network.attempts("busy")[0]
    network.report(held.node, seen(held, HeldPhase.RUNNING))
    network.submit(need=ALL)
    (first,) = network.attempts()
    fail(network, first)
    return network, held, first


def failed_once(*nodes: str, **more: Any) -> tuple[Network, Attempt]:
    """A network in which a job failed on its first machine."""
    network = network_of(*(nodes or ("node_a", "node_b")))
    network.submit(**more)
    (first,) = network.attempts()
    fail(network, first)
    return network, first


# --- one word is not enough ---


@pytest.mark.spec("A12", "J7")
@pytest.mark.parametrize(
    "code",
    [
        FailureCode.EXIT_CODE, FailureCode.OOM_JOB, FailureCode.TIME_LIMIT, FailureCode.DISK_QUOTA, FailureCode.IMAGE,
        FailureCode.BUILD, FailureCode.DATA,
    ],
)  # fmt: skip
def test_no_machine_without_a_record_ends_a_job_by_its_owners_fault(code: FailureCode) -> None:
    assert Failure(code).meaning.blame is Blame.USER
    network = network_of("node_a", "node_b")
    network.submit()
    (first,) = network.attempts()
    fail(network, first, Failure(code))
    job = network.job()
    assert job.phase is not JobPhase.ENDED
    assert job.pending_verdict is not None and job.pending_verdict.node == first.node
    # and another machine has it already
    second = network.attempts()[1]
    assert (second.node != first.node, second.purpose) == (True, Purpose.CONFIRM)


@pytest.mark.spec("A12", "J7")
def test_another_machine_that_blames_the_owner_lets_the_failure_stand() -> None:
    network, _ = failed_once()
    second = network.attempts()[1]
    fail(network, second, Failure(FailureCode.OOM_JOB, "too much"))
    job = network.job()
    # the failure shown is that of the run whose output is shown
    assert (job.verdict, job.failure) == (Verdict.FAILED, Failure(FailureCode.OOM_JOB, "too much"))
    assert (job.confirmation, job.pending_verdict) == (Confirmation.CONFIRMED, None)
    # both machines are cleared: the end counts for each, and neither is struck
    for node in ("node_a", "node_b"):
        assert (network.record(node).good, network.record(node).ends, network.node(node).strikes) == (1, "u", 0)


@pytest.mark.spec("A12", "H3")
def test_success_elsewhere_is_the_result_and_a_strike_for_the_first_machine() -> None:
    network, first = failed_once()
    second = network.attempts()[1]
    succeed(network, second)
    job = network.job()
    assert (job.verdict, job.accepted, job.confirmation) == (Verdict.SUCCEEDED, second.id, None)
    assert job.pending_verdict is None
    assert network.node(first.node).strikes == 1
    assert (network.record(first.node).good, network.record(first.node).ends) == (0, "1")
    assert (network.record(second.node).good, network.record(second.node).ends) == (1, "s")


@pytest.mark.spec("A12", "J8")
def test_the_loss_of_the_run_that_confirms_is_retried_like_any_other() -> None:
    network, first = failed_once("node_a", "node_b", "node_c")
    second = network.attempts()[1]
    fail(network, second, Failure(FailureCode.RUNTIME_FAULT, "the sandbox broke"))
    network.wait(2_000, report={node: [] for node in ("node_a", "node_b", "node_c")})
    third = network.attempts()[2]
    assert third.node not in (first.node, second.node)
    assert third.purpose is Purpose.CONFIRM
    fail(network, third)
    assert network.job().confirmation is Confirmation.CONFIRMED


@pytest.mark.spec("A12", "J8")
def test_losses_of_the_run_that_confirms_never_end_the_job_by_its_owners_fault() -> None:
    network, _ = failed_once("node_a", "node_b", attempts_max=2)
    for turn in (1, 2):
        fail(network, network.attempts()[turn], Failure(FailureCode.NETWORK, "cut"))
        network.wait(3_000, report={"node_a": [], "node_b": []})
        assert network.attempts()[1].node == network.attempts()[-1].node  # not where it failed
    job = network.job()
    assert job.verdict is Verdict.FAILED and job.failure is not None
    assert job.failure.code is FailureCode.NETWORK
    assert job.confirmation is None


# --- when it counts at once ---


@pytest.mark.spec("A12", "J7")
def test_somebody_with_one_machine_waits_for_nothing() -> None:
    network, _ = failed_once("node_a")
    assert (network.job().failure, network.job().confirmation) == (EXIT, Confirmation.UNCONFIRMED)


@pytest.mark.spec("A12", "J7")
@pytest.mark.parametrize("other", [Resources(4_000, 4_095, 10_000), Resources(3_999, 4_096, 10_000)])
def test_a_machine_that_could_never_take_the_job_is_not_waited_for(other: Resources) -> None:
    network = network_of("node_a")
    network.join("node_b", offered=other)
    network.submit(need=ALL)
    fail(network, network.attempts()[0])
    assert network.job().confirmation is Confirmation.UNCONFIRMED


@pytest.mark.spec("A12", "J7")
@pytest.mark.parametrize("spec", [{"recovery": Recovery.NEVER}, {"attempts_max": 1}], ids=["never", "one attempt"])
def test_what_may_run_only_once_is_marked_unconfirmed(spec: dict[str, Any]) -> None:
    network = network_of("node_a", "node_b")
    network.submit(**spec)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.READY))
    fail(network, network.attempts()[0])
    assert (network.job().verdict, network.job().confirmation) == (Verdict.FAILED, Confirmation.UNCONFIRMED)
    assert len(network.attempts()) == 1


@pytest.mark.spec("A12", "J7")
def test_two_attempts_are_enough_to_confirm() -> None:
    network, _ = failed_once(attempts_max=2)
    assert network.job().pending_verdict is not None
    assert network.job().failures == 0  # what is doubted does not count towards them
    fail(network, network.attempts()[1])
    assert network.job().confirmation is Confirmation.CONFIRMED


def with_records(a: str, b: str) -> Network:
    """Two machines whose last attempts ended like this."""
    network = network_of("node_a", "node_b")
    for number, (node, ends) in enumerate((("node_a", a), ("node_b", b))):
        record = replace(network.record(node), ends=ends, good=number + 4)
        network.kernel._w.load(record)
        network.rows[f"record of {node}"] = record
    return network


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("own", "others", "counts"),
    [
        ("s" * 18 + "u", "s" * 18 + "uu", True),  # 2 of 20, others 2 of 20
        ("s" * 17 + "u", "s" * 18 + "uu", False),  # 19 ends are too few
        ("s" * 18 + "u", "s" * 17 + "uu", False),  # also those of the others
        ("s" * 17 + "uuu", "s" * 19 + "uu", True),  # 4 of 21: not more than twice 2 of 21
        ("s" * 16 + "uuuu", "s" * 19 + "uu", False),  # 5 of 21: more
        ("s" * 30, "s" * 30, False),  # nobody ever blamed an owner: the first is confirmed
    ],
)
def test_the_word_of_a_machine_with_a_record_counts_while_it_blames_as_often_as_others(
    own: str, others: str, counts: bool
) -> None:
    network = with_records(own, others)
    network.leave("node_b")
    network.submit()
    (first,) = network.attempts()
    network.join("node_b", instance="second")
    good = network.record("node_a").good
    fail(network, first)
    assert first.node == "node_a"
    assert network.job().confirmation is (Confirmation.RECORD if counts else None)
    assert (network.job().pending_verdict is None) == counts
    assert network.record("node_a").ends == own + "u"
    assert network.record("node_a").good == good + counts


@pytest.mark.spec("A12")
def test_a_machine_that_was_wrong_begins_its_record_anew() -> None:
    network = with_records("s" * 12, "s" * 12)
    network.submit()
    (first,) = network.attempts()
    assert network.kernel._w.fleet[first.node].width == 8
    fail(network, first)
    succeed(network, network.attempts()[1])
    assert (network.record(first.node).good, network.record(first.node).ends) == (0, "s" * 12 + "1")
    assert network.kernel._w.fleet[first.node].width == 4


# --- waiting for somebody ---


@pytest.mark.spec("A12", "H6")
def test_where_others_are_busy_it_waits_as_begun_work() -> None:
    network = network_of("node_a", "node_b")
    for key in ("one", "two"):
        network.submit(key, need=ALL)
    by_node = {network.attempts(key)[0].node: network.attempts(key)[0] for key in ("one", "two")}
    network.submit("fresh", need=ALL)
    key = "one" if network.attempts("one")[0].node == "node_a" else "two"
    fail(network, by_node[NodeId("node_a")])
    job = network.job(key)
    # its own machine takes the fresh job, and it waits for the other
    assert [a.node for a in network.attempts("fresh")] == ["node_a"]
    assert (job.phase, job.wait_reason) == (JobPhase.QUEUED, WaitReason.CONFIRMATION)
    network.submit("fresher", need=ALL)
    succeed(network, by_node[NodeId("node_b")])
    assert network.attempts(key)[1].node == "node_b"
    assert network.attempts("fresher") == []


@pytest.mark.spec("A12", "H6")
def test_explain_says_what_is_doubted_and_what_keeps_it_from_each_machine() -> None:
    network, held, first = doubted_while_the_other_is_busy()
    said = network.tell(ExplainAsked(first.job)).answer
    assert isinstance(said, Explanation)
    assert said.wait_reason is WaitReason.CONFIRMATION
    assert said.gate_codes[Gate.DOUBTED] == 1
    assert said.attempts[0] == f"it failed on {first.node} (exit_code: exit code 1); another machine confirms that"
    assert first.node in said.waiting_for
    # and while the other machine runs it
    network.tell(CancelAsked(held.job))
    network.report(held.node)
    said = network.tell(ExplainAsked(first.job)).answer
    assert isinstance(said, Explanation) and said.wait_reason is WaitReason.ANSWER
    assert said.attempts[0].startswith(f"it failed on {first.node}")


@pytest.mark.spec("A12", "H6")
def test_when_nobody_is_left_to_ask_the_failure_counts_unconfirmed() -> None:
    network = network_of("node_a", "node_b")
    network.submit("busy", need=ALL)
    held = network.attempts("busy")[0]
    network.submit(need=ALL)
    (first,) = network.attempts()
    fail(network, first)
    assert network.job().phase is JobPhase.QUEUED
    # the other machine is away: it may be back at any moment, and only then is it given up
    network.leave(held.node)
    network.wait(SETTINGS.reconnect_grace_ms - 1_000, report={first.node: []})
    assert network.job().phase is JobPhase.QUEUED
    network.wait(1_000 + SETTINGS.offer_ms_max, report={first.node: []})
    assert (network.job().failure, network.job().confirmation) == (EXIT, Confirmation.UNCONFIRMED)


@pytest.mark.spec("A12")
def test_a_machine_that_is_drained_is_nobody_to_ask() -> None:
    from holdfast.kernel.events import DrainAsked

    network = network_of("node_a", "node_b")
    network.submit()
    (first,) = network.attempts()
    other = NodeId("node_b" if first.node == "node_a" else "node_a")
    network.tell(DrainAsked(other, on=True))
    fail(network, first)
    assert network.job().confirmation is Confirmation.UNCONFIRMED


@pytest.mark.spec("A12", "H6")
def test_a_queue_limit_blames_nobody_who_was_not_confirmed() -> None:
    network = network_of("node_a", "node_b")
    network.submit("busy", need=ALL)
    held = network.attempts("busy")[0]
    network.report(held.node, seen(held, HeldPhase.RUNNING))
    network.submit(need=ALL, queue_limit_ms=4_000)
    (first,) = network.attempts()
    fail(network, first)
    network.wait(5_000, report={first.node: [], held.node: [seen(held, HeldPhase.RUNNING)]})
    job = network.job()
    assert job.failure is not None and job.failure.code is FailureCode.QUEUE_EXPIRED
    assert job.confirmation is None


# --- the owner ---


@pytest.mark.spec("A12", "J12")
def test_the_owner_may_take_the_verdict_without_waiting() -> None:
    network, first = failed_once()
    second = network.attempts()[1]
    assert network.tell(CancelAsked(first.job)).answer == Done("its failure counts now, unconfirmed")
    job = network.job()
    assert (job.verdict, job.failure, job.confirmation) == (Verdict.FAILED, EXIT, Confirmation.TAKEN)
    revoked = network.attempts()[1].revoked
    assert revoked is not None and revoked.code is FailureCode.SUPERSEDED
    assert network.record(second.node).ends == ""


@pytest.mark.spec("A12", "J12")
def test_nobody_moves_a_job_to_the_machine_whose_word_is_doubted() -> None:
    network, first = failed_once()
    said = network.tell(MoveAsked(first.job, first.node)).answer
    assert isinstance(said, Rejected) and said.code == "node_not_ready"


@pytest.mark.spec("A12", "J6")
def test_the_run_that_confirms_starts_where_the_doubted_one_did() -> None:
    network = network_of("node_a", "node_b")
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.tell(Checkpointed(first.id, first.fence, "ab" * 32, 10))
    assert network.job().checkpoint is not None
    fail(network, first)
    assert network.attempts()[1].resumed is None
    assert network.job().checkpoint is None


@pytest.mark.spec("A12", "J14")
def test_a_new_leader_knows_what_is_doubted() -> None:
    network, held, first = doubted_while_the_other_is_busy()
    network.report(first.node)
    digest = network.kernel.digest()
    network.restart(2)
    network.join(first.node, instance="first")
    assert digest != network.kernel.digest()  # of another epoch
    assert network.kernel._w.fleet[first.node].doubted == 1
    network.join(held.node, held=(seen(held, HeldPhase.RUNNING),))
    assert [a.node for a in network.attempts()] == [first.node]
    succeed(network, held)
    second = network.attempts()[1]
    assert (second.node, second.purpose) == (held.node, Purpose.CONFIRM)
    succeed(network, second)
    assert network.node(first.node).strikes == 1
    assert network.kernel._w.fleet[first.node].doubted == 0


# --- two contenders ---


@pytest.mark.spec("A12", "J5")
def test_a_contender_that_runs_already_is_the_one_that_confirms() -> None:
    network = network_of("node_a", "node_b")
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    # the first comes back and blames the owner, which does not count while the other runs
    limit = Failure(FailureCode.TIME_LIMIT)
    network.join(first.node, held=(seen(first, HeldPhase.FINISHED, failure=limit),))
    assert network.job().pending_verdict is not None
    assert len(network.attempts()) == 2
    succeed(network, second)
    assert network.job().verdict is Verdict.SUCCEEDED
    # it was away, so it is not struck for a clock that ran on meanwhile
    assert network.node(first.node).strikes == 0
    assert network.record(first.node).ends == ""


# --- how much a machine without a record is given ---


def small(network: Network, count: int, prefix: str = "k") -> None:
    for number in range(count):
        network.submit(f"{prefix}{number}", need=Need(Resources(10, 10, 10)))


def on(network: Network, node: str) -> list[Attempt]:
    live = [r for r in network.rows.values() if isinstance(r, Attempt) and r.live and r.node == node]
    return sorted(live, key=lambda a: a.fence)


@pytest.mark.spec("A12", "N6")
def test_a_machine_without_a_record_gets_four_attempts_and_twice_as_many_with_each_four_good_ends() -> None:
    network = network_of("node_a")
    small(network, 200)
    widths = [len(on(network, "node_a"))]
    for _ in range(12):
        succeed(network, on(network, "node_a")[0])
        network.report("node_a", *(seen(a, HeldPhase.RUNNING) for a in on(network, "node_a")))
        widths.append(len(on(network, "node_a")))
    assert widths == [4, 4, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16, 32]


@pytest.mark.spec("A12", "H3")
def test_a_machine_that_blames_every_owner_touches_few_jobs() -> None:
    """It answers at once, and the others take their time."""
    network = network_of("node_liar", "node_b", "node_c", "node_d")
    small(network, 40)
    touched: set[str] = set()
    for _ in range(400):
        network.now += 50
        for attempt in on(network, "node_liar"):
            touched.add(attempt.job)
            fail(network, attempt)
        for node in ("node_b", "node_c", "node_d"):
            if on(network, node) and network.now % 500 == 50:
                succeed(network, on(network, node)[0])
            network.report(node, *(seen(a, HeldPhase.RUNNING) for a in on(network, node)))
        network.wait(50)
    ended = [r for r in network.rows.values() if getattr(r, "verdict", None) is not None]
    assert len(ended) == 40 and {job.verdict for job in ended} == {Verdict.SUCCEEDED}
    assert len(touched) <= 10
    assert network.node("node_liar").strikes >= 3


@pytest.mark.spec("A12", "H6")
def test_a_program_with_a_bug_on_new_machines_does_not_make_them_wait_for_each_other() -> None:
    network = network_of("node_a", "node_b")
    small(network, 30)
    for _ in range(60):
        for node in ("node_a", "node_b"):
            for attempt in on(network, node):
                fail(network, attempt)
        network.wait(50)
    ended = [r for r in network.rows.values() if getattr(r, "verdict", None) is not None]
    assert len(ended) == 30
    assert {job.confirmation for job in ended} <= {Confirmation.CONFIRMED, Confirmation.RECORD}
    assert {network.node(node).strikes for node in ("node_a", "node_b")} == {0}


@pytest.mark.spec("A12", "H3")
def test_on_probation_a_doubted_failure_is_no_proof_and_takes_the_only_place() -> None:
    network = network_of("node_a", "node_b")
    network.leave("node_a")
    network.join("node_a", instance="second")
    network.wait(300, report={"node_a": [], "node_b": []})
    w = network.kernel._w
    w.presence(NodeId("node_a")).pings = STRICT.probation_pings
    w.reindex(NodeId("node_a"))
    assert network.node("node_a").state is NodeState.PROBATION
    small(network, 12)
    (first,) = on(network, "node_a")
    fail(network, first)
    assert on(network, "node_a") == []
    assert network.node("node_a").state is NodeState.PROBATION
    assert w.closed_to_work(network.node("node_a")) is Gate.UNPROVEN


# --- faults among the last ten ends ---


@pytest.mark.spec("H3")
def test_three_faults_among_ten_ends_are_enough_and_one_in_ten_is_not() -> None:
    def after(ends: str) -> NodeState:
        network = network_of("node_a", "node_b", "node_c")
        for number, end in enumerate(ends):
            network.submit(f"k{number}", attempts_max=1)
            attempt = network.attempts(f"k{number}")[0]
            while attempt.node != "node_a":
                succeed(network, attempt)
                number += 1_000
                network.submit(f"k{number}", attempts_max=1)
                attempt = network.attempts(f"k{number}")[0]
            if end == "s":
                succeed(network, attempt)
            else:
                fail(network, attempt, Failure(FailureCode.RUNTIME_FAULT))
        return network.node("node_a").state

    assert after("fsfsf") is NodeState.QUARANTINED
    assert after("fsssssssff") is NodeState.QUARANTINED
    assert after("fssssssssff") is NodeState.READY
    assert after("fsssssssss" * 4) is NodeState.READY


@pytest.mark.spec("H3")
def test_a_machine_that_left_its_probation_begins_anew() -> None:
    network = network_of("node_a", "node_b")
    network.submit(attempts_max=1)
    w = network.kernel._w
    node = network.attempts()[0].node
    record = replace(network.record(node), ends="1s1s")
    w.load(record)
    w.begin(w.now)
    w.put(replace(w.nodes[node], state=NodeState.PROBATION, strikes=2))
    from holdfast.kernel.health import won

    won(w, node)
    assert (w.nodes[node].state, w.nodes[node].strikes, w.records[node].ends) == (NodeState.READY, 0, ".s.ss")


@pytest.mark.spec("H4")
def test_the_journal_says_what_is_doubted_and_how_it_ended() -> None:
    network = network_of("node_a", "node_b")
    entries: list[Entry] = []
    tell = network.tell

    def noted(event: Any) -> Any:
        decision = tell(event)
        entries.extend(row for row in decision.changes if isinstance(row, Entry))
        return decision

    network.tell = noted
    network.submit()
    (first,) = network.attempts()
    fail(network, first)
    fail(network, network.attempts()[1])
    texts = [e.text for e in entries if e.kind in ("job.confirming", "job.ended") and e.job == JobId(first.job)]
    assert texts == [
        f"it failed on {first.node} (exit_code: exit code 1); another machine confirms that",
        "failed: exit_code: exit code 1 (confirmed by another machine)",
    ]
