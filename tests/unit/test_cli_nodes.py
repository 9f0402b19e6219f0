"""The listing of machines: what is wrong with one is said in words, and of fifty one finds those it is wrong with."""

import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from holdfast.cli.commands import node_operator, serve
from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render import nodes as render_nodes
from holdfast.cli.render import tokens as render_tokens
from holdfast.wire.http import EventView, JoinTokenView, NodeView

pytestmark = pytest.mark.spec("N8", "H4")

DAY_MS = 86_400_000
"""What is told in days does not change while a test waits for its turn."""
HAS = {"cpu_milli": 8_000, "memory_mib": 32_768, "disk_mib": 100_000, "gpus": 1}
LENDS = {"cpu_milli": 4_000, "memory_mib": 8_192, "disk_mib": 50_000, "gpus": 0}
READY = NodeView(
    id="node_" + "a" * 32, name="attic", state="ready", cause="it joined", draining=False, connected=True,
    isolation="bubblewrap", version="1", arch="x86_64", cpu_model="", hostname="h", site="", total=HAS, free=LENDS,
    gpus=[], attempts=[], load={"cpu_permille": 512, "memory_used_mib": 900}, joined_ms=0,
    state_since_ms=round(time.time() * 1000) - 5 * DAY_MS, offered=LENDS, silent_ms=1_200,
)  # fmt: skip
OWNER, NETWORK = "paused by its own operator", "drained by the network's operator"


@pytest.mark.parametrize(
    ("changes", "word", "why"),
    [
        ({}, "ready", ""),
        ({"free": {**LENDS, "cpu_milli": 0}, "attempts": ["a", "b"]}, "full", "no room: holds 2 attempts"),
        ({"free": {**LENDS, "memory_mib": 0}}, "full", "offers nothing"),
        ({"draining": True, "draining_because": OWNER}, "paused", OWNER),
        ({"draining": True, "draining_because": NETWORK, "drained": True}, "drained", NETWORK),
        ({"draining": True, "draining_because": NETWORK, "drained": True, "attempts": ["a"]}, "draining",
         f"{NETWORK}; still holds 1 attempt"),
        ({"draining": True, "draining_because": f"{NETWORK} and {OWNER}", "drained": True}, "drained",
         f"{NETWORK} and {OWNER}"),
        ({"draining": True}, "drained", ""),  # as an orchestrator of 0.1 says it
        ({"connected": False}, "away", "not connected; expected back"),
        ({"state": "probation", "cause": "it came back"}, "probation", "for 5 d: it came back"),
        ({"state": "suspect", "cause": "its connection broke", "connected": False}, "suspect",
         "for 5 d: its connection broke"),
        ({"state": "lost", "cause": "it stayed away", "connected": False, "draining": True}, "lost",
         "for 5 d: it stayed away"),
        ({"state": "gone", "connected": False}, "gone", ""),
    ],
)  # fmt: skip
def test_how_a_machine_is_in_a_word_and_why(changes: dict[str, Any], word: str, why: str) -> None:
    node = replace(READY, **changes)
    assert render_nodes.standing(node) == word
    assert render_nodes.because(node) == why
    assert word in render_nodes.ORDER


def listed(monkeypatch: pytest.MonkeyPatch, nodes: list[NodeView], width: int, **how: Any) -> list[str]:
    screen = io.StringIO()
    monkeypatch.setattr(render_jobs, "console", lambda **_: Console(file=screen, width=width))
    render_nodes.nodes(nodes, **how)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_of_fifty_machines_those_in_trouble_stand_first_and_all_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    # given fifty machines of which four are not as they should be, and two that said goodbye
    fifty = [replace(READY, id=f"node_{n:032x}", name=f"laptop-of-somebody-{n:02}") for n in range(50)]
    fifty[40] = replace(fifty[40], name="zoe", state="lost", connected=False, cause="its connection broke: reset")
    fifty[20] = replace(fifty[20], name="yak", draining=True, draining_because=OWNER)
    fifty[30] = replace(fifty[30], name="wolf", free={**LENDS, "cpu_milli": 0}, attempts=["a"])
    fifty[10] = replace(fifty[10], name="vole", state="quarantined", cause="3 faults, the last: runtime_fault")
    went = [replace(READY, id=f"node_{n:032x}", name=f"went-{n}", state="gone", connected=False) for n in (60, 61)]

    # when they are listed in a window of 80 columns
    lines = listed(monkeypatch, [*went, *fifty], 80)

    # then nothing is broken over lines, trouble stands first, and what it is stands below
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:4]] == ["zoe", "vole", "yak"]
    assert "zoe: lost for 5 d: its connection broke: reset" in lines
    assert "vole: quarantined for 5 d: 3 faults, the last: runtime_fault" in lines
    assert f"yak: {OWNER}" in lines
    assert not any(line.startswith("wolf:") for line in lines), "to be full is nothing wrong"
    # and all of them are told in two lines, without those that went
    assert lines[-2] == "50 nodes: 46 ready, 1 full, 1 paused, 1 quarantined, 1 lost"
    assert lines[-1] == "free: 184 of 188 cores, 376/376 GiB memory; 2 gone (--all)"
    assert not any("went" in line for line in lines)

    # and with --all they are there, at the end
    everyone = listed(monkeypatch, [*went, *fifty], 240, everyone=True)
    assert [line.split()[1] for line in everyone[51:53]] == ["went-60", "went-61"]
    assert "--all" not in everyone[-1]


