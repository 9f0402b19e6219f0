"""The worked example of CONTRIBUTING: a new row and a new mechanism, with nothing changed beside them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"in `(src/[^`]+)`.*?```py\n(.*?)```", re.DOTALL)

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
    network.submit(key)
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


def with_example(folder: Path) -> Path:
    """A copy of the tree to which everything was added that CONTRIBUTING says."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## A new row and a new mechanism")[2].partition("\n## ")[0]
    )
    for path, block in EXAMPLE.findall(section):
        target = folder / path
        target.write_text(add_lines(target.read_text(), block) if target.exists() else block)
    return folder / "src"


def add_lines(source: str, block: str) -> str:
    """A class goes before the module's list, imports to the imports, and any other line to the end of the list."""
    if block.startswith("class "):
        return re.sub(r"(?=^[A-Z]+: tuple)", f"{block}\n\n", source, count=1, flags=re.MULTILINE)
    imports = "".join(line for line in block.splitlines(True) if line.startswith("from "))
    lines = "".join(line for line in block.splitlines(True) if line.startswith("    "))
    source = re.sub(r"(?=^from holdfast)", imports, source, count=1, flags=re.MULTILINE)
    return re.sub(r"(?<=\n)(?=\)\n\"\"\"In the order)", lines, source, count=1)


def run(tree: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT / 'tests' / 'kernel'}"}
    return subprocess.run([sys.executable, "-c", script, *words], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.spec("J14")
def test_the_worked_example_stores_loads_and_rebuilds_its_row(tmp_path: Path) -> None:
    tree = with_example(tmp_path)
    done = run(tree, STORES, str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("J14")
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
    tree = with_example(tmp_path)
    registry = tree / "holdfast" / "model" / "rows.py"
    assert registry.read_text().count(line) == 1
    registry.write_text(registry.read_text().replace(line, ""))
    # when the store's tables are imported, then that is refused, and said
    done = run(tree, "import holdfast.state.tables")
    assert done.returncode == 1 and said in done.stderr
