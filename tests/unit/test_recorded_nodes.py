"""The node core answers today as it did when these nodes were recorded: every action, and what it holds after each.

On a difference the failure names the line of the recording, the event and the first value that is another one. Where
that is meant, `python tests/record_worlds.py` records anew.
"""

from pathlib import Path

import pytest

import recordings
from recordings import NODES


def _name(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.mark.parametrize("path", sorted(NODES.glob("*.jsonl.gz")), ids=_name)
def test_recorded_nodes_act_as_they_did(path: Path) -> None:
    assert recordings.replay_node(recordings.read(path)) == ""


def test_nodes_are_recorded() -> None:
    """An empty folder would pass every test above."""
    assert len(list(NODES.glob("*.jsonl.gz"))) >= 12
