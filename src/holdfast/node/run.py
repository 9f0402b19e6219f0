"""Starts and ends a node: the order of the steps, and the message to the operator if one fails.

The sandbox is tried and the launcher started while this process has one thread and has not loaded gRPC.
"""

import asyncio
import logging
import sys
import traceback
from pathlib import Path

from holdfast.errors import EXIT_INTERNAL, HoldfastError, Misconfigured
from holdfast.identity import tokens
from holdfast.identity.keys import NodeKey
from holdfast.model import BUILD, CONTAINER, JOBS, NETWORK, PLAIN, Hardware, Resources
from holdfast.node import hardware
from holdfast.node.agent import Agent
from holdfast.node.config import NodeConfig
from holdfast.node.core.admission import Means
from holdfast.node.home import NodeHome
from holdfast.node.launcher import Launcher
from holdfast.node.operator.operator_socket import OperatorSocket
from holdfast.node.operator.status_page import serve_status
from holdfast.node.runtimes import netns, scratch
from holdfast.node.runtimes.container_trial import try_engine
from holdfast.node.runtimes.engine_api import find_engine
from holdfast.node.runtimes.runtime import runtime_named

log = logging.getLogger("holdfast.node")


def run_node(config: NodeConfig) -> int:
    """Run a node until it leaves. Returns the exit code; prints the reason to stderr if it is not 0."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("httpx", "httpcore"):  # they log full URLs, and a signed URL is a secret
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _run(config)
    except HoldfastError as wrong:
        print(f"holdfast node: {wrong}", file=sys.stderr)
        return wrong.exit_code
    except Exception as wrong:  # a bug; shims keep running, and the next start finds them
        where = traceback.extract_tb(wrong.__traceback__)[-1]
        print(
            f"holdfast node: internal error: {type(wrong).__name__}: {wrong} "
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
    operator_socket = OperatorSocket(
        home.path, offered, found.total, agent.feed, agent.snapshot, hours=config.hours, grace_ms=config.grace_ms
    )
    page = await serve_status(config.port, operator_socket.status) if config.port else None
    await operator_socket.open()
    try:
        await agent.run(link)
    finally:
        if page is not None:
            page.close()
        await operator_socket.close()


def choose_runtime(unsafe: bool) -> tuple[str, str]:
    """Choose the isolation of plain jobs and its runtime: the sandbox if it works, otherwise none, and only if that is
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
    """What this machine can do for jobs, tried out, as far as its operator allows it."""
    features = {JOBS, PLAIN}
    engine = "" if config.engine == "none" else find_engine(config.engine)
    if engine:
        why = try_engine(engine)
        if not why:
            features |= {CONTAINER, BUILD} if config.builds else {CONTAINER}
        elif config.engine:
            raise Misconfigured(f"the container engine cannot be used: {why}", code="no_engine")
        else:
            log.warning("images cannot be run here: %s", why)
            engine = ""
    if config.network and runtime != "process" and not netns.hindrance():
        features.add(NETWORK)
    return Means(runtime, tuple(sorted(features)), engine)


def _offered(config: NodeConfig, found: Hardware, usual: Resources) -> Resources:
    """What the network may use: the operator's settings, limited to what the machine has."""

    def least(asked: int | None, usual_amount: int, total: int) -> int:
        return usual_amount if asked is None else min(asked, total)

    total = found.total
    return Resources(
        cpu_milli=least(config.cpu_milli, usual.cpu_milli, total.cpu_milli),
        memory_mib=least(config.memory_mib, usual.memory_mib, total.memory_mib),
        disk_mib=least(config.disk_mib, usual.disk_mib, total.disk_mib),
        gpus=least(config.gpus, usual.gpus, total.gpus),
    )
