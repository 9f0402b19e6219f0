"""Links cut between machines: network namespaces, real addresses, TLS, and packets dropped one way or both.

Each node lives in a namespace of its own, joined to the orchestrator by a cable of its own (a veth pair). A cut drops
packets inside the node's namespace, so neither side is told: silence is all that anyone can notice.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fault_network import PRINTED, QUICK, QUICK_RULES, FaultNetwork, lives, program_of

from holdfast.identity import tokens
from holdfast.testing.processes import READY_S, NodeProcesses, wait_for

pytestmark = [pytest.mark.xdist_group("faults-links"), pytest.mark.timeout(300)]

WAYS = {"both ways": ("INPUT", "OUTPUT"), "no word in": ("INPUT",), "no word out": ("OUTPUT",)}
FOUND_MS_MAX = QUICK_RULES.silence_ceiling_ms + 2_000
"""The ceiling of silence, and what a busy machine may add."""


def do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=READY_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Cable:
    """A namespace with one link to this machine."""

    def __init__(self, number: int) -> None:
        self.name = f"hf{os.getpid()}n{number}"
        self.here, self.there = f"hf{os.getpid()}h{number}"[-15:], f"hf{os.getpid()}t{number}"[-15:]
        # Of a range that is set aside for measurements between networks and routed nowhere.
        self.near, self.far = f"10.231.{number}.1", f"10.231.{number}.2"

    def lay(self, target: str) -> None:
        """`target`: the address that the orchestrator listens on, here."""
        do("ip", "netns", "add", self.name)
        do("ip", "link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.name)
        do("ip", "addr", "add", f"{self.near}/30", "dev", self.here)
        do("ip", "link", "set", self.here, "up")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "addr", "add", f"{self.far}/30", "dev", self.there)
        self.inside("ip", "link", "set", self.there, "up")
        if target != self.near:
            self.inside("ip", "route", "add", target, "via", self.near)

    def inside(self, *words: str) -> None:
        do("ip", "netns", "exec", self.name, *words)

    def cut(self, way: str) -> None:
        for chain in WAYS[way]:
            self.inside("iptables", "-A", chain, "-j", "DROP")

    def heal(self) -> None:
        self.inside("iptables", "-F")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self.here], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


@contextmanager
def cables(count: int) -> Iterator[list[Cable]]:
    laid = [Cable(number + 1) for number in range(count)]
    with ExitStack() as stack:
        for cable in laid:
            stack.callback(cable.remove)
            cable.lay(laid[0].near)
        yield laid


class Wired:
    """A network whose nodes can each be cut off."""

    def __init__(self, network: FaultNetwork, by_name: dict[str, Cable]) -> None:
        self.network = network
        self.cables = by_name

    def cable(self, node: NodeProcesses) -> Cable:
        return self.cables[node.name]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with cables(2) as laid, FaultNetwork(tmp_path_factory.mktemp("wired")) as network:
        network.rules = QUICK
        network.start_orchestrator(host=laid[0].near)
        wired = Wired(network, dict(zip(("ant", "bee"), laid, strict=True)))
        for name, cable in wired.cables.items():
            network.start_node(name, through=["ip", "netns", "exec", cable.name], wait=False)
        yield wired


@pytest.fixture
def wired(machines: Wired) -> Wired:
    for cable in machines.cables.values():
        cable.heal()
    machines.network.settle()
    return machines


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.spec("N1", "N6")
def test_beyond_loopback_only_the_pinned_certificate_is_trusted(wired: Wired, tmp_path: Path) -> None:
    network = wired.network
    # given nodes that joined over TLS; when one comes with a token that pins another certificate, or none
    known = network.client().tokens.create().token
    ticket = tokens.parse(known)
    assert ticket.pin
    other = tokens.Ticket(ticket.id, ticket.secret, "ab" * 32)
    bare = tokens.Ticket(ticket.id, ticket.secret, "")
    words = ["node", "--orchestrator", network.up.listen, "--home", str(tmp_path / "stranger")]
    words += ["--unsafe-process-runtime"] if network.unsafe else []
    # then it turns away by itself, before its secret has left the machine
    untrusting = network.cli(*words, "--token", other.text, check=76)
    assert "[pin_mismatch]" in untrusting.stderr and "No secret was sent" in untrusting.stderr
    unpinned = network.cli(*words, "--token", bare.text, check=78)
    assert "[no_pin]" in unpinned.stderr


@pytest.mark.spec("J5", "H2", "N9")
@pytest.mark.parametrize("way", list(WAYS))
def test_a_cut_link_moves_the_job_and_a_healed_one_changes_nothing(way: str, wired: Wired) -> None:
    network = wired.network
    # given a job that runs
    job = network.hold()
    first = network.node_running(job)
    network.wait_output(job)
    body = program_of(first)
    since = network.now()

    # when the link of its node is cut
    wired.cable(first).cut(way)
    cut_ms = milliseconds()

    # then the silence is noticed in time and the job taken over
    suspected = network.entry("node.suspect", node=first.id, after=since)
    assert suspected.at_ms - cut_ms < FOUND_MS_MAX
    takeover = network.entry("job.takeover", job=job, after=since)
    assert takeover.at_ms == suspected.at_ms
    second = network.successor(job, first)
    network.let_go(job, second)
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 2, second.id)

    # and the cut-off body, which nobody could tell anything, also ends, with a result of its own
    network.let_go(job, first)
    wait_for(lambda: not lives(body), "the cut-off body to end")
    assert network.folders(job, first)

    # and when the link is whole again, that result is refused, nothing is left, and the node is taken back
    wired.cable(first).heal()
    network.wait_clean(first)
    network.wait_node(first.name)
    after = network.client().jobs.get(job)
    assert (after.verdict, after.node, after.result_sha256) == ("succeeded", second.id, view.result_sha256)
    assert [e.attempt for e in network.journal("job.accepted", job=job)] == [view.attempts[1].id]
    assert [e.attempt for e in network.journal("attempt.revoked", job=job)] == [view.attempts[0].id]
    assert f"{view.attempts[0].id} is no longer wanted: superseded" in first.output()


@pytest.mark.spec("J5", "J8", "H2")
def test_a_link_cut_for_a_moment_costs_nothing(wired: Wired) -> None:
    network = wired.network
    # given a job that only one node may hold: the other takes nothing new
    job = network.hold()
    node = network.node_running(job)
    network.client().nodes.drain(network.other(node).id)
    body = program_of(node)

    # when its link is cut until it is suspected, and healed
    since = network.now()
    wired.cable(node).cut("both ways")
    network.entry("node.suspect", node=node.id, after=since)
    wired.cable(node).heal()

    # then the same attempt goes on and ends the job
    network.entry("node.probation", node=node.id, after=since)
    assert lives(body)
    view = network.finish(job)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 1, node.id)
    assert network.output(job) == PRINTED


@pytest.mark.spec("J5", "J7", "J8")
@pytest.mark.parametrize("way", ["both ways", "no word in"])
def test_work_that_must_not_repeat_dies_with_its_link_before_anyone_gives_it_up(way: str, wired: Wired) -> None:
    network = wired.network
    # given such a job, running, and another node with room
    job = network.hold(recovery="never")
    node = network.node_running(job)
    body = program_of(node)

    # when its link is cut
    wired.cable(node).cut(way)

    # then its body is dead when the job is called lost, by the network's fault and unpaid
    view = network.client().jobs.wait(job, timeout_s=READY_S, check=False)
    assert not lives(body)
    assert view.failure is not None
    assert (view.failure.code, view.failure.blame, view.failure.billable) == ("lease_lost", "network", False)

    # and after healing there is still one attempt, whose body ran once
    wired.cable(node).heal()
    network.wait_clean(node)
    assert network.client().jobs.get(job).attempts_made == 1
    assert len(network.journal("attempt.running", job=job)) == 1
    assert network.journal("job.accepted", job=job) == []
