"""The command: `python -m tests.mutation [ROOM…]`, or `--changed` for what `make test` asks.

Without an option every function whose verdicts are missing or older than its tests is tried, room by room; the verdicts
are written as they come, so that a run that was stopped goes on where it was. `--changed` tries only functions whose
own code has no verdict, in an order drawn by `--seed`, for at most `--seconds`; it writes nothing. Both fail on a
survivor that is not listed with a reason, and on a room below its bar.
"""

import argparse
import ast
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import IO

from tests.mutation import fork_server
from tests.mutation.coverage_map import KEPT, CoverageMap, OutOfTime, environment, measure, pytest_arguments
from tests.mutation.functions import Target, normalised_hash, targets
from tests.mutation.operators import Mutant
from tests.mutation.rooms import FIRST, ROOMS, ROOT, Room
from tests.mutation.verdicts import (
    ALIVE,
    ENDLESS,
    KILLED,
    SURVIVED,
    UNTOUCHED,
    Kept,
    Listing,
    Verdicts,
    changes,
    relist,
    survivors,
)

TESTS_S_MAX = 0.8
"""What the tests of one mutant take together at most, on the tree as it is: the cheapest ones are asked."""
RECORDINGS_QUICK = 10
"""What a quick run asks: so many recordings, and nothing else."""
PATIENCE = 8
"""A mutant is ended after so many times what its tests take, and a few seconds."""


class Server:
    """A process that has the tests collected and tries one mutant at a time."""

    def __init__(self, room: Room) -> None:
        asked, self._ask = os.pipe()
        self._hear, told = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *pytest_arguments(room), "-p", "tests.mutation.fork_server"],
            cwd=ROOT, pass_fds=(asked, told), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**environment(), fork_server.REQUESTS: str(asked), fork_server.VERDICTS: str(told)},
        )  # fmt: skip
        os.close(asked)
        os.close(told)
        self._requests: IO[str] = os.fdopen(self._ask, "w", encoding="utf-8")
        self._verdicts: IO[str] = os.fdopen(self._hear, "r", encoding="utf-8")
        if not self._verdicts.readline():
            raise SystemExit("mutation: the tests could not be collected")

    def verdict(self, target: Target, mutant: Mutant, tests: list[str], limit_s: float) -> str:
        """The test that noticed; empty if none did."""
        request = {
            "path": str(target.path), "qualname": target.qualname, "line": target.first_line,
            "number": mutant.number, "tests": tests, "limit_s": limit_s,
        }  # fmt: skip
        print(json.dumps(request), file=self._requests, flush=True)
        return json.loads(self._verdicts.readline())["by"]

    def close(self) -> None:
        self._requests.close()
        self._process.wait(30)


