"""A large manifest is checked by a process with limits; whatever becomes of it, there is an answer."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.blobs import check_manifest
from holdfast.blobs.check_manifest import ManifestVerdict, verdict_on
from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.manifest import Blob, EmptyFolder, File, Manifest, ManifestLimits, Outline, Piece, blobs_in
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content import manifest_checks
from holdfast.orchestrator.content.manifest_checks import IN_THREAD_BYTES_MAX, ManifestChecks

pytestmark = pytest.mark.spec("A12", "N13")

BLOB = Blob("a" * 64, 10)
MADE = Manifest.of([File("f", 10, False, (Piece(0, 0, 10),)), EmptyFolder("g")], [BLOB])
DATA = MADE.to_bytes()
LARGE = IN_THREAD_BYTES_MAX + 1
"""The size that is announced decides where a manifest is checked."""


def checked(data: bytes, size: int, limits: ManifestLimits | None = None, checks: ManifestChecks | None = None) -> Any:
    async def story() -> Outline:
        async with (checks or ManifestChecks()).turns_of("ann")(size) as check:
            return await check(data, limits or ManifestLimits())

    return asyncio.run(story())


@pytest.mark.parametrize("size", [IN_THREAD_BYTES_MAX, LARGE])
def test_a_process_comes_to_the_same_verdict_as_a_thread(size: int) -> None:
    assert checked(DATA, size) == MADE.outline == Outline((BLOB,), 1, 10)
    with pytest.raises(ManifestRefused, match="canonical") as refused:
        checked(DATA + b" ", size)
    assert not isinstance(refused.value, ManifestTooLarge)
    with pytest.raises(ManifestTooLarge, match="2 entries"):
        checked(DATA, size, ManifestLimits(entries=1))


def test_only_large_manifests_get_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_checks, "_PROGRAM", ("-c", "raise SystemExit(1)"))
    assert checked(DATA, IN_THREAD_BYTES_MAX) == MADE.outline
    with pytest.raises(ManifestTooLarge):
        checked(DATA, LARGE)


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.kill(os.getpid(), 9)",
        "import sys; sys.stdin.buffer.read(); print('{')",
        "import time; time.sleep(99)",
    ],
    ids=["killed", "garbled", "too slow"],
)
def test_a_check_that_does_not_end_refuses_without_blame(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_checks, "_PROGRAM", ("-c", program))
    monkeypatch.setattr(manifest_checks, "CHECK_S_MAX", 5.0 if "sleep" not in program else 0.05)
    with pytest.raises(ManifestTooLarge, match="too long or too much memory"):
        checked(DATA, LARGE)


def test_a_process_that_cannot_be_started_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable) as refused:
        checked(DATA, LARGE)
    assert refused.value.code == "busy"


def test_who_has_used_up_its_seconds_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = ManifestChecks()
    checks.budget.spend("ann", 59.0)
    assert checked(DATA, 1, checks=checks) == MADE.outline
    checks.budget.spend("ann", 2.0)
    with pytest.raises(Unavailable) as refused:
        checked(DATA, 1, checks=checks)
    assert refused.value.code == "busy"
    used = ManifestChecks()
    checked(DATA, 1, checks=used)
    assert used.budget.left_s("ann") < 60.0


def test_a_verdict_names_what_is_wrong_and_whether_it_is_only_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_on(DATA, ManifestLimits()) == ManifestVerdict("", False, 1, 10)
    assert verdict_on(DATA + b" ", ManifestLimits()) == ManifestVerdict("a manifest is not in its canonical form")
    assert verdict_on(DATA, ManifestLimits(blobs=0)).too_large

    def greedy(*_: object) -> Callable[[], None]:
        raise MemoryError

    monkeypatch.setattr(check_manifest.Manifest, "from_bytes", greedy)
    assert verdict_on(DATA, ManifestLimits()) == ManifestVerdict("a manifest takes too much memory to check", True)


def test_a_process_limits_itself_before_it_reads_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(check_manifest.resource, "setrlimit", lambda kind, most: limits.__setitem__(kind, most))
    nice: list[int] = []
    monkeypatch.setattr(check_manifest.os, "nice", nice.append)
    check_manifest.confine(3 << 20)
    memory = (512 << 20) + 32 * (3 << 20)
    assert limits == {
        check_manifest.resource.RLIMIT_AS: (memory, memory),
        check_manifest.resource.RLIMIT_CPU: (16, 16),
        check_manifest.resource.RLIMIT_CORE: (0, 0),
    }
    assert nice == [10]


def test_the_blobs_of_an_accepted_manifest_are_read_without_its_entries() -> None:
    assert blobs_in(DATA) == MADE.blobs
