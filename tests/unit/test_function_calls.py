"""What is wrong with a function, its wishes or its arguments is said here and in its own words; nothing is sent."""

import dataclasses
import json
import linecache
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import callee
from holdfast.client.function_source import Cell, cell_of
from holdfast.client.functions import Home, Options, home_of, lay_out
from holdfast.errors import Misuse
from holdfast.testing import Network

pytestmark = pytest.mark.spec("J1")


@dataclasses.dataclass
class Box:
    side: int
    inside: Any = None


def doubled(x: Any, by: int = 2) -> Any:
    return x


# --- wishes ---


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({"memmory": "2GiB"}, "no option 'memmory'", "Did you mean 'memory'?"),
        ({"timeout": 3}, "no option 'timeout'", "Did you mean 'time_limit'?"),
        ({"inputs": {}}, "no option 'inputs'", "There are attempts, cpu"),
        ({"memory": "lots"}, "memory: 'lots' is not a size", "2GiB"),
        ({"cpu": -1}, "cpu: '-1'", "0.5"),
        ({"gpu": "one"}, "gpu is 'one'", "a whole number"),
        ({"env": {"SEED": 7}}, "env is {'SEED': 7}", "text by name"),
        ({"recovery": "sometimes"}, "recovery is 'sometimes'", "restart, resume, never"),
    ],
)
def test_a_wrong_wish_is_refused_where_it_is_written(options: Any, says: str, hint: str) -> None:
    for wishing in (lambda: holdfast.function(**options), lambda: holdfast.function(doubled).with_options(**options)):
        with pytest.raises(Misuse) as caught:
            wishing()
        assert says in caught.value.says and hint in caught.value.hint


def test_a_function_that_is_one_already_keeps_its_wishes_and_gets_these_on_top() -> None:
    once = holdfast.function(cpu=2, memory="1GiB")(doubled)
    twice = holdfast.function(memory="2GiB", time_limit=None)(once)
    request = twice._options.request("it")
    assert (request.cpu_milli, request.memory_mib, request.time_limit_ms) == (2000, 2048, None)
    assert once._options.request("it").memory_mib == 1024
    assert twice(3) == 3
    with pytest.raises(Misuse, match="is not a function"):
        holdfast.function(cpu=1)(3)  # type: ignore[arg-type]


# --- what can be called ---


async def waits(x: int) -> int:
    return x


def gives(x: int) -> Any:
    yield x


@pytest.mark.parametrize(("body", "says"), [(waits, "waits is a coroutine"), (gives, "gives is a generator")])
def test_what_returns_no_value_is_refused(body: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        home_of(body, Options())
    assert "`def` and `return`" in caught.value.hint


def test_a_function_piped_into_python_is_refused_and_nothing_is_sent() -> None:
    script = """
        import holdfast

        @holdfast.function(client=holdfast.Client("http://127.0.0.1:9", patience_s=0))
        def double(x):
            return 2 * x

        double.remote(4)
    """
    done = subprocess.run(
        [sys.executable, "-"], input=textwrap.dedent(script), capture_output=True, text=True, timeout=60
    )
    assert "the source of double is not available" in done.stderr and "Put it into a file" in done.stderr


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((Path("x"),), {}, "x is of the type pathlib"),
        (([1, {"a": open}],), {}, r"x\[1\]\['a'\] is of the type"),
        ((1,), {"by": object()}, "by is of the type builtins.object"),
        ((Box(1, Path("x")),), {}, r"x\.inside is of the type pathlib"),
    ],
)
def test_an_argument_that_cannot_travel_is_named(args: Any, kwargs: Any, says: str) -> None:
    with Network(nodes=1) as network:
        away = holdfast.function(client=network.client(), folder=Path(__file__).parent)(doubled)
        with pytest.raises(Misuse, match=f"the arguments cannot be sent: {says}"):
            away.remote(*args, **kwargs)
        assert network.belongings.blobs == {}, "something was sent"


