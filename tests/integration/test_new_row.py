"""The worked example of CONTRIBUTING: a new row and a new mechanism, with nothing changed beside them."""

from pathlib import Path

import pytest
from worked_examples import run_in, with_example

TITLE = "A new row and a new mechanism"

STORES = """
import sys
from collections import Counter
from pathlib import Path
from kernel_driver import seen, with_two_nodes
from holdfast.kernel.kernel import Kernel
from holdfast.model import Failure, FailureCode
from holdfast.model.messages import HeldPhase
from holdfast.model.rows import Losses, row_key
from holdfast.orchestrator.leader import record
from holdfast.sim.store import SimStore as SimulatedStore
from holdfast.state import Store

# given a database that was brought up to date, and a network whose machines lose three attempts
folder = Path(sys.argv[1])
store = Store.open(f"sqlite:///{folder / 'state.db'}")
epoch = store.take_lead("test")
network = with_two_nodes()
lost, rows = Counter(), []
for key in ("one", "two", "three"):
    network.submit(key, attempts_max=1)
    (attempt,) = network.attempts(key)
    lost[attempt.node] += 1
    failed = seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.EXIT_CODE, exit_code=1))
    rows += network.report(attempt.node, failed, full=False).changes
counted = tuple(Losses(node, times) for node, times in sorted(lost.items()))
# when the rows are committed and loaded, then the last version of each is there
store.commit(rows, epoch)
live = store.load_live()
assert live.of(Losses) == counted, (live.of(Losses), counted)
# and the kernel holds them, tells its states apart by them, and rebuilds from what it holds
kernel = Kernel.load(network.settings, live.rows)
assert tuple(row for row in kernel.rows() if isinstance(row, Losses)) == counted
assert Kernel.load(network.settings, kernel.rows()).digest() == kernel.digest()
without = (row for row in live.rows if not isinstance(row, Losses))
assert Kernel.load(network.settings, without).digest() != kernel.digest()
# and a record of decisions begins with them
recorder = record.Recorder(folder / "record")
record.rebuilt(network.settings, live, recorder)
((_, line),) = record._lines(folder / "record")
assert line.begin.snapshot() == live
# and the simulated store keeps them
simulated = SimulatedStore()
simulated.write(rows, simulated.take_lead(), 0)
assert {row_key(row) for row in counted} <= {row_key(row) for row in simulated.live()}
"""


def test_the_worked_example_stores_loads_and_rebuilds_its_row(tmp_path: Path) -> None:
    tree = with_example(tmp_path, TITLE)
    done = run_in(tree, STORES, str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '    RowType(Keep, "keep", "keeps", live=Live.NONE),\n',
            "no row of model.rows is kept in the tables ['keeps']",
        ),
        ('columns={"name": "spec.name", "array_id": "spec.array"}', "Job has no field for the column jobs."),
    ],
)
def test_a_registry_that_does_not_fit_the_tables_is_refused_at_import(tmp_path: Path, line: str, said: str) -> None:
    # given a tree from whose registry something was left out
    tree = with_example(tmp_path, TITLE)
    registry = tree / "holdfast" / "model" / "rows.py"
    assert registry.read_text().count(line) == 1
    registry.write_text(registry.read_text().replace(line, ""))
    # when the store's tables are imported, then that is refused, and said
    done = run_in(tree, "import holdfast.state.tables")
    assert done.returncode == 1 and said in done.stderr
