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
from holdfast.model import Hardware, Resources
from holdfast.node import hardware
from holdfast.node.agent import Agent
from holdfast.node.config import NodeConfig
from holdfast.node.home import NodeHome
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.node.status_page import serve_status


def run_node(config: NodeConfig) -> int:
    """Be a node until it is told to leave. Returns the exit code; says why on stderr where it is not 0."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
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
        launcher.start()
        key = NodeKey.load_or_make(home.path / "key")
        found = hardware.detect(home.path)
        offered = _offered(config, found, hardware.offered_by_default(found, home.path))
        asyncio.run(_live(config, home, launcher, key, ticket, found, offered, isolation, runtime))
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
    runtime: str,
) -> None:
    from holdfast.node.link import Link

    agent = Agent(config, home, launcher, key, ticket, found, offered, isolation, runtime)
    link = Link(config.orchestrator, ticket, key, agent, agent.courier)
    page = await serve_status(config.port, agent.snapshot) if config.port else None
    try:
        await agent.run(link)
    finally:
        if page is not None:
            page.close()


def choose_runtime(unsafe: bool) -> tuple[str, str]:
    """How jobs are confined and by which runtime: the sandbox where it works, else nothing, and only if allowed."""
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
