"""kill -9 of the orchestrator at every fail point of its source, over a real node with real work on it (SPEC J14).

The points are read from the source, so that a new one is covered by being there; one that a run does not come by
fails its case, since nobody would have died there.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from fault_network import PRINTED, SMALL, FaultNetwork, lives, program_of

from holdfast.orchestrator import failpoints
from holdfast.testing.processes import READY_S, wait_for

SHORT = ["sh", "-c", "echo in time"]
STORES = [pytest.param(name, marks=pytest.mark.xdist_group(f"faults-points-{name}")) for name in ("sqlite", "postgres")]


@pytest.fixture(scope="module", params=STORES)
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    """One node, on SQLite and on PostgreSQL."""
    folder = tmp_path_factory.mktemp("points")
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'state.db'}"
        if request.param == "postgres":
            server = request.getfixturevalue("postgres_server")
            server.do("CREATE DATABASE fail_points")
            stack.callback(server.do, "DROP DATABASE fail_points WITH (FORCE)")
            url = server.url("fail_points")
        network = stack.enter_context(FaultNetwork(folder))
        network.start_orchestrator(store_url=url)
        network.start_node("ant")
        yield network


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


class Supervisor:
    """Starts the orchestrator again whenever it died, as an init system would."""

    def __init__(self, network: FaultNetwork, points: list[str]) -> None:
        self.network = network
        self.points = points
        """Where the next lives are to end; when there are no more of them, a life is left alone."""
        self.deaths: list[tuple[str, int]] = []
        """(point, exit status) of each life that ended."""

    def begin(self) -> None:
        """The next life. The one before is killed where it stands."""
        self.armed = self.points.pop(0) if self.points else ""
        env = {failpoints.ENVIRONMENT: self.armed} if self.armed else {}
        self.network.restart_orchestrator(env, wait=False)

    def look(self) -> None:
        status = self.network.up.process.poll()
        if status is not None:
            self.deaths.append((self.armed, status))
            self.begin()

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                self.look()

        self.begin()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self.points.clear()
            if self.armed:
                self.begin()
            self.network.wait_ready()


@pytest.mark.spec("J14", "J5", "J4", "N9")
@pytest.mark.parametrize("point", failpoints.names())
def test_dying_at_a_fail_point_loses_nothing_that_was_acknowledged(point: str, network: FaultNetwork) -> None:
    # given a job that runs on a node and has printed something that the orchestrator acknowledged
    node, client = network.nodes["ant"], network.client()
    before = {job.id for job in client.jobs.list(limit=1000).jobs}
    standing = network.hold(key=f"standing at {point}")
    network.node_running(standing)
    network.wait_output(standing)
    body = program_of(node)

    # when the orchestrator is killed, and dies in its next life the first time it comes by this point, and in
    # the one after at a later visit, while more work is sent to it, done, and lost from sight
    supervisor = Supervisor(network, [point, f"{point}:4"])
    with supervisor.watching():
        keys = [f"after {point} {n}" for n in range(3)]
        sent = {key: client.jobs.submit(SHORT, key=key, **SMALL).id for key in keys}
        ended = [client.jobs.wait(job, timeout_s=READY_S, check=False) for job in sent.values()]
        if not supervisor.deaths:
            node.kill_agent()
            node = network.start_again(node)
        wait_for(lambda: supervisor.deaths, f"the orchestrator to come by {point}")
        view = network.finish(standing)
        again = [client.jobs.submit(SHORT, key=key, **SMALL) for key in keys]

    # then it died there, by SIGKILL and nothing else
    assert supervisor.deaths[0] == (point, -signal.SIGKILL)
    assert all(status == -signal.SIGKILL for _, status in supervisor.deaths), network.up.tail()
    # and what was running was adopted: the same attempt, and to the letter what one body prints
    assert (view.verdict, view.attempts_made) == ("succeeded", 1)
    assert network.output(standing) == PRINTED
    assert not lives(body)
    # and whatever was acknowledged is there once, and done
    assert [(job.verdict, network.output(job.id)) for job in ended] == [("succeeded", "in time\n")] * 3
    assert {job.id for job in client.jobs.list(limit=1000).jobs} - before == {standing, *sent.values()}
    # and each has one accepted result, and one end
    for job in (standing, *sent.values()):
        assert len(network.journal("job.ended", job=job)) == 1
        assert len(network.journal("job.accepted", job=job)) == 1
    assert [(job.id, job.again) for job in again] == [(sent[key], True) for key in keys]
    assert client.doctor().ok
    network.wait_clean(node)
