"""Writes `docs/status.md` from a whole run: which tests cover each SPEC id, and whether they pass.

The file holds nothing that changes from run to run when the tests and their outcomes do not, so that its
diff means something. A digest of its own text in it gives away an edit by hand (tests/test_tidy.py).
A committed page that is older than the tests is said to be so, and written anew; it is still true of the run it
came from, so it fails nothing.
"""

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

SPEC_IDS = Path(__file__).parent.parent / "spec_ids.txt"
COVERAGE = Path(__file__).parent.parent / "spec_coverage.toml"
DIGEST = "<!-- sha256 of what follows: "
HEAD = """# Status

What of the specification is covered by tests, and whether they pass. Written by `make test` from a run.
"""


def seal(body: str) -> str:
    """The page: head, digest of the body, body."""
    return f"{HEAD}\n{DIGEST}{sha256(body.encode()).hexdigest()} -->\n{body}"


def unbroken(page: str) -> bool:
    """Whether the page is as it was written."""
    _, mark, rest = page.partition(DIGEST)
    _, _, body = rest.partition("-->\n")
    return bool(mark) and seal(body) == page


def requirements() -> dict[str, str]:
    """SPEC id -> its first words, in the order of the specification."""
    lines = SPEC_IDS.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if line)


def render(outcomes: dict[str, bool], covers: dict[str, set[str]]) -> str:
    """The page for these outcomes. `outcomes`: test -> passed; `covers`: test -> SPEC ids."""
    by_id = tests_by_id(outcomes, covers)
    notes = tomllib.loads(COVERAGE.read_text(encoding="utf-8"))
    covered = [wanted for wanted, tests in by_id.items() if tests]
    good = [wanted for wanted in covered if all(outcomes[t] for t in by_id[wanted])]
    lines = [
        "",
        f"Of {len(by_id)} requirements {len(covered)} have tests, and for {len(good)} all of them pass.",
        "What is covered and what is missing is written by hand in `tests/spec_coverage.toml`; the list of all tests",
        "by requirement is `build/status-tests.md` after a run.",
        "",
        "| id | requirement | tests | covered | missing |",
        "|---|---|---:|---|---|",
    ]
    for wanted, title in requirements().items():
        tests = by_id[wanted]
        failing = sum(not outcomes[test] for test in tests)
        count = f"{len(tests)}, **{failing} failing**" if failing else str(len(tests))
        note = notes.get(wanted, {})
        lines.append(f"| {wanted} | {title} | {count} | {note.get('covered', '')} | {note.get('missing', 'all')} |")
    lines += ["", *mutation_lines(), ""]
    return seal("\n".join(lines))


def tests_by_id(outcomes: dict[str, bool], covers: dict[str, set[str]]) -> dict[str, list[str]]:
    return {wanted: sorted(t for t in outcomes if wanted in covers.get(t, ())) for wanted in requirements()}


def long_list(outcomes: dict[str, bool], covers: dict[str, set[str]]) -> str:
    """Every test under every requirement that it names."""
    lines = ["# Tests by requirement", ""]
    for wanted, tests in tests_by_id(outcomes, covers).items():
        lines += [f"## {wanted} · {requirements()[wanted]}", ""]
        lines += [f"- {'passing' if outcomes[test] else '**failing**'} `{test}`" for test in tests]
        lines.append("")
    return "\n".join(lines)


def mutation_lines() -> list[str]:
    """How many mutants of the pure cores the tests kill: from the verdicts that are kept."""
    from tests.mutation.__main__ import score
    from tests.mutation.functions import targets
    from tests.mutation.rooms import ROOMS
    from tests.mutation.verdicts import Verdicts

    lines = [
        "## Mutation of the pure cores",
        "",
        "Killed mutants over all that were generated; survivors that are listed with a reason count as not killed.",
        "`make mutation` brings the verdicts up to date.",
        "",
        "| room | mutants | killed | share | bar | not tried yet |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for room in ROOMS:
        killed, total, unknown = score(Verdicts.read(room.name), targets(room))
        lines.append(f"| {room.name} | {total} | {killed} | {killed / total:.1%} | {room.bar:.0%} | {unknown} |")
    return lines


class Status:
    """Gathers outcomes on the process that sees all reports, and writes the page at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, bool] = {}
        self.covers: dict[str, set[str]] = {}
        self.says = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("[")[0].partition("@")[0]
        self.outcomes[test] = self.outcomes.get(test, True) and report.outcome == "passed"
        for name, value in report.user_properties:
            if name == "spec":
                self.covers.setdefault(test, set()).update(str(value).split())

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.says = f"{self.path} not written: the run did not come to its end"
            return
        before = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        page = render(self.outcomes, self.covers)
        details = self.path.parent.parent / "build" / "status-tests.md"
        details.parent.mkdir(exist_ok=True)
        details.write_text(long_list(self.outcomes, self.covers), encoding="utf-8")
        if page == before:
            return
        self.path.write_text(page, encoding="utf-8")
        self.says = f"{self.path} was out of date and is written anew: commit it"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.says:
            terminalreporter.write_line(self.says)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--status", metavar="FILE", default=None, help="write the status page from this whole run")


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--status")
    if wanted is None or hasattr(config, "workerinput"):
        return
    partial = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if partial or config.getoption("keyword") or config.getoption("markexpr"):
        raise pytest.UsageError("--status needs a whole run: no paths, no -k, no -m")
    config.pluginmanager.register(Status(Path(wanted)), "holdfast-status")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reports travel between processes and marks do not: hand the ids to the report."""
    for item in items:
        ids = sorted({str(arg) for mark in item.iter_markers("spec") for arg in mark.args})
        if ids:
            item.user_properties.append(("spec", " ".join(ids)))