def gathered(first: Any, *rest: Any, key: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((open,), {}, "first is of the type"),
        ((1, 2, open), {}, r"rest\[1\] is of the type"),
        ((1,), {"key": open}, "key is of the type"),
    ],
)
def test_arguments_are_called_what_the_function_calls_them(tmp_path: Path, args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(Misuse, match=f"the arguments cannot be sent: {says}"):
        lay_out(tmp_path, Home({}), [(args, kwargs)], gathered)


def test_a_function_that_ends_its_process_is_said_to_have_done_so(tmp_path: Path) -> None:
    # given one that leaves as if all were well
    (tmp_path / "leaving.py").write_text("import sys\n\ndef leaves():\n    sys.exit()\n")
    beside = tmp_path / "inputs"
    beside.mkdir()
    (beside / callee.CALL).write_text(json.dumps({"file": "leaving.py", "name": "leaves"}))
    callee.write([[], {}], str(beside / "0"))

    # when it is called, then the job fails, and says why: it has no value
    program = Path(callee.__file__).read_text()
    (beside / "callee.py").write_text(program)
    done = subprocess.run(
        [sys.executable, beside / "callee.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        1,
        "SystemExit: leaves ended its process instead of returning a value\n",
    )


# --- typed into a notebook ---

CELLS = [
    """
    import dataclasses

    @dataclasses.dataclass
    class Point:
        x: int
    """,
    """
    import dataclasses, enum

    class Colour(enum.Enum):
        RED = 1

    @dataclasses.dataclass
    class Point:
        x: int
        y: int = 0

        def moved(self):
            return Point(self.x + 1, self.y)

    def moves(p):
        return p.moved()

    def paints(name):
        return Colour[name].value
    """,
]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a notebook whose cells were run: Python knows their text as IPython tells it."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, cell in enumerate(CELLS):
        run_cell(cell, number, vars(main), monkeypatch)
    return vars(main)


def run_cell(cell: str, number: int, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell with the same text as an earlier one has the same `number`, as in IPython."""
    text, name = textwrap.dedent(cell), f"<cell-{number}-of-a-test>"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    exec(compile(text, name, "exec"), names)


def test_classes_typed_into_a_notebook_come_along_as_they_were_typed_last(notebook: dict[str, Any]) -> None:
    assert "class Colour(enum.Enum)" in cell_of(notebook["paints"]).source

    # the class of an argument too, though the function does not name it
    assert "class Point" not in cell_of(notebook["moves"]).source
    source = cell_of(notebook["moves"], [(([{"deep": notebook["Point"](1)}],), {})]).source
    assert "def moved" in source and source.count("class Point") == 1


def test_a_dataclass_typed_into_a_notebook_is_an_argument_and_a_value(notebook: dict[str, Any], tmp_path: Path) -> None:
    # given a call as it is laid out for a job
    moves, point = notebook["moves"], notebook["Point"]
    calls = [((point(3),), {})]
    home = home_of(moves, Options(), calls)
    lay_out(tmp_path, home, calls, moves)
    assert (tmp_path / Cell.FILE).exists()

    # when it is made in a process of its own
    done = subprocess.run(
        [sys.executable, tmp_path / "callee.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")

    # then the value is one of the notebook's own
    assert callee.read(str(tmp_path / callee.RETURNED), notebook) == point(4)


VERSIONS = [
    """
    @dataclasses.dataclass
    class Size:
        wide: int

    @dataclasses.dataclass
    class Area:
        __wide: int

        @property
        def size(self): return "first"
    """,
    """
    @dataclasses.dataclass
    class Size:
        wide: int
        high: int

    @dataclasses.dataclass
    class Area:
        __wide: int

        @property
        def size(self): return "second"
    """,
]


def test_a_cell_that_was_run_again_counts_not_the_one_that_was_typed_last(
    notebook: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a cell, another one with the same classes, and the first once more
    for number in (0, 1, 0):
        run_cell(VERSIONS[number], 10 + number, notebook, monkeypatch)
    calls = [((notebook["Size"](1), notebook["Area"](1)), {})]
    # then they go as they are: told by their methods, or else by their fields
    source = cell_of(notebook["moves"], calls).source
    assert "high" not in source and "first" in source and "second" not in source


def test_a_class_within_another_goes_with_that(notebook: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cell = """
    class Shop:
        @dataclasses.dataclass
        class Item:
            price: int
    """
    run_cell(cell, 20, notebook, monkeypatch)
    source = cell_of(notebook["moves"], [((notebook["Shop"].Item(1),), {})]).source
    assert "class Shop" in source and "class Item" in source


def test_an_argument_nested_too_deep_is_refused_by_name_and_does_not_end_the_stack(
    notebook: dict[str, Any], tmp_path: Path
) -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    calls = [((deep,), {})]
    home = home_of(notebook["moves"], Options(), calls)
    with pytest.raises(Misuse, match=r"p\[0\].* is nested more than"):
        lay_out(tmp_path, home, calls, notebook["moves"])
