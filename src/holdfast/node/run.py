"""Starts a node and ends it: what must happen in which order, and what a person reads when it cannot.

The sandbox is tried and the launcher started while this process has one thread and knows no gRPC.
"""

import asyncio
import logging
import sys
import traceback
from pathlib import Path

from holdfast.errors import EXIT_INTERNAL, HoldfastError, Misconfigured
from holdfast.identity import tokens
from holdfast.identity.keys import NodeKey
from holdfast.model import CONTAINER, JOBS, NETWORK, PLAIN, Hardware, Resources
from holdfast.node import hardware
from holdfast.node.agent import Agent
from holdfast.node.config import NodeConfig
from holdfast.node.core.admission import Means
from holdfast.node.desk import Desk
from holdfast.node.home import NodeHome
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import netns, scratch
from holdfast.node.runtimes.container_trial import try_engine
from holdfast.node.runtimes.engine_api import find_engine
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.node.status_page import serve_status

log = logging.getLogger("holdfast.node")


def run_node(config: NodeConfig) -> int:
    """Be a node until it is told to leave. Returns the exit code; says why on stderr where it is not 0."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("httpx", "httpcore"):  # they name every address in full, and a signed one is a key
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _run(config)
    except HoldfastError as wrong:
        print(f"holdfast node: {wrong}", file=sys.stderr)
        return wrong.exit_code
    except Exception as wrong:  # a fault of ours; shims live on, and the next start finds them
        where = traceback.extract_tb(wrong.__traceback__)[-1]
        print(
            f"holdfast node: a fault of the program itself: {type(wrong).__name__}: {wrong} "
            f"({Path(where.filename).name}:{where.lineno}) [internal]\n  Start it again; running work is kept.",
            file=sys.stderr,
        )
        return EXIT_INTERNAL
    return 0


def _run(config: NodeConfig) -> None:
    ticket = tokens.parse(config.token) if config.token else None
    home = NodeHome(config.home)
    launcher = Launcher()
    try:
        isolation, runtime = choose_runtime(config.unsafe_process_runtime)
        means = choose_means(config, runtime)
        launcher.start()
        key = NodeKey.load_or_make(home.path / "key")
        found = hardware.detect(home.path)
        offered = _offered(config, found, hardware.offered_by_default(found, home.path))
        asyncio.run(_live(config, home, launcher, key, ticket, found, offered, isolation, means))
    finally:
        launcher.close()
        home.close()


async def _live(
    config: NodeConfig,
    home: NodeHome,
    launcher: Launcher,
    key: NodeKey,
    ticket: tokens.Ticket | None,
    found: Hardware,
    offered: Resources,
    isolation: str,
    means: Means,
) -> None:
    from holdfast.node.link import Link

    asyncio.get_running_loop().run_in_executor(None, scratch.warm)
    agent = Agent(config, home, launcher, key, ticket, found, offered, isolation, means)
    link = Link(config.orchestrator, ticket, key, agent, agent.courier)
    desk = Desk(
        home.path, offered, found.total, agent.feed, agent.snapshot, hours=config.hours, grace_ms=config.grace_ms
    )
    page = await serve_status(config.port, desk.status) if config.port else None
    await desk.open()
    try:
        await agent.run(link)
    finally:
        desk.close()
        if page is not None:
            page.close()


def choose_runtime(unsafe: bool) -> tuple[str, str]:
    """How plain jobs are confined and by which runtime: the sandbox where it works, else nothing, and only if
    allowed."""
    works, why = runtime_named("bubblewrap").works()
    if works:
        return "bubblewrap", "bubblewrap"
    if unsafe:
        return "none", "process"
    raise Misconfigured(
        f"no sandbox works on this machine: {why}",
        hint="Install bubblewrap, or give --unsafe-process-runtime to run jobs without confinement.",
        code="no_isolation",
    )


def choose_means(config: NodeConfig, runtime: str) -> Means:
    """What this machine can do for jobs, tried for real, as far as its operator lets it."""
    features = {JOBS, PLAIN}
    engine = "" if config.engine == "none" else find_engine(config.engine)
    if engine:
        why = try_engine(engine)
        if not why:
            features.add(CONTAINER)
        elif config.engine:
            raise Misconfigured(f"the container engine cannot be used: {why}", code="no_engine")
        else:
            log.warning("images cannot be run here: %s", why)
            engine = ""
    if config.network and runtime != "process" and not netns.hindrance():
        features.add(NETWORK)
    return Means(runtime, tuple(sorted(features)), engine)


def _offered(config: NodeConfig, found: Hardware, usual: Resources) -> Resources:
    """What the network may use: what the operator says, at most what is there."""

    def least(asked: int | None, usual_amount: int, total: int) -> int:
        return usual_amount if asked is None else min(asked, total)

    total = found.total
    return Resources(
        cpu_milli=least(config.cpu_milli, usual.cpu_milli, total.cpu_milli),
        memory_mib=least(config.memory_mib, usual.memory_mib, total.memory_mib),
        disk_mib=least(config.disk_mib, usual.disk_mib, total.disk_mib),
        gpus=least(config.gpus, usual.gpus, total.gpus),
    )
