"""A whole network inside one test: real decisions, virtual time, and the same `Client`.

    with holdfast.testing.Network(nodes=3) as network:
        network.when("train", takes="2h", prints="done")
        job = network.client().jobs.submit(["train"])
        network.advance(hours=1)
        network.nodes[0].kill()
        assert job.wait().state == "succeeded"

Kernel, leader core, node core and warden are those that run in production; only wires, clocks and disks are virtual,
and jobs do what the test says. Nothing is started, no port is opened, and hours pass in milliseconds. Time passes when
the test lets it (`advance`), while a client waits for something, and a little with each request. The same seed and the
same calls give the same run.
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
from holdfast.kernel.decision import Answer
from holdfast.kernel.events import AnyEvent
from holdfast.model import Gpu, Node, NodeId, NodeState, Resources, Settings
from holdfast.quantities import cpu_milli, size_mib
from holdfast.sim.network import DOWN, UP, SimLink
from holdfast.sim.node import MachineSpec
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.store import SimStore
from holdfast.sim.watch import InvariantWatch
from holdfast.sim.world import Clock, SimWorld
from holdfast.testing.network_bodies import Bodies, Body, Deed, Run, really
from holdfast.testing.network_clients import VirtualAsyncTransport, VirtualTransport
from holdfast.testing.network_content import VirtualContent
from holdfast.testing.network_context import context_of
from holdfast.testing.network_door import NetworkApi
from holdfast.testing.network_world import Belongings, VirtualMachine, VirtualOrchestrator

if TYPE_CHECKING:
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.client import Client

__all__ = ["Body", "Network", "NetworkStuck", "Run", "VirtualNode", "really"]

WALL_EPOCH_MS = 1_700_000_000_000
ANSWER_MS_MAX = 10_000
JOIN_MS_MAX = 120_000
IDLE_MS_MAX = 400 * 86_400_000
"""Nothing in a network waits longer than this for anything."""
LINK_MS = 1
URL = "http://127.0.0.1:0"
"""Nobody is asked there; an address of this machine, in case somebody asks after all."""


class NetworkStuck(HoldfastError):
    """Something that was waited for can no longer happen."""

    code = "network_stuck"


class Network:
    """`nodes`: how many, or a list with what each offers: `[{"cpu": 8, "gpu": 1}, {"cpu": 2}]`. `body`: what jobs do of
    which nothing else is said. `preset`, `settings`: how patient it is, as for an orchestrator."""

    def __init__(
        self,
        nodes: int | list[dict[str, Any]] = 3,
        *,
        seed: int = 0,
        body: Deed | None = None,
        preset: str = "lan",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._closed = True  # until it is made
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
        self.door = NetworkApi(context_of(self, content), content, self.need_open, lambda: self.leads)
        """What clients speak to. `door.lost = 1`: the next answer gets lost on its way."""
        self.nodes = [self._node(number, dict(offer)) for number, offer in enumerate(wanted, start=1)]
        self._closed = False
        self.start_orchestrator()
        for node in self.nodes:
            node.machine.start_agent()
        self.until(lambda: all(node.ready for node in self.nodes), seconds=JOIN_MS_MAX / 1_000)

    def _node(self, number: int, offer: dict[str, Any]) -> "VirtualNode":
        cpu, memory, disk = (str(offer.pop(word, usual)) for word, usual in _USUAL.items())
        gpus = int(offer.pop("gpu", 0))
        gpu_memory = size_mib(str(offer.pop("gpu_memory", "16GiB")))
        site = str(offer.pop("site", ""))
        if offer:
            raise Misuse(
                f"a node has no {sorted(offer)[0]!r}", hint="There are cpu, memory, disk, gpu, gpu_memory, site."
            )
        spec = MachineSpec(
            NodeId(f"node_{number}"),
            Resources(cpu_milli(cpu), size_mib(memory), size_mib(disk), gpus),
            site=site,
            gpus=(Gpu("Virtual 1", gpu_memory),) * gpus,
        )
        link = SimLink(self._world, self._world.stream(), LINK_MS)
        machine = VirtualMachine(spec, self._world, self._watch, link, self._find, {})
        machine.store, machine.bodies, machine.belongings = self.store, self.bodies, self.belongings
        machine.felled = lambda felled: felled.fall("a job took it down")
        return VirtualNode(self, machine)

    # --- for tests ---

    def client(self) -> "Client":
        """The SDK's own `Client`, of this network. Whatever it waits for, it waits for in virtual time."""
        from holdfast.client.client import Client

        self.need_open()
        return Client.over(VirtualTransport(self, Endpoint(URL)))

    def async_client(self) -> "AsyncClient":
        from holdfast.client.async_client import AsyncClient

        self.need_open()
        return AsyncClient.over(VirtualAsyncTransport(self, Endpoint(URL)))

    def when(self, job: str, body: Deed | None = None, **body_fields: Any) -> None:
        """What jobs do that are called so, or whose command is or begins with this word: `when("train", takes="2h")`,
        `when("flaky", exit_code=3)`, `when("train.py", a_function)`, `when("python3", really())`."""
        self.need_open()
        if body is not None and body_fields:
            raise Misuse("a body was given twice", hint="Give a Body or a function, or its fields, not both.")
        self.bodies.rule(job, body if body is not None else Body(**body_fields))

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass."""
        self._run(round(1_000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))))

    def until(self, done: Any, *, seconds: float = 3_600) -> None:
        """Let time pass until `done()` holds. Raises `NetworkStuck` if it does not within so many virtual seconds."""
        limit = self._world.now + round(1_000 * seconds)
        while not done():
            if self._world.now >= limit:
                raise NetworkStuck(f"what was waited for did not happen within {seconds:g} virtual seconds")
            self._run(limit - self._world.now, stop_at_news=True)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the network was made."""
        return self._world.now / 1_000

    @property
    def fingerprint(self) -> str:
        """The same for two runs in which everything happened the same."""
        return self._world.trace_hash()

    def story(self) -> str:
        """What happened so far, one line each, for the message of a test that fails."""
        return "\n".join(f"{at / 1_000:10.3f}  {e.kind:<20} {e.text}" for at, e in self.store.journal)

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The end: nothing can be asked of it, its nodes or its clients any more. What happened can still be read."""
        self._closed = True

    def need_open(self) -> None:
        if self._closed:
            raise Misuse("this network was closed", hint="Use it, its nodes and its clients inside of its `with`.")

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
        """As kill -9 does. Its store stays; nodes go on with what they have."""
        self.need_open()
        leader = self._leader
        if leader is not None:
            leader.die(silently=False)

    def start_orchestrator(self) -> None:
        """In place of one that was killed."""
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

    # --- for the door and the clients ---

    @property
    def leads(self) -> bool:
        """Whether an orchestrator runs and leads."""
        leader = self._leader
        return leader is not None and leader.serves

    def ask(self, events: Sequence[AnyEvent]) -> list[Answer] | None:
        """Have the kernel decide, and wait until that is durable. None: nobody confirms it."""
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
        """Somebody waits for so long; or, where nothing at all happens, for up to `idle_s`."""
        before = len(self.store.journal)
        self._run(round(1_000 * seconds))
        if idle_s is not None and len(self.store.journal) == before:
            self._run(round(1_000 * min(idle_s - seconds, IDLE_MS_MAX / 1_000)), stop_at_news=True)

    def wait_for_news(self, seconds: float = IDLE_MS_MAX / 1_000) -> bool:
        """Let time pass until something is put on record. False: nothing was, and if no time was given, nothing will
        be."""
        before = len(self.store.journal)
        self._run(round(1_000 * seconds), stop_at_news=True)
        return len(self.store.journal) > before

    def _run(self, ms: int, stop_at_news: bool = False) -> None:
        self.need_open()
        world, journal = self._world, self.store.journal
        before, limit = len(journal), world.now + max(0, ms)
        while world.now < limit and not (stop_at_news and len(journal) > before):
            # In pieces: the world's own bound on events is one for worlds of minutes.
            world.happened = 0
            piece = min(limit, world.now + _PIECE_MS)
            world.run_until(piece, (lambda: len(journal) > before) if stop_at_news else None)

    def new_key(self) -> str:
        """Never used before, and the same in every run."""
        return f"{self._keys.getrandbits(128):032x}"

    @property
    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + self._world.now

    def is_connected(self, node: str) -> bool:
        machine = next((one.machine for one in self.nodes if one.id == node), None)
        return machine is not None and machine.agent is not None and machine.agent.core.connected

    def answers(self, node: str) -> bool:
        """Whether a question to the node would be answered now."""
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
    """One machine of the network, and what can happen to it."""

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
        """The jobs whose bodies run here at this moment."""
        return [shim.job for shim in self.machine.running]

    def kill(self) -> None:
        """Power is lost: everything on it is gone, and nobody is told."""
        self.machine.fall("the test killed it")

    def start(self) -> None:
        """It comes back, empty-handed but for its disk."""
        self.machine.rise()

    def restart_agent(self) -> None:
        """The agent is replaced; what runs goes on."""
        self.machine.stop_agent("the test restarts it")
        self.machine.start_agent()

    def cut(self) -> None:
        """The network to it is cut; what runs there goes on, and does not know."""
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
        """It stands still, as a laptop does when it is closed."""
        self.machine.freeze(whole=True)

    def thaw(self) -> None:
        self.machine.thaw()

    def slow_down(self, factor: int) -> None:
        """Everything on it takes so many times as long; 1: as before."""
        self.machine.set_slowness(factor)
