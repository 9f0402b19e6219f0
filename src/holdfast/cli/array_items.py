"""Reads the items of an array from a file, one per line. Names the line of an item that is not valid."""

import sys
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import Misuse
from holdfast.quantities import spoken_bytes

ITEMS_MAX = 10_000
ITEM_BYTES_MAX = 4 * 1024
BYTES_MAX = 12 << 20
"""Limit of the whole file, and of its items as they are sent: leaves some room in the largest request."""
PREFIX = "arr_"


def is_array(named: str) -> bool:
    """Whether a typed id is that of an array."""
    return named.startswith(PREFIX)


def read_items(named: str) -> list[str]:
    """The items of a file, or of stdin (`-`). Empty lines are skipped."""
    where = "stdin" if named == "-" else named
    text = _text(_bytes(named, where), where)
    items: list[str] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r")
        if not line.strip():
            continue
        if len(line.encode()) > ITEM_BYTES_MAX:
            raise Misuse(
                f"line {number} of {where} is longer than {ITEM_BYTES_MAX:,} bytes",
                hint="An item is a name or a few parameters. Send large data as a file (--input) and name it here.",
            )
        if "\0" in line:
            raise Misuse(f"line {number} of {where} holds a NUL character", hint="Items are text, one to a line.")
        items.append(line)
        if len(items) > ITEMS_MAX:
            raise Misuse(
                f"{where} has more than {ITEMS_MAX:,} items", hint="Split it: `split -l 10000` makes files that fit."
            )
    if not items:
        raise Misuse(f"{where} has no items", hint="Write one item to a line.")
    _check_size(items, where)
    return items


def _bytes(named: str, where: str) -> bytes:
    try:
        if named == "-":
            data = _some(sys.stdin.buffer)
        else:
            with Path(named).open("rb") as file:
                data = _some(file)
    except OSError as wrong:
        raise Misuse(
            f"{where} cannot be read: {wrong.strerror or wrong}",
            hint="--array takes a file with one item to a line, or - for stdin.",
        ) from None
    if len(data) > BYTES_MAX:
        raise _too_large(where)
    return data


def _some(file: BinaryIO) -> bytes:
    """Read no more than can be used: the file may be an endless device."""
    data = bytearray()
    while len(data) <= BYTES_MAX and (more := file.read(1 << 20)):
        data += more
    return bytes(data)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise Misuse(f"line {line} of {where} is not UTF-8 text", hint="Save the file as UTF-8.") from None


def _check_size(items: list[str], where: str) -> None:
    import msgspec

    if len(msgspec.json.encode(items)) > BYTES_MAX:
        raise _too_large(where)


def _too_large(where: str) -> Misuse:
    return Misuse(
        f"{where} holds more than {spoken_bytes(BYTES_MAX)}",
        hint="Split it into several files, and send each by itself.",
    )
