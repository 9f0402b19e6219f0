"""Renders a plan on a terminal: facts, causes, intervals, plots, and what to change. Computes nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from holdfast.sim.planning import Plan, Question, Summary


def in_words(question: "Question") -> str:
    from holdfast.quantities import counted
    from holdfast.sim.planning_plot import span

    fleet = counted(question.nodes, "node")
    if question.mtbf_ms:
        back = f"back after {span(question.return_ms)}" if question.return_ms else "never back"
        fleet += f", each gone every {span(question.mtbf_ms)}, {back}"
    work = f"{counted(question.jobs, 'job')} of {span(question.length_ms)}"
    if question.every_ms:
        work += f", saved every {span(question.every_ms)}"
    return f"{fleet}; {work}"


def show(answer: "Plan", json: bool, svg: str | None) -> None:
    from holdfast.cli.render.jobs import console, print_json

    if json:
        print_json(answer)
        return
    from holdfast.quantities import counted
    from holdfast.sim.planning_effort import said_of_effort
    from holdfast.sim.planning_plot import terminal

    out = console()
    here = answer.here
    for line in in_words(answer.question).split("; "):
        out.print(line, style="bold")
    runs = counted(here.runs, "simulated run")
    out.print(f"{runs} of the production code, seed {answer.seed}", style="dim")
    for line in said_of_effort(answer):
        out.print(line, style="yellow")
    out.print()
    for name, words in _facts(answer):
        out.print(f"{name:<18}{words}")
    if here.succeeded:
        out.print()
        _causes(here)
    if len(answer.sweep) > 1:
        out.print()
        _intervals(answer)
    out.print()
    for line in terminal(answer):
        out.print(line, style="cyan" if "│" in line or "┤" in line else "dim", no_wrap=True)
    for line in _advice(answer):
        out.print(line)
    if svg:
        typer.echo(f"The plots are in {svg}.", err=True)


def _facts(answer: "Plan") -> Iterator[tuple[str, str]]:
    from holdfast.quantities import counted
    from holdfast.sim.planning import TELLING_MIN
    from holdfast.sim.planning_plot import span

    here, question = answer.here, answer.question
    if here.succeeded:
        yield "goodput", f"{here.goodput:.1%} of a job's time, from start to result, is useful work"
        yield "time to finish", f"p50 {span(here.p50_ms)}, p95 {span(here.p95_ms)}, mean {span(here.mean_ms)}"
        if here.succeeded < TELLING_MIN:
            yield "", f"p95 is the longest of {counted(here.succeeded, 'job')}: too few for a good estimate"
    if not here.runs:
        yield "succeeded", "not known: no world was simulated to its end"
        return
    if question.jobs > 1 and here.all_p50_ms:
        yield "all jobs", f"p50 {span(here.all_p50_ms)}, p95 {span(here.all_p95_ms)}"
    yield (
        "succeeded",
        f"{here.succeeded} of {here.jobs} jobs"
        + "".join(f"; {count} failed: {code}" for code, count in here.failed.items())
        + (f"; {here.unfinished} had not finished" if here.unfinished else ""),
    )
    yield "machines lost", f"{here.falls:.1f} in a run; {here.takeovers:.1f} takeovers"
    money = f", {answer.cost:,.2f} at {answer.price:g} an hour" if answer.cost is not None else ""
    yield "cost", f"{here.node_hours:,.1f} node hours a run{money}"


def _causes(here: "Summary") -> None:
    from holdfast.cli.render.jobs import console
    from holdfast.sim.planning import LOSSES, Cause
    from holdfast.sim.planning_plot import span

    out = console()
    total = sum(here.spent_ms.values()) or 1
    most = max([here.spent_ms[cause.value] for cause in LOSSES] + [1])
    out.print("lost time of a job, by cause", style="bold")
    for cause in (*LOSSES, Cause.USEFUL):
        ms = here.spent_ms[cause.value]
        bar = "█" * round(24 * ms / most) if cause is not Cause.USEFUL else ""
        out.print(f"  {cause.value:<20}{span(ms):>14}{ms / total:>8.2%}  {bar}")


def _intervals(answer: "Plan") -> None:
    from holdfast.cli.render.jobs import console
    from holdfast.quantities import counted
    from holdfast.sim.planning_plot import span

    out = console()
    worlds = f"(each on the same {counted(answer.sweep[0].runs, 'world')})"
    out.print(worlds, style="dim")
    out.print(f"{'checkpoint every':<22}{'mean':>14}{'p95':>14}{'goodput':>10}", style="bold")
    for one in answer.sweep:
        marks = "  as good" if one.every_ms in answer.as_good_ms else ""
        marks = "  best" if one.every_ms == answer.surely_best_ms else marks
        marks += "  asked for" if one.every_ms == answer.question.every_ms else ""
        lost = f"  {one.jobs - one.succeeded} of {one.jobs} not done" if one.succeeded < one.jobs else ""
        times = f"{span(one.mean_ms):>14}{span(one.p95_ms):>14}{one.goodput:>10.1%}" if one.succeeded else f"{'-':>38}"
        out.print(f"  {span(one.every_ms):<20}{times}{marks}{lost}", style="green" if "best" in marks else "")
    if answer.formula_every_ms:
        words = f"{span(answer.formula_every_ms)} is the interval of Young and Daly"
        out.print(
            f"  {words}; their mean for {span(answer.question.every_ms)}: {span(answer.formula_mean_ms)}", style="dim"
        )


def _advice(answer: "Plan") -> Iterator[str]:
    from holdfast.model import Settings
    from holdfast.sim.planning import Cause
    from holdfast.sim.planning_plot import span

    here, question = answer.here, answer.question
    if here.failed.get("poison"):
        yield (
            "\nThree machines went down within ten minutes of a job's start on them, so the\n"
            "network blames the job (poison). On nodes that go down this often,\n"
            "send shorter jobs."
        )
    if set(here.failed) - {"poison"}:
        yield "\nJobs used up their attempts; `holdfast run --attempts` allows more, `--checkpoint-every` needs fewer."
    if here.unfinished:
        yield "\nSome jobs had not finished after thirty times their length: save more often."
    waits = here.spent_ms.get(Cause.WAITING.value, 0)
    if waits > Settings.preset(question.preset).queue_ms_max:
        yield "\nJobs wait for more than a day: `holdfast run --queue-limit 30d` lets them."
    tried = {one.every_ms: one.mean_ms for one in answer.sweep}
    best_ms = answer.surely_best_ms
    gain = tried.get(question.every_ms, 0) - tried.get(best_ms, 0) if best_ms else 0
    if gain > question.length_ms / 100 and question.every_ms not in answer.as_good_ms:
        yield f"\nSaving every {span(best_ms)} instead would spare a job {span(gain)} on average."
    if not question.every_ms and here.spent_ms.get(Cause.REDONE.value, 0) > question.length_ms / 20:
        yield "\nMuch is computed again: with --checkpoint-every 30m a job continues where it was."
