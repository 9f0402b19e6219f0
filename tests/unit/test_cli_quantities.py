"""Amounts as people write them mean what they look like, and nonsense is named."""

import pytest

from holdfast.errors import Misuse
from holdfast.quantities import assignments, cpu_milli, duration_ms, size_mib, spoken_mib, spoken_ms

pytestmark = pytest.mark.spec("J2")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90", 90_000), ("1.5", 1_500), ("90s", 90_000), ("2h", 7_200_000), ("1h30m", 5_400_000), ("500ms", 500),
     ("2d", 172_800_000)],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "h", "2x", "-5s", "1h foo", "2 h", "1e3"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(Misuse, match="is not a duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "mib"), [("512", 512), ("512MiB", 512), ("512m", 512), ("2G", 2048), ("1.5GiB", 1536), ("1TiB", 1048576)]
)
def test_sizes(text: str, mib: int) -> None:
    assert size_mib(text) == mib


@pytest.mark.parametrize("text", ["", "MiB", "2 potatoes", "-1", "1KB"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(Misuse, match="is not a size"):
        size_mib(text)


def test_cores() -> None:
    assert [cpu_milli(t) for t in ("1", "0.5", "250m", "16")] == [1000, 500, 250, 16000]
    with pytest.raises(Misuse, match="cores"):
        cpu_milli("many")


def test_variables() -> None:
    assert assignments(["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}
    for wrong in ("A", "=1", "1A=2", "A B=1"):
        with pytest.raises(Misuse, match="is not a variable assignment"):
            assignments([wrong])


def test_amounts_are_spoken_in_one_glance() -> None:
    spoken = [spoken_ms(ms) for ms in (400, 8_200, 180_000, 9_000_000, 400_000_000)]
    assert spoken == ["0.4 s", "8.2 s", "3 min", "2.5 h", "5 d"]
    assert [spoken_mib(512), spoken_mib(8192)] == ["512 MiB", "8 GiB"]
