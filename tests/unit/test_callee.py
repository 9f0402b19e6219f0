"""What travels to a function and back is data: the same when it arrives, and harmless whoever wrote it."""

import dataclasses
import datetime
import functools
import json
import math
import os
import subprocess
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import callee

pytestmark = pytest.mark.spec("J10")


@dataclasses.dataclass
class Point:
    x: float
    label: str = ""


RAN: list[str] = []
"""What of a class was run."""


@dataclasses.dataclass
class Watched:
    x: int
    half: float = dataclasses.field(default=0, init=False)
    known: ClassVar[int] = 7

    def __post_init__(self) -> None:
        RAN.append("post_init")
        self.half = self.x / 2

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append(f"set {name}")
        object.__setattr__(self, name, value)

    def area(self) -> int:
        return self.x * self.x

    @property
    def side(self) -> int:
        return self.x

    @functools.cached_property
    def slow(self) -> int:
        return self.x

    @dataclasses.dataclass
    class Part:
        n: int


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    label: str = ""


ACTS = classmethod(lambda cls: "its own")


@dataclasses.dataclass
class Doing:
    """A field by the name of something that acts."""

    act: Any = ACTS


@dataclasses.dataclass
class Scored:
    """A field with a function as its default: what else is set there is as good."""

    x: int
    score: Any = len


@dataclasses.dataclass
class Weighed(Scored):
    weigh: Any = lambda one: 1


@dataclasses.dataclass
class Broken(ValueError):
    x: int


@dataclasses.dataclass
class Counted(dict):  # type: ignore[type-arg]
    x: int = 0


ALIAS = Watched.Part
Foreign = dataclasses.make_dataclass("Foreign", ["x"], namespace={"__module__": "elsewhere"})
ELSEWHERE = types.ModuleType("elsewhere")
vars(ELSEWHERE)["Foreign"] = Foreign

HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=64),
    st.dates(),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
)
VALUES = st.recursive(
    st.one_of(HASHABLE, st.binary(min_size=5000, max_size=6000), st.complex_numbers(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(VALUES)
def test_what_arrives_is_what_was_sent(tmp_path: Path, value: Any) -> None:
    folder = str(tmp_path / os.urandom(8).hex())
    callee.write(value, folder)
    arrived = callee.read(folder)
    assert arrived == value
    assert type(arrived) is type(value)


def test_numbers_that_json_does_not_have_arrive(tmp_path: Path) -> None:
    huge = 7**20_000
    callee.write([math.inf, -math.inf, huge, -huge], str(tmp_path))
    assert callee.read(str(tmp_path)) == [math.inf, -math.inf, huge, -huge]
    callee.write(math.nan, str(tmp_path))
    assert math.isnan(callee.read(str(tmp_path)))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 3)),
        np.array(["a", "bc"]),
        np.array(5.0),
        np.array([1 + 2j]),
    ],
)
def test_arrays_arrive_bit_for_bit(tmp_path: Path, array: np.ndarray) -> None:
    callee.write({"weights": array}, str(tmp_path))
    arrived = callee.read(str(tmp_path))["weights"]
    assert arrived.dtype == array.dtype and arrived.shape == array.shape
    assert arrived.tobytes() == array.tobytes()
    callee.write(np.float32(1.5), str(tmp_path))
    assert type(callee.read(str(tmp_path))) is np.float32


def test_dataclasses_of_the_functions_own_file_arrive_and_others_do_not(tmp_path: Path) -> None:
    callee.write([Point(1.5, "a")], str(tmp_path), __name__)
    assert callee.read(str(tmp_path), globals()) == [Point(1.5, "a")]
    with pytest.raises(callee.NotAValue, match="not a dataclass of the function's own file"):
        callee.read(str(tmp_path), {"Point": dict})
    with pytest.raises(callee.NotAValue, match="Point"):
        callee.write(Point(1), str(tmp_path), "somewhere.else")


