"""Processes of strangers invent identities and claim those of others: few are let in, and the journal hardly grows."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.identity import tokens
from holdfast.model import Instant
from holdfast.testing.processes import READY_S, LocalNetwork

pytestmark = [pytest.mark.spec("A12", "N5", "N6"), pytest.mark.xdist_group("faults-identities")]

HERE = Path(__file__).parent
LET_IN = 6
"""Machines of one address that may join."""
LEAVING = 2
"""Entries about a machine that hung up: it is suspected, then lost."""
ATTACKERS, TRIES = 2, 40
"""Processes, and identities that each of them invents."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """The limit is low, and loopback is an address like any other."""
    with LocalNetwork(tmp_path_factory.mktemp("identities")) as network:
        network.start_orchestrator(flags=["--limit", f"joins_per_address_max={LET_IN}"])
        yield network


def attacked(network: LocalNetwork, *ways: tuple[str, ...]) -> Counter[str]:
    """How often which answer was given to strangers that do this at the same time. A way: a token, and an identity that
    is claimed."""
    assert network.orchestrator is not None
    words = [sys.executable, "-m", "attacks.identities", network.orchestrator.listen, str(READY_S), str(TRIES)]
    begun = [subprocess.Popen([*words, *way], stdout=subprocess.PIPE, cwd=HERE) for way in ways]
    try:
        return sum((Counter(json.loads(one.communicate(timeout=2 * READY_S)[0])) for one in begun), Counter[str]())
    finally:
        for one in begun:
            one.kill()


def rows(network: LocalNetwork, table: str) -> int:
    with sqlite3.connect(f"file:{network.home}/orchestrator/state.db?mode=ro", uri=True) as store:
        return store.execute(f"select count(*) from {table}").fetchone()[0]


def test_one_token_makes_as_many_nodes_as_an_address_may_have(network: LocalNetwork) -> None:
    # given a token for any number of machines, when processes invent identities with it
    token = network.client().tokens.create(uses=-1).token
    heard = attacked(network, *[(token,)] * ATTACKERS)
    # then a few are let in; the others are told to come later, and leave nothing behind
    assert heard == {"welcome": LET_IN, "join_limit": ATTACKERS * TRIES - LET_IN}
    assert len(network.client().nodes.list()) == rows(network, "nodes") == LET_IN


def test_strangers_without_a_right_leave_few_rows(network: LocalNetwork) -> None:
    # given a node whose id is known, and what strangers may have: no token, or one of nobody
    client = network.client()
    known = next((node.id for node in client.nodes.list()), "") or _joined(network)
    forged = tokens.make("", Instant(0), Instant(2**60))[0].text
    # when they dial in as fast as they can
    before = rows(network, "entries")
    heard = attacked(network, ("",), (forged,), ("", known))
    # then every one is refused, and the claims of the known identity are noted once
    assert heard == {"token_needed": TRIES, "token_wrong": TRIES, "uuid_taken": TRIES}
    assert rows(network, "entries") - before <= 1 + LEAVING * LET_IN


def _joined(network: LocalNetwork) -> str:
    attacked(network, (network.client().tokens.create(uses=-1).token,))
    return network.client().nodes.list()[0].id
