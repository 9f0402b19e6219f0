"""Which kinds of work are remembered where there are more than can be: the same ones here and after a rebuild."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from holdfast.kernel.duration_history import kinds_alike
from holdfast.kernel.kernel import Kernel
from holdfast.kernel.lifecycle import Lifecycle
from holdfast.kernel.world import World
from holdfast.model import DurationHistory, JobSpec, Owner, Settings
from holdfast.model.rows import BY_TYPE, COMMAND, Newest

pytestmark = pytest.mark.spec("J9", "J14")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(BY_TYPE[DurationHistory], newest=Newest(3, COMMAND, 2))
    monkeypatch.setitem(BY_TYPE, DurationHistory, few)


def put(w: World, *paces: DurationHistory) -> None:
    for pace in paces:
        w.put(pace)


def rebuilt(paces: Iterable[DurationHistory]) -> set[str]:
    kernel = Kernel.load(Settings.test(), paces)
    return {row.id for row in kernel.rows() if isinstance(row, DurationHistory)}


def test_a_sweep_of_commands_without_a_name_pushes_out_no_name() -> None:
    # given what jobs of a name, and items of an array, took
    w = World(Settings.test(), Lifecycle())
    put(w, DurationHistory("name_a", 1, (5,)), DurationHistory("arr_b", 2, (5,)))
    # when a sweep without a name runs more commands than are remembered
    for seed in range(10):
        spec = JobSpec(("train.py", "--seed", str(seed)))
        ((kind, _),) = kinds_alike(Owner("ann"), spec)
        put(w, DurationHistory(kind, 3 + seed, (5,)))
    # then peers are still known, and of the commands the latest
    assert {"name_a", "arr_b"} < set(w.durations) and len(w.durations) == 2 + 2
    assert {pace.seq for pace in w.durations.values()} == {1, 2, 11, 12}
    # and names push out names, the one that was not met for longest first
    put(
        w,
        DurationHistory("name_a", 20, (5, 6)),
        DurationHistory("name_c", 21, (5,)),
        DurationHistory("name_d", 22, (5,)),
    )
    assert (
        {"name_a", "name_c", "name_d"} < set(w.durations) and "arr_b" not in w.durations and len(w.durations) == 3 + 2
    )


def test_a_rebuild_remembers_what_was_remembered_also_of_rows_written_in_one_step() -> None:
    # given rows of which several have one number, written in an order that is not that of their ids
    rows = [
        DurationHistory(id, seq, (5,)) for seq in (1, 2, 3) for id in (f"name_z{seq}", f"name_a{seq}", f"command_{seq}")
    ]
    w, stored = World(Settings.test(), Lifecycle()), dict[str, DurationHistory]()
    for row in (*rows, DurationHistory("name_z2", 4, (5, 6))):
        put(w, row)
        stored[row.id] = row
        # then after each of them a rebuild from all that was ever written remembers the same
        assert rebuilt(stored.values()) == set(w.durations)
    assert set(w.durations) == {"name_a3", "name_z3", "name_z2", "command_2", "command_3"}