@pytest.mark.parametrize("value", [object(), {"deep": [lambda: 0]}, np.array([object()]), open, Path("x")])
def test_what_is_no_data_is_refused_with_its_place_and_type(tmp_path: Path, value: Any) -> None:
    with pytest.raises(callee.NotAValue, match=r"it(\[.*\])* is "):
        callee.write(value, str(tmp_path))


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(callee.NotAValue, match="deep"):
        callee.write(endless, str(tmp_path))


def test_a_dataclass_arrives_with_all_its_fields_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    # given one whose fields are not all given to __init__, one that cannot be changed, and one within another class
    sent = [watched := Watched(4), Slotted(1, "a"), Watched.Part(5)]
    watched.half = 99.5
    callee.write(sent, str(tmp_path), __name__)
    RAN.clear()

    # when they are read, then they are what was sent
    arrived = callee.read(str(tmp_path), globals())
    assert arrived == sent
    assert [type(one) for one in arrived] == [Watched, Slotted, Watched.Part]
    assert arrived[0].half == 99.5 and arrived[0].area() == 16
    # and neither __init__, __post_init__ nor __setattr__ was asked
    assert RAN == []


def test_a_field_that_was_never_set_is_refused_by_name(tmp_path: Path) -> None:
    half_made = object.__new__(Slotted)
    with pytest.raises(callee.NotAValue, match=r"it\[0\]\.x is not set"):
        callee.write([half_made], str(tmp_path), __name__)


@pytest.mark.parametrize("value", [Broken(1), Counted(2), Doing(3)])
def test_what_would_not_be_taken_is_not_written(tmp_path: Path, value: Any) -> None:
    # given dataclasses that are more than their fields, and one whose field acts
    with pytest.raises(callee.NotAValue, match=r"it\[0\] cannot be sent: .*(Broken|Counted|Doing)"):
        callee.write([value], str(tmp_path), __name__)
    # then whoever claims to have written one is refused with the same word
    field = dataclasses.fields(value)[0].name
    with pytest.raises(callee.NotAValue, match=r"consists of more than its fields|would replace behaviour of Doing"):
        callee.read(written(tmp_path, type(value).__qualname__, {field: 1}), globals())


def test_a_field_whose_default_is_a_function_arrives(tmp_path: Path) -> None:
    callee.write([sent := Weighed(1, score=2, weigh=3)], str(tmp_path), __name__)
    assert callee.read(str(tmp_path), globals()) == [sent]


def written(folder: Path, name: str, fields: Any) -> str:
    (folder / callee.VALUE).write_text(json.dumps({"$": "dataclass", "name": name, "v": fields}))
    return str(folder)


@pytest.mark.spec("J10", "H4")
@pytest.mark.parametrize("name", ["Foreign", "ELSEWHERE.Foreign", "dataclasses.Field", "pytest.ExceptionInfo"])
def test_a_lying_machine_fills_no_class_that_the_file_only_imports(tmp_path: Path, name: str) -> None:
    with pytest.raises(callee.NotAValue, match="not a dataclass of the function's own file"):
        callee.read(written(tmp_path, name, {"x": 1}), globals())


@pytest.mark.spec("J10", "H4")
@pytest.mark.parametrize("name", ["ALIAS", "Watched.Part.__class__", "Watched.__dict__.Part", "Point.__mro__", ""])
def test_a_lying_machine_reaches_no_class_by_another_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(callee.NotAValue, match="not a dataclass of the function's own file"):
        callee.read(written(tmp_path, name, {"n": 1}), globals())


@pytest.mark.spec("J10", "H4")
@pytest.mark.parametrize("more", ["area", "side", "slow", "known", "__class__", "__dict__", "__eq__", "new"])
def test_a_lying_machine_hides_no_method_and_no_attribute_of_the_class(tmp_path: Path, more: str) -> None:
    with pytest.raises(callee.NotAValue, match="the wrong fields"):
        callee.read(written(tmp_path, "Watched", {"x": 1, "half": 2, more: "mine"}), globals())


