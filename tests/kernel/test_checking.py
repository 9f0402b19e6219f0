"""A check changes nothing and tells the truth: what it says is what a submission in the same moment meets."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kernel_driver import GOOD, ROOM, SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.decision import Checked, Rejected, Taken, Verify
from holdfast.kernel.events import CheckAsked, DrainAsked, Submitted, Verified
from holdfast.model import Hardware, JobSpec, Need, NodeId, Owner, Resources, job_id
from holdfast.model.messages import HeldPhase

pytestmark = pytest.mark.spec("H5")

OWNERS = ("ann", "ben")
needs = st.builds(
    lambda cpu, memory, gpus: Need(Resources(cpu, memory, 100, gpus)),
    st.sampled_from([500, 1_000, 3_000, 4_000, 9_000]),
    st.sampled_from([256, 1_024, 4_096]),
    st.sampled_from([0, 0, 0, 1]),
)
rooms = st.builds(
    lambda cpu, memory: Resources(cpu, memory, 10_000),
    st.sampled_from([1_000, 2_000, 4_000]),
    st.sampled_from([1_024, 4_096]),
)
steps = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 5), rooms),
    st.tuples(st.just("submit"), st.sampled_from(OWNERS), needs),
    st.tuples(st.just("submit"), st.sampled_from(OWNERS), needs),
    st.tuples(st.just("finish"), st.integers(0, 50), st.none()),
    st.tuples(st.just("drain"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 5), st.none()),
)


def remembered(network: Network) -> list[object]:
    """What a later choice may depend on and no row holds."""
    w = network.kernel._w
    return [w.index.remembered(), w.could.remembered(), w.peek()]


def played(story: list[tuple[str, object, object]]) -> Network:
    """A network in which all this happened."""
    network = Network(replace(SETTINGS, owner_live_jobs_max=6))
    for turn, (what, which, how) in enumerate(story):
        network.now += 10
        node = f"node_{which}"
        if what == "join" and node not in network.sessions:
            network.join(node, hardware=Hardware(total=ROOM), offered=how)
        elif what == "submit":
            spec = JobSpec(("true",), need=how)  # type: ignore[arg-type]
            network.tell(Submitted(job_id(str(which), f"k{turn}"), Owner(str(which)), spec, "hash"))
        elif what == "drain" and node in network.rows:
            network.tell(DrainAsked(NodeId(node), bool(how)))
        elif what == "leave" and node in network.sessions:
            network.leave(node)
        elif what == "finish":
            finish_one(network, int(str(which)))
    return network


def finish_one(network: Network, which: int) -> None:
    live = [row for key, row in sorted(network.rows.items()) if key.startswith("att_") and row.live and not row.revoked]
    if live:
        attempt = live[which % len(live)]
        network.report(attempt.node, seen(attempt, HeldPhase.RUNNING), full=False)
        network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD), full=False)
        for send in [s for s in network.sends if isinstance(s, Verify)]:
            network.tell(Verified(send.attempt, send.fence, True))
        network.report(attempt.node, seen(attempt, HeldPhase.GONE), full=False)


@examples(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from(OWNERS), needs)
def test_a_check_changes_nothing_and_says_where_a_submission_in_the_same_moment_goes(story, owner, need):
    # given a network with any past
    network = played(story)
    before, known = network.kernel.digest(), remembered(network)
    spec = JobSpec(("true",), need=need)
    # when a check asks, twice
    first = network.tell(CheckAsked(Owner(owner), spec))
    again = network.tell(CheckAsked(Owner(owner), spec))
    # then nothing was decided, sent or changed, and the answer stands
    assert (first.changes, first.sends) == ((), ())
    assert network.kernel.digest() == before and remembered(network) == known
    assert first.answer == again.answer
    said = first.answer
    assert isinstance(said, Checked)
    # and when the job is submitted in the same moment, it meets exactly that
    job = job_id(owner, "the one")
    answer = network.tell(Submitted(job, Owner(owner), spec, "hash")).answer
    if said.verdict in ("never", "refused"):
        assert isinstance(answer, Rejected) and (answer.code, answer.says) == (said.code, said.says)
        return
    assert isinstance(answer, Taken)
    placed = [row.node for row in network.attempts("the one", owner)]
    assert placed == ([said.node] if said.verdict == "now" else [])
    if said.verdict == "waits":
        assert said.says and said.node is None


@examples(max_examples=80, deadline=None)
@given(st.lists(steps, max_size=20), needs, st.integers(0, 5))
def test_a_check_of_one_node_speaks_of_that_node_and_changes_nothing(story, need, which):
    network = played(story)
    before, known = network.kernel.digest(), remembered(network)
    node = NodeId(f"node_{which}")
    answer = network.tell(CheckAsked(Owner("ann"), JobSpec(("true",), need=need), node=node)).answer
    assert network.kernel.digest() == before and remembered(network) == known
    if node not in network.rows:
        assert isinstance(answer, Rejected) and answer.code == "no_such_node"
        return
    assert isinstance(answer, Checked)
    assert answer.verdict == "refused" or answer.node == node
    if answer.verdict == "now":
        assert need.resources.fits_in(Resources(*answer.free)) and answer.state in ("ready", "probation")
        assert sum(answer.cost.values()) >= 0 and set(answer.cost) == {"load", "leftover", "waste", "spread", "avoid"}


def test_the_nearest_miss_is_named_for_what_can_never_run():
    network = Network()
    network.join("node_a")
    known = remembered(network)
    answer = network.tell(CheckAsked(Owner("ann"), JobSpec(("true",), need=Need(Resources(8_000, 512))))).answer
    assert isinstance(answer, Checked)
    assert (answer.verdict, answer.code) == ("never", "no_fit")
    assert "cpu 4000 of 8000" in answer.nearest
    # and nothing is remembered of it
    assert remembered(network) == known


def test_what_a_job_would_wait_for_is_said_with_how_many_stand_before_it():
    # given a machine that is full, and one job that waits already
    network = Network()
    network.join("node_a")
    network.submit("full", need=Need(ROOM))
    network.submit("waits", need=Need(ROOM))
    # when another asks
    answer = network.tell(CheckAsked(Owner("ann"), JobSpec(("true",), need=Need(ROOM)))).answer
    # then it is told what is missing, and that one is before it
    assert isinstance(answer, Checked)
    assert (answer.verdict, answer.ahead) == ("waits", 1)
    assert "0 free of" in answer.nearest and sum(answer.gates.values()) == 1


def test_checks_asked_between_decisions_change_none_of_them():
    """The same story with checks between its steps ends in the same rows."""
    story = [("join", n, Resources(4_000, 4_096, 10_000)) for n in range(4)]
    story += [("submit", "ann", Need(Resources(1_000, 256, 100)))] * 5
    quiet = played(deepcopy(story))
    asked = Network(quiet.settings)
    for turn, (what, which, how) in enumerate(story):
        asked.now += 10
        for _ in range(3):
            asked.tell(CheckAsked(Owner("ben"), JobSpec(("other",), need=Need(Resources(2_000, 512, 10)))))
        if what == "join":
            asked.join(f"node_{which}", hardware=Hardware(total=ROOM), offered=how)
        else:
            spec = JobSpec(("true",), need=how)
            asked.tell(Submitted(job_id(str(which), f"k{turn}"), Owner(str(which)), spec, "hash"))
    assert asked.kernel.digest() == quiet.kernel.digest()
