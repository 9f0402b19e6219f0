"""A whole network inside one test: real decisions, virtual time, and the same `Client`.

    with holdfast.testing.Network(nodes=3) as network:
        network.when("train", takes="2h", prints="done")
        job = network.client().jobs.submit(["train"])
        network.advance(hours=1)
        network.nodes[0].kill()
        assert job.wait().state == "succeeded"

Kernel, leader core, node core and attempt lifecycle are those that run in production; only connections, clocks and
disks are virtual, and jobs do what the test defines. No process is started, no port is opened, and hours pass in
milliseconds.
Time passes when the test calls `advance`, while a client waits for something, and a little with each request. The
same seed and the same calls give the same run.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.endpoint import Endpoint
from holdfast.errors import HoldfastError, Misuse
from holdfast.identity.admin import AdminToken
from holdfast.identity.tokens import Ticket, parse
from holdfast.kernel.decision import Answer
from holdfast.kernel.events import AnyEvent
from holdfast.model import Gpu, Meta, Node, NodeId, NodeState, Resources, Settings
from holdfast.orchestrator.api.authentication import Authentication
from holdfast.quantities import cpu_milli, size_mib
from holdfast.sim.network import DOWN, UP, SimLink
from holdfast.sim.node import MachineSpec
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.store import SimStore
from holdfast.sim.watch import InvariantWatch
from holdfast.sim.world import Clock, SimWorld
from holdfast.testing.network_api import NetworkApi
from holdfast.testing.network_bodies import Bodies, Body, Deed, Run, really
from holdfast.testing.network_clients import VirtualAsyncTransport, VirtualTransport
from holdfast.testing.network_content import VirtualContent
from holdfast.testing.network_context import context_of
from holdfast.testing.network_world import Belongings, VirtualMachine, VirtualOrchestrator

if TYPE_CHECKING:
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.client import Client

__all__ = ["Body", "Network", "NetworkStuck", "Run", "VirtualNode", "really"]

WALL_EPOCH_MS = 1_700_000_000_000
ANSWER_MS_MAX = 10_000
JOIN_MS_MAX = 120_000
IDLE_MS_MAX = 400 * 86_400_000
"""Limit for any wait in a network, in virtual milliseconds."""
LINK_MS = 1
URL = "http://127.0.0.1:0"
"""No request goes to this address. It is a loopback address, so that a request by mistake stays on this machine."""


class NetworkStuck(HoldfastError):
    """An awaited event can no longer happen."""

    code = "network_stuck"


class Network:
    """`nodes`: their number, or a list of what each one offers: `[{"cpu": 8, "gpu": 1}, {"cpu": 2}]`. `body`: what a
    job does if no `when` matches it. `preset`, `settings`: the orchestrator's settings."""

    def __init__(
        self,
        nodes: int | list[dict[str, Any]] = 3,
        *,
        seed: int = 0,
        body: Deed | None = None,
        preset: str = "lan",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._closed = True  # until construction is complete
        wanted = [{}] * nodes if isinstance(nodes, int) else nodes
        if not wanted:
            raise Misuse("a network without nodes runs nothing", hint="Give at least one: Network(nodes=1).")
        self.seed = seed
        self.settings = msgspec.structs.replace(Settings.preset(preset), open_join=True, **(settings or {}))
        self.belongings = Belongings()
        self.store = SimStore()
        self.bodies = Bodies(Body() if body is None else body)
        self._world = SimWorld(seed)
        self._watch = InvariantWatch()
        self._watch.add(())
        self._orchestrators: list[VirtualOrchestrator] = []
        self._keys = Random(f"keys {seed}")
        content = VirtualContent(self.belongings.blobs)
        admin = AdminToken(f"the admin of network {seed}")
        self.token = admin.text
        """The admin token, which its clients send with each request."""
        context = context_of(self, admin, content)
        self.door = NetworkApi(
            context, Authentication(admin, context.access.valid), content, self.need_open, lambda: self.leads
        )
        """The HTTP API that clients use. `door.lost = 1`: the next answer is lost on its way to the client."""
        self.nodes = [self._node(number, dict(offer)) for number, offer in enumerate(wanted, start=1)]
        self._closed = False
        self.start_orchestrator()
        for node in self.nodes:
            node.machine.start_agent()
        self.until(lambda: all(node.ready for node in self.nodes), seconds=JOIN_MS_MAX / 1_000)

    def _node(self, number: int, offer: dict[str, Any], ticket: Ticket | None = None) -> "VirtualNode":
        cpu, memory, disk = (str(offer.pop(word, usual)) for word, usual in _USUAL.items())
        gpus = int(offer.pop("gpu", 0))
        gpu_memory = size_mib(str(offer.pop("gpu_memory", "16GiB")))
        site = str(offer.pop("site", ""))
        if offer:
            raise Misuse(f"a node has no {sorted(offer)[0]!r}", hint="Use cpu, memory, disk, gpu, gpu_memory or site.")
        spec = MachineSpec(
            NodeId(f"node_{number}"),
            Resources(cpu_milli(cpu), size_mib(memory), size_mib(disk), gpus),
            site=site,
            gpus=(Gpu("Virtual 1", gpu_memory),) * gpus,
            token_id=ticket.id if ticket else "",
            token_sha256=ticket.secret_sha256 if ticket else "",
        )
        link = SimLink(self._world, self._world.stream(), LINK_MS)
        machine = VirtualMachine(spec, self._world, self._watch, link, self._find, {})
        machine.store, machine.bodies, machine.belongings = self.store, self.bodies, self.belongings
        machine.felled = lambda felled: felled.fall("a job took it down")
        return VirtualNode(self, machine)

    # --- for tests ---

    def client(self, token: str = "") -> "Client":
        """The SDK's own `Client`, connected to this network. Whatever it waits for, it waits for in virtual time.
        `token`: an access token (`client.access.create`); empty: the admin token."""
        from holdfast.client.client import Client

        self.need_open()
        return Client.over(VirtualTransport(self, Endpoint(URL, token or self.token)))

    def async_client(self, token: str = "") -> "AsyncClient":
        from holdfast.client.async_client import AsyncClient

        self.need_open()
        return AsyncClient.over(VirtualAsyncTransport(self, Endpoint(URL, token or self.token)))

    def join(self, token: str, **offer: Any) -> "VirtualNode":
        """Add a node that joins with a join token, so that it belongs to whoever made the token."""
        node = self._node(len(self.nodes) + 1, offer, parse(token))
        self.nodes.append(node)
        node.machine.start_agent()
        self.until(lambda: node.ready, seconds=JOIN_MS_MAX / 1_000)
        return node

    def when(self, job: str, body: Deed | None = None, **body_fields: Any) -> None:
        """Define what jobs do that have this name, this command or this first word of the command: `when("train",
        takes="2h")`, `when("flaky", exit_code=3)`, `when("train.py", a_function)`, `when("python3", really())`."""
        self.need_open()
        if body is not None and body_fields:
            raise Misuse("a body was given twice", hint="Give a Body or a function, or its fields, not both.")
        self.bodies.rule(job, body if body is not None else Body(**body_fields))

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass."""
        self._run(round(1_000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))))

    def until(self, done: Any, *, seconds: float = 3_600) -> None:
        """Let time pass until `done()` is true. Raises `NetworkStuck` if it is not true within `seconds` of virtual
        time."""
        limit = self._world.now + round(1_000 * seconds)
        while not done():
            if self._world.now >= limit:
                raise NetworkStuck(f"the condition did not become true within {seconds:g} virtual seconds")
            self._run(limit - self._world.now, stop_at_news=True)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the network was made."""
        return self._world.now / 1_000

    @property
    def fingerprint(self) -> str:
        """A hash of everything that happened; two identical runs have the same."""
        return self._world.trace_hash()

    def story(self) -> str:
        """The journal so far, one line per entry, for the message of a failing test."""
        return "\n".join(f"{at / 1_000:10.3f}  {e.kind:<20} {e.text}" for at, e in self.store.journal)

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the network. It, its nodes and its clients accept no more calls; what happened can still be read."""
        self._closed = True

    def need_open(self) -> None:
        if self._closed:
            raise Misuse("this network was closed", hint="Use it, its nodes and its clients inside its `with` block.")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"a holdfast.testing.Network (seed {self.seed}) was never closed: use it with `with`, or call `close`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    # --- the orchestrator ---

    def kill_orchestrator(self) -> None:
        """Kill the orchestrator as kill -9 does. Its store stays; nodes keep running their attempts."""
        self.need_open()
        leader = self._leader
        if leader is not None:
            leader.die(silently=False)

    def start_orchestrator(self) -> None:
        """Start an orchestrator if none runs."""
        self.need_open()
        if self._leader is None:
            clocks = Clock(self._world, 1_000, 0), Clock(self._world, WALL_EPOCH_MS, 0)
            name = f"orchestrator {len(self._orchestrators) + 1}"
            started = VirtualOrchestrator(name, self._world, self.store, self.settings, self._watch, *clocks)
            self._orchestrators.append(started)
            started.start()

    @property
    def _leader(self) -> VirtualOrchestrator | None:
        return next((one for one in reversed(self._orchestrators) if one.alive), None)

    def _find(self, random: Random) -> SimOrchestrator | None:
        leader = self._leader
        return leader if leader is not None and leader.serves else None

    # --- for the API and the clients ---

    @property
    def leads(self) -> bool:
        """Whether an orchestrator runs and leads."""
        leader = self._leader
        return leader is not None and leader.serves

    def ask(self, events: Sequence[AnyEvent]) -> list[Answer] | None:
        """Have the kernel decide, and wait until the decision is durable. None: no orchestrator confirmed it in
        time."""
        leader = self._leader
        if leader is None or not leader.serves:
            return None
        answers: dict[int, Answer | None] = {}
        for number, event in enumerate(events):
            leader.ask(event, partial(answers.__setitem__, number))
        self._world.happened = 0
        self._world.run_until(self._world.now + ANSWER_MS_MAX, lambda: len(answers) == len(events))
        heard = [answer for number in range(len(events)) if (answer := answers.get(number)) is not None]
        return heard if len(heard) == len(events) else None

    def pass_time(self, seconds: float, idle_s: float | None = None) -> None:
        """Let `seconds` pass. If nothing happens meanwhile, let up to `idle_s` pass in all, until something does."""
        before = len(self.store.journal)
        self._run(round(1_000 * seconds))
        if idle_s is not None and len(self.store.journal) == before:
            self._run(round(1_000 * min(idle_s - seconds, IDLE_MS_MAX / 1_000)), stop_at_news=True)

    def wait_for_news(self, seconds: float = IDLE_MS_MAX / 1_000) -> bool:
        """Let time pass until a journal entry is written. False: none was, and if no time was given, none will be."""
        before = len(self.store.journal)
        self._run(round(1_000 * seconds), stop_at_news=True)
        return len(self.store.journal) > before

    def _run(self, ms: int, stop_at_news: bool = False) -> None:
        self.need_open()
        world, journal = self._world, self.store.journal
        before, limit = len(journal), world.now + max(0, ms)
        while world.now < limit and not (stop_at_news and len(journal) > before):
            # In pieces: the limit on events in a world is meant for worlds of minutes.
            world.happened = 0
            piece = min(limit, world.now + _PIECE_MS)
            world.run_until(piece, (lambda: len(journal) > before) if stop_at_news else None)

    def new_key(self) -> str:
        """A key that was never used before, and is the same in every run."""
        return f"{self._keys.getrandbits(128):032x}"

    @property
    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + self._world.now

    @property
    def served_ms(self) -> int:
        """Served time, by which lifetimes are counted."""
        leader = self._leader
        if leader is not None and leader.core.leads:
            return leader.served_ms()
        meta = self.store.rows.get(("meta", 0))
        return meta.now_ms if isinstance(meta, Meta) else 0

    def is_connected(self, node: str) -> bool:
        machine = next((one.machine for one in self.nodes if one.id == node), None)
        return machine is not None and machine.agent is not None and machine.agent.core.connected

    def answers(self, node: str) -> bool:
        """Whether the node would answer a probe now."""
        machine = next((one.machine for one in self.nodes if one.id == node), None)
        agent = None if machine is None else machine.agent
        return (
            machine is not None and machine.link.whole
            and agent is not None and agent.core.connected and not agent.frozen
        )  # fmt: skip

    def state_of(self, node: str) -> NodeState | None:
        row = self.store.rows.get(("node", node))
        return row.state if isinstance(row, Node) else None


_PIECE_MS = 6 * 3_600_000
_USUAL = {"cpu": 4, "memory": "8GiB", "disk": "100GiB"}


class VirtualNode:
    """One machine of the network, with the faults that a test can cause."""

    def __init__(self, network: Network, machine: VirtualMachine) -> None:
        self._network = network
        self._machine = machine
        self.id = machine.spec.id
        self._cut = False

    def __repr__(self) -> str:
        return f"<VirtualNode {self.id} {'up' if self._machine.up else 'down'}>"

    @property
    def machine(self) -> VirtualMachine:
        self._network.need_open()
        return self._machine

    @property
    def up(self) -> bool:
        return self.machine.up

    @property
    def ready(self) -> bool:
        return self._network.state_of(self.id) is NodeState.READY

    @property
    def running(self) -> list[str]:
        """The jobs whose bodies run on this machine now."""
        return [shim.job for shim in self.machine.running]

    def kill(self) -> None:
        """Cut its power: everything but its disk is gone, and it reports nothing."""
        self.machine.fall("the test killed it")

    def start(self) -> None:
        """Start it again with the content of its disk."""
        self.machine.rise()

    def restart_agent(self) -> None:
        """Replace the agent; the bodies keep running."""
        self.machine.stop_agent("the test restarts it")
        self.machine.start_agent()

    def cut(self) -> None:
        """Cut its network connection; its bodies keep running, unaware of it."""
        if not self._cut:
            self._cut = True
            for way in (UP, DOWN):
                self.machine.link.sever(way)

    def mend(self) -> None:
        if self._cut:
            self._cut = False
            for way in (UP, DOWN):
                self.machine.link.mend(way)

    def freeze(self) -> None:
        """Freeze it, like a laptop that is closed."""
        self.machine.freeze(whole=True)

    def thaw(self) -> None:
        self.machine.thaw()

    def slow_down(self, factor: int) -> None:
        """Make everything on it take `factor` times as long; 1 restores the normal speed."""
        self.machine.set_slowness(factor)
