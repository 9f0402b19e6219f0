"""Strangers attack every listener, and an honest client of the same address notices nothing.

The long form, as an operator would run it, is `make attacks`. Here each attack lasts a second.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from attacked import BACK_S, NO_LIMITS, Attacked, Measured, idle_machine
from psutil import NoSuchProcess

from holdfast.testing.processes import READY_S, NotInTime, wait_for

pytestmark = [pytest.mark.serial, pytest.mark.xdist_group("faults-attacks")]

ATTACK_S = float(os.environ.get("HOLDFAST_ATTACK_S", "1"))
LONG = ATTACK_S > 10
CONNECTIONS = 20_000 if LONG else 4_100
TRIES = 1 if LONG else 3
"""The short form runs beside other work: once too slow is not yet a fault."""
REFUSED_S = 3.0
"""Without an answer for so long, people are shut out."""
P99_S, TIMES_QUIET = 0.25, 5
QUIET_S = 2.0 if LONG else 0.5
CONTROL = "/holdfast.v1.NodeLink/Control"
ATTACKS = {
    "large_bodies": ("files", 16),
    "deep_nesting": ("http", 16),
    "header_flood": ("http", 64),
    "half_sent": ("http", CONNECTIONS),
    "second_request": ("http", CONNECTIONS),
    "idle_prefaces": ("nodes", CONNECTIONS),
    "idle_tls": ("http", CONNECTIONS),
}
"""The listener that each is aimed at, and how many connections it holds."""
NEED_LIMITS = ("header_flood", "half_sent", "second_request", "idle_prefaces", "idle_tls") if LONG else ("half_sent",)
"""What shuts people out of a server without limits, or keeps its memory. Of the other two, no number protects: bodies
without a token are not read, and nesting is refused by the parser."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with Attacked(tmp_path_factory.mktemp("plain")) as server:
        yield server


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with Attacked(tmp_path_factory.mktemp("secured"), tls=True) as server:
        yield server


def attacked(server: Attacked, name: str) -> tuple[Measured, Measured]:
    """What an honest client sees before the attack and during it."""
    listener, connections = ATTACKS[name]
    more = [server.token] if name == "deep_nesting" else []
    quiet = server.measure(QUIET_S)
    with server.attack(name, listener, connections, ATTACK_S + READY_S, *more) as begun:
        begun()
        return quiet, server.measure(ATTACK_S)


def harmed(quiet: Measured, during: Measured) -> bool:
    return during.p99_s > max(TIMES_QUIET * quiet.p99_s, P99_S)


@pytest.mark.spec("A12", "H3")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_client_notices_no_attack(name: str, request: pytest.FixtureRequest) -> None:
    server: Attacked = request.getfixturevalue("secured" if name == "idle_tls" else "plain")
    server.measure(0.5)  # what is made at the first request is not counted
    start, logged = server.taken(), len(server.output())
    for left in reversed(range(TRIES)):
        calm = idle_machine()
        quiet, during = attacked(server, name)
        # then nothing is left of the attack
        wait_for(lambda: server.back_at(start), lambda: f"{server.taken()} to be {start} again", BACK_S)
        # and nobody honest was refused, and was served about as fast as before, if this machine had nothing else to do
        slow = harmed(quiet, during)
        if not during.failures and not (slow and calm and idle_machine()):
            break
        assert left, f"{during.p99_s:.3f} s under attack, {quiet.p99_s:.3f} s before; {during.failures[:3]}"
    # and the log has some lines about it, and no more
    assert "Traceback" not in server.output()
    assert len(server.output()) - logged < 4_000 * (1 + ATTACK_S)


@pytest.mark.spec("A12", "H3")
def test_a_node_is_let_in_while_strangers_hold_the_node_port(plain: Attacked) -> None:
    with plain.attack("idle_prefaces", "nodes", CONNECTIONS, READY_S) as begun:
        begun()
        with grpc.insecure_channel(f"127.0.0.1:{plain.ports['nodes']}") as channel:
            call = channel.stream_stream(CONTROL)(iter(()), timeout=READY_S, wait_for_ready=True)
            assert next(iter(call)), "a challenge"
            call.cancel()


@pytest.mark.spec("A12")
@pytest.mark.parametrize("name", NEED_LIMITS)
def test_without_limits_the_same_attack_shuts_people_out(name: str, tmp_path: Path) -> None:
    with Attacked(tmp_path, limits=NO_LIMITS, tls=name == "idle_tls" or None, answer_s=REFUSED_S) as server:
        start = server.taken()
        quiet, during = attacked(server, name)
        assert during.failures or harmed(quiet, during) or not back_in_time(server, start)


def back_in_time(server: Attacked, start: tuple[int, int]) -> bool:
    try:
        return bool(wait_for(lambda: server.back_at(start), "what it took to be free again", BACK_S))
    except (NotInTime, NoSuchProcess):
        return False