class Run:
    """Tries functions of one room with a few servers at once, and reports as it goes."""

    def __init__(self, room: Room, workers: int, until: float | None, quick: bool = False) -> None:
        self._quick = quick
        self._lines = lines = measure(room, until)
        self._until = until
        self._hashes = _test_hashes(lines)
        self._servers: queue.Queue[Server] = queue.Queue()
        self._workers = workers
        self._room = room
        self._killers = _read_killers(room)
        self._last_killer: dict[str, str] = {}
        for _ in range(workers):
            self._servers.put(Server(room))

    def tests_hash(self, target: Target) -> str:
        """A hash of all tests that execute the function; of a quick run none, so that a whole one looks again."""
        if self._quick:
            return "quick"
        end = target.function.end_lineno or target.first_line
        tests = self._lines.tests_of(target.path, target.first_line, end)
        hashes = sorted({self._hashes[test.partition("[")[0]] for test in tests})
        return sha256(" ".join(hashes).encode()).hexdigest()[:8]

    def function(self, target: Target, before: str = "") -> str | None:
        """The letters of a function's verdicts; None if time ran out before the last. `before`: letters of which only
        the survivors are tried again."""
        letters: list[str] = []
        server = self._servers.get()
        try:
            for mutant in target.mutants:
                if self._until is not None and time.monotonic() > self._until:
                    return None
                dead = bool(before) and before[mutant.number] not in ALIVE
                letters.append(before[mutant.number] if dead else self._letter(server, target, mutant))
        finally:
            self._servers.put(server)
        return "".join(letters)

    def _letter(self, server: Server, target: Target, mutant: Mutant) -> str:
        tests = self._lines.tests_of(target.path, mutant.first_line, mutant.last_line)
        if not tests:
            return UNTOUCHED
        key = f"{target.name} {mutant.change}"
        last = self._last_killer.get(target.name, "")
        killers = [self._killers.get(key, ""), last]
        if self._quick:
            recorded = [test for test in tests if test.startswith(FIRST)][:RECORDINGS_QUICK]
            chosen = [*(test for test in killers if test in tests), *(test for test in recorded if test not in killers)]
        else:
            chosen = _afford(tests, self._lines.seconds, killers)
        took = sum(self._lines.seconds[test] for test in chosen)
        by = server.verdict(target, mutant, chosen, PATIENCE * took + 5)
        if by.startswith("broken"):
            print(f"mutation: {target.name}: {mutant.change}: {by}", flush=True)
            return SURVIVED
        if by and by not in ("time", "death"):
            self._killers[key] = self._last_killer[target.name] = by
        return SURVIVED if not by else ENDLESS if by == "time" else KILLED

    def each(
        self, chosen: list[Target], done: Callable[[Target, str | None], None], before: dict[str, str] | None = None
    ) -> None:
        """Every function, several at a time; `done` is called from one thread at a time."""
        known = before or {}
        waiting = iter(chosen)
        turn = threading.Lock()

        def work() -> None:
            while True:
                with turn:
                    target = next(waiting, None)
                if target is None:
                    return
                letters = self.function(target, known.get(target.name, ""))
                with turn:
                    done(target, letters)

        threads = [threading.Thread(target=work) for _ in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def keep_killers(self) -> None:
        (KEPT / f"killers-{self._room.name}.json").write_text(json.dumps(self._killers))

    def close(self) -> None:
        self.keep_killers()
        while not self._servers.empty():
            self._servers.get().close()


def _read_killers(room: Room) -> dict[str, str]:
    """Which test killed a mutant last time: it is asked first."""
    path = KEPT / f"killers-{room.name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _afford(tests: list[str], seconds: dict[str, float], killers: list[str]) -> list[str]:
    """What killed this mutant last time or the one before, two recordings, what the time allows, other recordings."""
    recorded = [test for test in tests if test.startswith(FIRST)]
    chosen = [test for test in (*killers, *recorded[:2]) if test in tests]
    spent = 0.0
    for test in tests:
        if test not in recorded:
            spent += seconds[test]
            if spent > TESTS_S_MAX and chosen:
                break
            chosen.append(test)
    return list(dict.fromkeys([*chosen, *recorded]))


def _test_hashes(lines: CoverageMap) -> dict[str, str]:
    """The hash of each test function, names left out."""
    found: dict[str, str] = {}
    for file in sorted({test.partition("::")[0] for test in lines.seconds}):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        hashes = {n.name: normalised_hash(_without_spec(n)) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for test in lines.seconds:
            if test.startswith(f"{file}::"):
                plain = test.partition("[")[0]
                found[plain] = hashes.get(plain.rpartition("::")[2], "0")
    return found


def _without_spec(function: ast.FunctionDef) -> ast.FunctionDef:
    """Which requirement a test covers changes nothing of what it notices."""
    function.decorator_list = [d for d in function.decorator_list if "mark.spec" not in ast.unparse(d)]
    return function


# --- what is said ---


def score(verdicts: Verdicts, present: list[Target]) -> tuple[int, int, int]:
    """Killed, generated, and generated in functions without a verdict."""
    killed = total = unknown = 0
    for target in present:
        kept = verdicts.of(target)
        total += len(target.mutants)
        if kept is None:
            unknown += len(target.mutants)
        else:
            killed += sum(letter in (KILLED, ENDLESS) for letter in kept.letters)
    return killed, total, unknown


def unlisted(verdicts: Verdicts, present: list[Target]) -> list[str]:
    """Survivors that nobody gave a reason for."""
    listing = Listing()
    known = ((target, verdicts.of(target)) for target in present)
    return [line for target, kept in known if kept is not None for line in listing.unlisted(target, kept.letters)]


def stale(everything: list[Target], all_verdicts: list[Verdicts]) -> list[str]:
    """Listings of mutants that do not exist, or that a test kills."""
    by_name: set[tuple[str, str]] = set()
    by_hash: set[tuple[str, int]] = set()
    for target in everything:
        kept = next((k for v in all_verdicts if (k := v.of(target)) is not None), None)
        letters = SURVIVED * len(target.mutants) if kept is None else kept.letters
        for number, (change, letter) in enumerate(zip(changes(target), letters, strict=True)):
            if letter in ALIVE:
                by_name.add((target.name, change))
                by_hash.add((target.hash, number))
    return [
        f"{function}: {change}"
        for function, hash_, number, change, _ in Listing().entries
        if (function, change) not in by_name and (hash_, number) not in by_hash
    ]


def report(rooms: list[Room], *, partial: bool = False) -> int:
    """The scores, and what is wrong; the exit status."""
    bad: list[str] = []
    everything: list[Target] = []
    all_verdicts: list[Verdicts] = []
    for room in rooms:
        verdicts, present = Verdicts.read(room.name), targets(room)
        everything += present
        all_verdicts.append(verdicts)
        killed, total, unknown = score(verdicts, present)
        share = killed / total if total else 0.0
        print(f"{room.name:<10} {killed:>5} of {total:>5} killed  {share:6.1%}  (bar {room.bar:.0%})"
              + (f"; {unknown} without a verdict" if unknown else ""))  # fmt: skip
        # What has no verdict is not known to be killed. A short run cannot try everything, and says what it left.
        if killed < room.bar * (total - unknown if partial else total):
            bad.append(f"{room.name} is below its bar")
        bad += [f"not listed: {line}" for line in unlisted(verdicts, present)]
    if len(rooms) == len(ROOMS):
        bad += [f"listed, but not a survivor: {line}" for line in stale(everything, all_verdicts)]
    for line in bad:
        print(line)
    return 1 if bad else 0


# --- the two ways to run ---


def run_rooms(
    rooms: list[Room], workers: int, again: bool, survivors_only: bool, match: str, quick: bool = False
) -> int:
    """Bring the kept verdicts up to date; only of functions whose name holds one of the words of `match`."""
    for room in rooms:
        run = Run(room, workers, until=None, quick=quick)
        verdicts, present = Verdicts.read(room.name), targets(room)
        wanted = [t for t in present if any(word in t.name for word in match.split(","))]
        stale_ones = [t for t in wanted if again or not _is_current(run, verdicts.of(t), t)]
        if quick:
            stale_ones = [t for t in stale_ones if verdicts.of(t) is None]
        before: dict[str, str] = {}
        if survivors_only:
            before = {t.name: kept.letters for t in stale_ones if (kept := verdicts.of(t)) is not None}
        mutants = sum(len(t.mutants) for t in stale_ones)
        print(f"{room.name}: {len(stale_ones)} of {len(present)} functions, {mutants} mutants", flush=True)
        _try_all(run, verdicts, present, stale_ones, before)
        run.close()
    return report(rooms)


def _is_current(run: Run, kept: Kept | None, target: Target) -> bool:
    return kept is not None and kept.tests == run.tests_hash(target)


def _try_all(run: Run, verdicts: Verdicts, present: list[Target], chosen: list[Target], before: dict[str, str]) -> None:
    ended = 0

    def done(target: Target, letters: str | None) -> None:
        nonlocal ended
        ended += 1
        assert letters is not None
        verdicts.put(Kept(target.hash, run.tests_hash(target), letters, target.name))
        verdicts.write(present)
        run.keep_killers()
        alive = survivors(target, letters)
        print(
            f"[{ended}/{len(chosen)}] {target.name}: {len(letters) - len(alive)} of {len(letters)} killed", flush=True
        )
        for change in alive:
            print(f"    survived: {change}", flush=True)

    run.each(chosen, done, before)


def run_changed(rooms: list[Room], workers: int, seconds: float, seed: int) -> int:
    """Try what has no verdict, for so long; say how much was not reached."""
    until = time.monotonic() + seconds
    draw = Random(seed)
    listing = Listing()
    functions = tried = total = 0
    bad: list[str] = []
    for room in draw.sample(rooms, len(rooms)):
        verdicts = Verdicts.read(room.name)
        chosen = [t for t in targets(room) if t.mutants and verdicts.of(t) is None]
        functions += len(chosen)
        total += sum(len(target.mutants) for target in chosen)
        if not chosen or time.monotonic() > until:
            continue
        draw.shuffle(chosen)

        def done(target: Target, letters: str | None) -> None:
            nonlocal tried
            if letters is not None:
                tried += len(letters)
                bad.extend(listing.unlisted(target, letters))

        try:
            run = Run(room, workers, until)
        except OutOfTime:
            print(f"{room.name}: no time left to measure what its tests execute")
            continue
        run.each(chosen, done)
        run.close()
    print(f"mutation: {functions} changed functions, {tried} of {total} mutants tried, {total - tried} not reached")
    for line in bad:
        print(f"survived: {line}")
    return 1 if bad else report(rooms, partial=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="mutate the pure cores")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"only these: {', '.join(r.name for r in ROOMS)}")
    parser.add_argument("--changed", action="store_true", help="only functions without a verdict; write nothing")
    parser.add_argument("--seconds", type=float, default=120, help="with --changed: for at most this long")
    parser.add_argument("--seed", type=int, default=0, help="with --changed: the order")
    parser.add_argument("--again", action="store_true", help="also what has a verdict")
    parser.add_argument("--survivors", action="store_true", help="what was killed stays so: try only what survived")
    parser.add_argument("--quick", action="store_true", help="only what has no verdict, and only by a few recordings")
    parser.add_argument("--match", default="", metavar="WORDS", help="only functions whose name holds one of these")
    parser.add_argument("--report", action="store_true", help="only the scores of the kept verdicts")
    parser.add_argument(
        "--list", default="", metavar="REASON", help="list every survivor that is not, with this reason"
    )
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - {room.name for room in ROOMS}:
        parser.error(f"there is no room {', '.join(sorted(unknown))}")
    rooms = [room for room in ROOMS if not asked.rooms or room.name in asked.rooms]
    if asked.list:
        for room in rooms:
            relist(room.name, targets(room), asked.list)
    if asked.report or asked.list:
        return report(rooms)
    if asked.changed:
        return run_changed(rooms, asked.workers, asked.seconds, asked.seed)
    return run_rooms(rooms, asked.workers, asked.again, asked.survivors, asked.match, asked.quick)


if __name__ == "__main__":
    sys.exit(main())
