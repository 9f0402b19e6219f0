"""Items of an array as they stand in a file: what is an item, what is refused, and by which line."""

from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from holdfast.cli.array_items import read_items
from holdfast.errors import Misuse
from holdfast.orchestrator.api.arrays import ITEM_BYTES_MAX, ITEMS_MAX, item_request
from holdfast.wire.http import JobRequest

pytestmark = pytest.mark.spec("J16")


def test_each_line_that_says_something_is_an_item(tmp_path: Path) -> None:
    (tmp_path / "items").write_bytes("\ufeffone\r\n\n  two words \n   \nd\u00e9j\u00e0".encode())
    assert read_items(str(tmp_path / "items")) == ["one", "  two words ", "d\u00e9j\u00e0"]


def test_items_come_from_stdin_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"a\nb\n")))
    assert read_items("-") == ["a", "b"]


def test_as_many_and_as_long_as_the_orchestrator_takes(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("x\n" * ITEMS_MAX)
    (tmp_path / "long").write_text("x" * ITEM_BYTES_MAX)
    assert len(read_items(str(tmp_path / "many"))) == ITEMS_MAX
    assert len(read_items(str(tmp_path / "long"))[0]) == ITEM_BYTES_MAX


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no items"),
        (b"\n \n", "has no items"),
        (b"x\n" * (ITEMS_MAX + 1), "more than 10,000 items"),
        (b"ok\n" + b"x" * (ITEM_BYTES_MAX + 1), "line 2 of .* longer than 4,096 bytes"),
        (b"x" * (13 << 20), "holds more than 12.0 MiB"),
        ((b'"' * 4_000 + b"\n") * 2_000, "holds more than 12.0 MiB"),
        (b"ok\nfine\n\xff\xfe\n", "line 3 of .* is not UTF-8"),
        (b"a\0b\n", "line 1 of .* holds a NUL"),
    ],
)
def test_what_makes_no_array_is_refused_by_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "items").write_bytes(content)
    with pytest.raises(Misuse, match=says):
        read_items(str(tmp_path / "items"))


@pytest.mark.parametrize(
    ("named", "says"), [("nowhere", "No such"), (".", "directory"), ("/dev/zero", "more than 12.0 MiB")]
)
def test_what_is_no_file_is_refused_and_never_read_for_ever(named: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        read_items(named)


@pytest.mark.parametrize(
    ("word", "item", "becomes"),
    [
        ("{item}", "red", "red"),
        ("{}", "red", "red"),
        ("--at={index}", "red", "--at=7"),
        ("{lr} {name} {deep}", '{"lr": 0.1, "name": "a b", "deep": [1, {"x": 2}]}', '0.1 a b [1,{"x":2}]'),
        ("{index} {item}", '{"index": "mine", "item": "mine"}', '7 {"index": "mine", "item": "mine"}'),
        ("{other} {a.b} ${HOME} {1}", "red", "{other} {a.b} ${HOME} {1}"),
        ("{item}", "{index}{}", "{index}{}"),
        ("{lr}", '{"lr": 0.1', "{lr}"),
        ("{a}", "[" * 3000, "{a}"),
        ("{a}", '{"a":' * 800, "{a}"),
    ],
)
def test_an_item_takes_its_place_in_the_command_and_is_never_looked_through_for_more(
    word: str, item: str, becomes: str
) -> None:
    made = item_request(JobRequest(argv=["echo", word]), item, 7, 9)
    assert made.argv == ["echo", becomes]
    assert made.env == {"HOLDFAST_ITEM": item, "HOLDFAST_INDEX": "7", "HOLDFAST_ITEMS": "9"}
