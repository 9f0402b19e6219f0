"""What a job saved is where it goes on from: after a kill, after a drain; never from half of it or from a zombie."""

import pytest
from fault_network import COUNTING, QUICK, SMALL, FaultNetwork, Fleet

from holdfast.testing.processes import READY_S, NodeProcesses, wait_for

pytestmark = pytest.mark.xdist_group("faults-checkpoints")

COUNTER = COUNTING + """echo "to $n" | sed 's/[0-9]*$//'\n"""


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee", **QUICK)


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


def count_on(network: FaultNetwork, script: str = COUNTER, every_ms: int = 1000) -> str:
    return network.client().jobs.submit(["sh", "-c", script], checkpoint_ms=every_ms, **SMALL).id


def saved(network: FaultNetwork, job: str, times: int = 1) -> None:
    wait_for(lambda: len(network.journal("job.saved", job=job)) >= times, f"{times} checkpoint(s) of {job}")


def starts(network: FaultNetwork, job: str) -> list[int]:
    """Where each attempt that printed something began to count."""
    lines = network.output(job).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("from ")]


def counted(node: NodeProcesses, network: FaultNetwork, job: str) -> int:
    return int((network.folders(job, node)[0] / "checkpoint" / "count").read_text())


@pytest.mark.spec("J6", "J5", "J8")
def test_a_killed_node_costs_no_more_than_what_was_done_since_the_last_checkpoint(network: FaultNetwork) -> None:
    # given a job that has saved
    job = count_on(network)
    first = network.node_running(job)
    saved(network, job, 2)

    # when the whole tree of its node is killed
    first.kill_tree()
    done = counted(first, network, job)
    second = network.successor(job, first)

    # then the next attempt goes on from what was saved, not from the beginning
    wait_for(lambda: len(starts(network, job)) == 2, "the second attempt to print where it begins")
    began = starts(network, job)
    assert began[0] == 0 and 0 < began[1] <= done

    # and the job ends once, with the parent of its state on record
    network.let_go(job, second)
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made) == ("succeeded", 2)
    assert view.checkpoint is not None


@pytest.mark.spec("J6", "N7")
def test_a_drained_node_saves_before_its_work_moves(network: FaultNetwork) -> None:
    # given a job that would by itself save only after an hour
    job = count_on(network, every_ms=3_600_000)
    first = network.node_running(job)
    wait_for(lambda: (network.folders(job, first)[0] / "checkpoint" / "count").exists(), "it to count")
    wait_for(lambda: counted(first, network, job) > 5, "it to count on")

    # when its node is drained
    network.client().nodes.drain(first.id)
    second = network.successor(job, first)

    # then it was saved for that, and goes on elsewhere
    wait_for(lambda: len(starts(network, job)) == 2, "the second attempt to print where it begins")
    assert starts(network, job)[1] > 5
    network.let_go(job, second)
    assert network.client().jobs.wait(job, timeout_s=READY_S).verdict == "succeeded"


@pytest.mark.spec("J6")
def test_a_half_written_checkpoint_is_never_captured(network: FaultNetwork) -> None:
    # given a job that keeps a file open that is never whole, beside one that is
    waiting = 'while [ ! -e "$OLDPWD/release" ]; do sleep 0.1; done'
    script = f'cd "$HOLDFAST_CHECKPOINT_DIR"; exec 3>open; echo half >&3; {waiting}'
    job = count_on(network, script)
    node = network.node_running(job)

    # when captures are due several times
    wait_for(lambda: "keeps changing" in node.output(), "a capture to be given up")

    # then nothing was taken for a checkpoint, and the job itself is not harmed
    assert network.journal("job.saved", job=job) == []
    assert network.finish(job).verdict == "succeeded"


@pytest.mark.spec("J6", "J5")
def test_a_zombie_cannot_take_the_job_back_to_an_older_state(network: FaultNetwork) -> None:
    # given a job whose node freezes after a checkpoint
    job = count_on(network)
    first = network.node_running(job)
    saved(network, job)
    first.freeze_tree()
    second = network.successor(job, first)

    def went_further() -> bool:
        found = network.client().jobs.get(job).checkpoint
        return found is not None and found.attempt.endswith(".2")

    wait_for(went_further, "the second attempt to save")

    # when the frozen one comes back and would save again
    first.thaw_tree()
    deep = len(network.journal("job.saved", job=job))
    saved(network, job, deep + 2)

    # then the job's state is still that of the attempt that went further
    view = network.client().jobs.get(job)
    assert view.checkpoint is not None
    assert view.checkpoint.attempt.endswith(".2") and view.checkpoint.parent is not None
    network.let_go(job, second)
    assert network.client().jobs.wait(job, timeout_s=READY_S).verdict == "succeeded"
