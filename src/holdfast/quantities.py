"""Amounts as people write them (`2h`, `512MiB`, `0.5`), converted to the whole units of the API and back."""

import re

from holdfast.errors import Misuse

_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_MIB = {
    "": 1.0,
    "m": 1.0,
    "mb": 1.0,
    "mib": 1.0,
    "g": 1024.0,
    "gb": 1024.0,
    "gib": 1024.0,
    "t": 1048576.0,
    "tib": 1048576.0,
}


def duration_ms(text: str) -> int:
    """`90`, `90s`, `2h`, `1h30m`, `500ms`. A bare number is seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return round(float(text) * 1_000)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise Misuse(f"{text!r} is not a duration", hint="Write 90s, 30m, 2h or 1h30m.")
    return round(sum(float(number) * _DURATION_MS[unit] for number, unit in parts))


def size_mib(text: str) -> int:
    """`512`, `512MiB`, `2G`. A bare number is MiB; G and GB mean GiB, as usual for memory."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text)
    if not match or match[2].lower() not in _SIZE_MIB:
        raise Misuse(f"{text!r} is not a size", hint="Write 512MiB or 2GiB.")
    return round(float(match[1]) * _SIZE_MIB[match[2].lower()])


def cpu_milli(text: str) -> int:
    """`1`, `0.5`, `250m`: cores, or thousandths of one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    if not match:
        raise Misuse(f"{text!r} is not a number of cores", hint="Write 2, 0.5 or 250m.")
    return round(float(match[1]) * (1 if match[2] else 1_000))


def assignments(pairs: list[str]) -> dict[str, str]:
    """`K=V` arguments as a mapping."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise Misuse(f"{pair!r} is not a variable assignment", hint="Write NAME=value.")
        found[key] = value
    return found


def spoken_ms(ms: int) -> str:
    """A duration in short form: `0.4 s`, `8.2 s`, `3 min`, `2.5 h`, `4 d`."""
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    if ms < 3_600_000:
        return f"{ms / 60_000:.0f} min"
    if ms < 172_800_000:
        return f"{ms / 3_600_000:.1f} h"
    return f"{ms / 86_400_000:.0f} d"


def spoken_mib(mib: int) -> str:
    return f"{mib} MiB" if mib < 4096 else f"{mib / 1024:.0f} GiB"


def spoken_bytes(count: int | float) -> str:
    """`812 B`, `3.4 KiB`, `12.0 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`, `12,000 files`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def spoken_cores(milli: int) -> str:
    return f"{milli / 1000:g}"
