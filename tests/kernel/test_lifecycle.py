"""What happens to an attempt or a job is told to the mechanisms in one order, and another order is refused."""

from itertools import pairwise
from typing import Any

import pytest
from kernel_driver import at, network_of, seen

from holdfast.kernel import kernel, lifecycle
from holdfast.kernel.decision import Done
from holdfast.kernel.events import MoveAsked, NodeSaid
from holdfast.kernel.health import NodeHealth
from holdfast.kernel.lifecycle import BEFORE, MECHANISMS, Lifecycle
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.moving import Moving
from holdfast.model import FailureCode, NodeId, NodeState
from holdfast.model.messages import HeldPhase, Load, Report

ANSWERS = {
    "offered": ["Moving", "Reservations"],
    "body_started": ["Estimates", "NodeHealth", "Moving"],
    "progressed": ["Straggling"],
    "checkpointed": ["Straggling", "Moving", "Draining"],
    "reconnected": ["Straggling"],
    "away": ["Moving"],
    "returned": ["Poison", "NodeHealth"],
    "lost": ["Moving"],
    "accepted": ["Estimates"],
    "closed": ["Straggling"],
    "due": ["Moving", "Confirming"],
    "ending": ["Moving", "Confirming", "Reservations"],
    "ended": ["Files"],
    "job_changed": ["Moving", "Confirming", "Reservations", "SavedJobs"],
    "gate": ["Reservations"],
    "node_lost": ["Moving"],
    "served": ["Confirming"],
    "digest": ["Moving", "Confirming", "Reservations"],
}
"""Who answers to what, in which order."""


def in_each_others_place(first: type[Mechanism], second: type[Mechanism]) -> tuple[type[Mechanism], ...]:
    places = {first: second, second: first}
    return tuple(places.get(mechanism, mechanism) for mechanism in MECHANISMS)


def test_who_answers_to_what_in_which_order() -> None:
    names = [name for name in vars(Mechanism) if not name.startswith("_")]

    found = {
        name: [m.__name__ for m in MECHANISMS if getattr(m, name) is not getattr(Mechanism, name)] for name in names
    }

    assert found == ANSWERS


@pytest.mark.parametrize(("first", "second"), [(first, second) for first, second, _ in BEFORE])
def test_another_order_is_refused(first: type[Mechanism], second: type[Mechanism]) -> None:
    with pytest.raises(ValueError, match=f"{first.__name__} answers before {second.__name__}"):
        Lifecycle([second, first])


def test_every_two_that_decide_about_the_same_thing_have_an_order_with_a_reason() -> None:
    # Each writes fields of its own into the row of the job, or only keeps a view: any order gives the same.
    commute = {("Moving", "Reservations"), ("Confirming", "Reservations"), ("Reservations", "SavedJobs")}

    needed = {pair for answering in ANSWERS.values() for pair in pairwise(answering)} - commute

    assert needed <= {(first.__name__, second.__name__) for first, second, _ in BEFORE}


@pytest.mark.spec("J12", "H4")
@pytest.mark.parametrize(
    ("order", "code"),
    [(MECHANISMS, FailureCode.NODE_UNHEALTHY), (in_each_others_place(NodeHealth, Moving), FailureCode.SUPERSEDED)],
)
def test_another_order_would_decide_otherwise(
    monkeypatch: pytest.MonkeyPatch, order: tuple[type[Mechanism], ...], code: FailureCode
) -> None:
    # given mechanisms in some order, and a job that moves away from a machine that reports itself sick meanwhile
    monkeypatch.setattr(lifecycle, "BEFORE", ())
    monkeypatch.setattr(kernel, "Lifecycle", lambda: Lifecycle(order))
    network = network_of("node_a", "node_b")
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, at(first))
    there = NodeId("node_b" if first.node == "node_a" else "node_a")
    assert network.tell(MoveAsked(first.job, there)).answer == Done("moving")
    sick = Report(network.seqs[first.node] + 1, False, (), load=Load(sick="its disk fails"))
    network.tell(NodeSaid(network.sessions[first.node], first.node, sick))
    assert network.node(first.node).state is NodeState.QUARANTINED
    # when its body runs where it was moved to
    network.report(there, seen(network.attempts()[1], HeldPhase.RUNNING))
    # then the first attempt is revoked, for the reason of whoever answered first
    revoked = network.attempts()[0].revoked
    assert revoked is not None and revoked.code is code


def test_the_first_mechanism_that_handles_an_attempt_that_is_away_is_the_last_one_asked() -> None:
    asked: list[str] = []

    class Passes(Mechanism):
        def away(self, w: Any, attempt: Any, why: Any) -> bool:
            asked.append("passes")
            return False

    class Handles(Mechanism):
        def away(self, w: Any, attempt: Any, why: Any) -> bool:
            asked.append("handles")
            return True

    class NotAsked(Passes):
        pass

    nobody: Any = None
    assert Lifecycle([Passes, Handles, NotAsked]).away(nobody, nobody, nobody)
    assert asked == ["passes", "handles"]
    assert not Lifecycle([Passes]).away(nobody, nobody, nobody)


def test_a_mechanism_that_says_nothing_changes_nothing() -> None:
    """As a mechanism that overrides a method and leaves the rest of the work to the base does."""
    nothing, job = Mechanism(), object()
    some: Any = job
    assert nothing.offered(some, some) is nothing.lost(some, some, some, some) is nothing.ending(some, some) is job
    assert nothing.away(some, some, some) is False
    assert nothing.gate(some, some, None) is None and nothing.digest() is None