@pytest.mark.parametrize(
    ("width", "cut"), [(78, set()), (70, {"memory free", "gpus"}), (44, {"memory free", "gpus", "id"})]
)
def test_in_a_small_window_how_a_machine_is_is_said_whole(
    width: int, cut: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, row, *_ = listed(monkeypatch, [replace(READY, state="quarantined", name="a-laptop-of-14")], width)
    assert "quarantined" in row and "a-laptop-of-14" in row and "…" not in head + row
    assert {column for column in ("id", "memory free", "gpus") if column not in head} == cut


def test_what_is_free_is_counted_of_what_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listed(monkeypatch, [READY], 80)
    assert lines[1].split() == ["attic", "node_aaaaaaaa", "ready", "4/4", "8/8", "GiB", "0", "0"]


def test_one_machine_says_what_it_lends_how_busy_it_is_and_who_keeps_work_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    joined = EventView(1, 0, "node.ready", f"attic ({READY.id}): it joined", node=READY.id)
    render_nodes.node(replace(READY, draining=True, drained=True, draining_because=NETWORK, events=[joined]))
    told = capsys.readouterr().out
    assert told.count(READY.id) == 1 and "node.ready           it joined" in told
    assert "ready, drained attic" in told
    assert f"no new work  {NETWORK}" in told
    assert "connected    yes, heard 1.2 s ago" in told
    assert "offers       4 cores, 8 GiB memory" in told
    assert "load         processor 51 %, 900 MiB memory used" in told


@pytest.mark.spec("N7", "N8")
def test_the_status_of_a_node_says_that_the_network_drained_it(capsys: pytest.CaptureFixture[str]) -> None:
    render_nodes.node_status({"node": "node_1", "connected": True, "drained": True, "paused": True})
    told = capsys.readouterr().out
    assert "connected, paused, drained" in told
    assert "no new work  drained by the network's operator; only they can undo it" in told
    render_nodes.node_status({"node": "node_1", "connected": True, "drained": False, "trouble": "refused"})
    told = capsys.readouterr().out
    assert "drained" not in told and "refused" not in told
    render_nodes.node_status({"node": "node_1", "connected": False, "trouble": "refused"})
    assert "not connected\n  no link      refused\n" in capsys.readouterr().out


@pytest.mark.spec("N6")
def test_tokens_are_listed_without_the_spent_ones_and_say_how_long_they_are_good(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = round(time.time() * 1000)
    good = JoinTokenView("tok_aaaaaaaaaaaa", "good", now - 3 * DAY_MS, now + 7 * DAY_MS, -1, "the \x1b[31mattic")
    spent = JoinTokenView("tok_bbbbbbbbbbbb", "used up", now - 3 * DAY_MS, now + 7 * DAY_MS, 0)

    render_tokens.join_tokens([good, spent])
    told = capsys.readouterr().out.splitlines()
    row = re.split(r" {2,}", told[1])
    assert row == ["tok_aaaaaaaaaaaa", "good", "any number", "3 d ago", "7 d", "the attic"]
    assert told[2] == "1 more that is no longer valid (--all)"

    render_tokens.join_tokens([good, spent], everyone=True)
    told = capsys.readouterr().out.splitlines()
    assert told[2].split()[:4] == ["tok_bbbbbbbbbbbb", "used", "up", "0"] and len(told) == 3

    render_tokens.join_tokens([])
    assert "holdfast token new" in capsys.readouterr().out


@pytest.mark.spec("N1", "N8")
@pytest.mark.parametrize("watched", [True, False])
def test_whoever_lends_a_machine_is_told_how_to_look_at_it_and_how_it_ends(
    watched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[str] = []
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_NODE_HOME", raising=False)
    monkeypatch.setattr("holdfast.node.handover.become_agent", lambda settings: became.append(settings.orchestrator))
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched, raising=False)

    serve.serve_node({"orchestrator": "lab.example:7421", "grace_ms": 90_000}, None)
    told = capsys.readouterr().err
    serve.serve_node({"orchestrator": "lab.example:7421", "home": tmp_path / "a b", "grace_ms": 0}, None)
    elsewhere = capsys.readouterr().err

    assert became == ["lab.example:7421"] * 2
    if not watched:  # in a journal it would be noise
        assert told == elsewhere == ""
        return
    assert "offers itself to lab.example:7421" in told and "holdfast node status (or" in told
    assert "Ctrl-C ends it: what runs may finish within 2 min;" in told
    assert f"holdfast node status --home '{tmp_path}/a b' (or" in elsewhere and "what runs is moved" in elsewhere


@pytest.mark.spec("N10")
def test_what_is_offered_is_said_as_a_person_says_it() -> None:
    given = {"cpu_milli": 1_500, "memory_mib": 512, "disk_mib": 20_480, "gpus": 1, "hours": "20:00-08:00"}
    assert (
        node_operator._in_words(given) == "1.5 cores, 512 MiB memory, 20 GiB disk, 1 GPU, in these hours: 20:00-08:00"
    )
    assert node_operator._in_words({"cpu_milli": 1_000, "hours": "always"}) == "1 core, at all hours"
