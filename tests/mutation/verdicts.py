"""Kept verdicts (`verdicts/ROOM.txt`) and the list of survivors that are known, with their reasons (`survivors/`).

A line of verdicts is `function-hash tests-hash verdicts name`: one letter for each mutant of the function in its fixed
order, `k` killed, `t` killed because the tests never ended, `s` survived, `u` survived because no test executes it.
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.functions import Target

HERE = Path(__file__).resolve().parent
KILLED, ENDLESS, SURVIVED, UNTOUCHED = "ktsu"
ALIVE = SURVIVED + UNTOUCHED


@dataclass(frozen=True)
class Kept:
    """What is known of one function."""

    hash: str
    tests: str
    letters: str
    name: str

    @property
    def line(self) -> str:
        return f"{self.hash} {self.tests} {self.letters or '-'} {self.name}"


@dataclass
class Verdicts:
    room: str
    kept: list[Kept] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return HERE / "verdicts" / f"{self.room}.txt"

    @classmethod
    def read(cls, room: str) -> "Verdicts":
        verdicts = cls(room)
        if verdicts.path.exists():
            rows = (line.split(" ", 3) for line in verdicts.path.read_text(encoding="utf-8").splitlines())
            verdicts.kept = [Kept(a, b, "" if c == "-" else c, d) for a, b, c, d in rows]
        return verdicts

    def of(self, target: Target) -> Kept | None:
        """By hash; of several functions that do the same, the one with the same name if there is one."""
        same = [kept for kept in self.kept if kept.hash == target.hash and len(kept.letters) == len(target.mutants)]
        return next((kept for kept in same if kept.name == target.name), same[0] if same else None)

    def put(self, kept: Kept) -> None:
        self.kept = [k for k in self.kept if (k.hash, k.name) != (kept.hash, kept.name)] + [kept]

    def write(self, present: list[Target]) -> None:
        """Only what the tree still has, in the order of the tree."""
        found = ((target, self.of(target)) for target in present)
        lines = [Kept(k.hash, k.tests, k.letters, target.name).line for target, k in found if k is not None]
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(self.path)


class Listing:
    """Survivors that somebody looked at, each with the reason why it may live.

    An entry is found again by the function's name and the words of the change, or by the function's hash and the
    number of the mutant: a rename leaves the second, an edit of something else in the function the first."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, int, str, str]] = []
        """Function, its hash, number of the mutant, words of the change, reason."""
        for path in sorted((HERE / "survivors").glob("*.toml")):
            for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivors", []):
                if not entry.get("reason", "").strip():
                    raise SystemExit(f"{path.name}: {entry['function']} lists survivors without a reason")
                for numbered in entry["mutants"]:
                    number, _, change = numbered.partition(" ")
                    self.entries.append((entry["function"], entry["hash"], int(number), change, entry["reason"]))
        self._by_name = {(function, change): reason for function, _, _, change, reason in self.entries}
        self._by_hash = {(hash_, number): reason for _, hash_, number, _, reason in self.entries}

    def reason(self, target: Target, number: int) -> str:
        """Empty: nobody gave one."""
        by_name = self._by_name.get((target.name, changes(target)[number]), "")
        return by_name or self._by_hash.get((target.hash, number), "")

    def unlisted(self, target: Target, letters: str) -> list[str]:
        names = changes(target)
        alive = [number for number, letter in enumerate(letters) if letter in ALIVE]
        return [f"{target.name}: {names[number]}" for number in alive if not self.reason(target, number)]


def survivors(target: Target, letters: str) -> list[str]:
    """The changes that live, each under a name that is unique in its function."""
    return [change for change, letter in zip(changes(target), letters, strict=True) if letter in ALIVE]


def changes(target: Target) -> list[str]:
    """The change of each mutant; the second one of the same words is `… (2)`."""
    met: dict[str, int] = {}
    found: list[str] = []
    for mutant in target.mutants:
        times = met[mutant.change] = met.get(mutant.change, 0) + 1
        found.append(mutant.change if times == 1 else f"{mutant.change} ({times})")
    return found


def relist(room: str, present: list[Target], reason: str) -> None:
    """Write a room's list anew: what was listed keeps its reason, what is no survivor goes, the others get `reason`."""
    listing, verdicts = Listing(), Verdicts.read(room)
    entries: list[str] = []
    for target in present:
        kept = verdicts.of(target)
        names = changes(target)
        groups: dict[str, list[str]] = {}
        for number, letter in enumerate("" if kept is None else kept.letters):
            if letter in ALIVE:
                why = listing.reason(target, number) or reason
                groups.setdefault(why, []).append(f"{number} {names[number]}")
        entries += [_entry(target, why, mutants) for why, mutants in groups.items()]
    path = HERE / "survivors" / f"{room}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(entries), encoding="utf-8")


def _entry(target: Target, reason: str, mutants: list[str]) -> str:
    lines = "".join(f"    {_quoted(mutant)},\n" for mutant in mutants)
    head = f"[[survivors]]\nfunction = {_quoted(target.name)}\nhash = {_quoted(target.hash)}\n"
    return f"{head}reason = {_quoted(reason)}\nmutants = [\n{lines}]\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