@pytest.mark.spec("J10", "H4")
@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("Watched", {"x": 1}, "the wrong fields"),
        ("Watched", [["x", 1], ["half", 2]], "the wrong fields"),
        ("Doing", {"act": "mine"}, "would replace behaviour of Doing"),
    ],
)
def test_a_lying_machine_leaves_nothing_out_and_replaces_nothing(
    tmp_path: Path, name: str, fields: Any, says: str
) -> None:
    with pytest.raises(callee.NotAValue, match=says):
        callee.read(written(tmp_path, name, fields), globals())


HOSTILE = {
    "no mark": {"a": 1},
    "unknown mark": {"$": "module", "v": "os"},
    "a file elsewhere": {"$": "bytes file", "v": "../../etc/passwd"},
    "an absolute file": {"$": "array", "v": "/etc/passwd"},
    "a file that is not there": {"$": "array", "v": "1.npy"},
    "a class that is none": {"$": "dataclass", "name": "os.system", "v": {"command": "true"}},
    "a class of object": {"$": "dataclass", "name": "__class__", "v": {}},
    "fields that are none": {"$": "dataclass", "name": "Point", "v": {"z": 1}},
    "an unhashable key": {"$": "dict", "v": [[[], 1]]},
    "text for a list": {"$": "tuple", "v": "abc"},
    "a float of words": {"$": "float", "v": "1e999999"},
    "base64 that is none": {"$": "bytes", "v": "é"},
    "a date that is none": {"$": "date", "v": "yesterday"},
}


@pytest.mark.spec("J10", "H4")
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_a_lying_machine_writes_is_refused_and_runs_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / callee.VALUE).write_text(json.dumps(HOSTILE[name]))
    with pytest.raises(callee.NotAValue):
        callee.read(str(tmp_path), globals())


@pytest.mark.spec("J10", "H4")
def test_links_pickles_and_arrays_that_promise_too_much_are_refused(tmp_path: Path) -> None:
    # Given a link to a file of the reader's
    (tmp_path / callee.VALUE).write_text(json.dumps({"$": "bytes file", "v": "1.bytes"}))
    (tmp_path / "1.bytes").symlink_to("/etc/passwd")
    with pytest.raises(callee.NotAValue):
        callee.read(str(tmp_path))
    (tmp_path / callee.VALUE).write_text(json.dumps({"$": "array", "v": "1.npy"}))
    # and an array that is a pickle
    np.save(tmp_path / "1.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(callee.NotAValue):
        callee.read(str(tmp_path))
    # and one whose head promises a terabyte
    with (tmp_path / "1.npy").open("wb") as file:
        head = {"descr": "<f8", "fortran_order": False, "shape": (1 << 37,)}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(b"few")
    with pytest.raises(callee.NotAValue):
        callee.read(str(tmp_path))
    # and something nested without end
    (tmp_path / callee.VALUE).write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(callee.NotAValue):
        callee.read(str(tmp_path))


def test_plain_values_of_every_kind_are_kept_apart(tmp_path: Path) -> None:
    value = [True, 1, 1.0, "1", b"1", Decimal(1), UUID(int=1), (1,), {1}, frozenset({1}), {1: 1}]
    callee.write(value, str(tmp_path))
    arrived = callee.read(str(tmp_path))
    assert [type(one) for one in arrived] == [type(one) for one in value]


@pytest.mark.spec("J8")
def test_a_file_that_calls_its_own_function_when_a_job_imports_it_is_told_what_to_do() -> None:
    for call in ("f.remote(1)", "f.map([1])", "f.spawn(1)"):
        program = "from holdfast import callee; callee.stand_in(); import holdfast\nf = holdfast.function(len)\n"
        program += f"@holdfast.function(cpu=1)\ndef f(x):\n    return x\nassert f(1) == 1\n{call}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and 'under `if __name__ == "__main__":`' in done.stderr, done.stderr
