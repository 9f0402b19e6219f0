"""The kernel decides today what it decided when these worlds were recorded: every row, every command, every answer.

On a difference the failure names the line of the recording, the event and the first value that is another one. Where
that is meant, `python tests/record_worlds.py` records anew.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

import recordings
from recordings import WORLDS


def _name(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.mark.parametrize("path", sorted(WORLDS.glob("*.jsonl.gz")), ids=_name)
def test_a_recorded_world_is_decided_as_it_was(path: Path) -> None:
    assert recordings.replay_world(recordings.read(path)) == ""


def test_worlds_are_recorded() -> None:
    """An empty folder would pass every test above."""
    assert len(list(WORLDS.glob("*.jsonl.gz"))) >= 20


def test_a_difference_names_the_event_and_the_first_value() -> None:
    """Given a recording of which one answer was changed, when it is replayed, then both values are shown."""
    lines = list(recordings.read(next(iter(sorted(WORLDS.glob("*.jsonl.gz"))))))
    number = next(n for n, line in enumerate(lines) if b'"job.queued"' in bytes(line.decided))
    changed = bytes(lines[number].decided).replace(b'"job.queued"', b'"job.fled"', 1)
    lines[number] = replace(lines[number], decided=recordings.raw(changed))

    says = recordings.replay_world(lines)

    assert says.startswith(f"line {number + 1}, ")
    assert "is 'job.queued', recorded 'job.fled'" in says
