"""`plan`: predicts how jobs do on nodes that come and go, by simulating worlds with the production code."""

import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli.flags import Json, TokenFile, Url
from holdfast.cli.render.progress_bars import counted

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.sim.planning import Plan, PlannedOutcome, Question, Summary

PROCESSES = 2
CHURN_HINT = "Write 10%/day (of the nodes), 2/week (each node), mtbf=8h, or none."
_PERIOD_MS = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000, "month": 2_592_000_000}
RETURN = "30m"


Length = Annotated[str, typer.Option(metavar="DURATION", help="How long one job computes if nothing fails: 10h.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="How many nodes; each runs one of the jobs at a time.")]
Churn = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="How often nodes go down: 10%/day (of them), 2/week (each), mtbf=8h, or none."),
]
Back = Annotated[
    str | None,
    typer.Option("--return", metavar="DURATION", help="How long a node is away on average, or never. [default: 30m]"),
]
Every = Annotated[
    str | None, typer.Option(metavar="DURATION", help="How often the job saves its state. By default it starts over.")
]
Cost = Annotated[str, typer.Option(metavar="DURATION", help="How long the job pauses to save its state.")]
Prepare = Annotated[
    str, typer.Option(metavar="DURATION", help="How long a node prepares a job: files, packages, image.")
]
Jobs = Annotated[int, typer.Option(min=1, help="How many such jobs, sent at once.")]
Attempts = Annotated[int | None, typer.Option(min=1, help="Failed attempts before a job is given up.")]
Price = Annotated[float | None, typer.Option(min=0, help="Price of a node hour, in any currency.")]
FromNetwork = Annotated[
    bool, typer.Option("--from-network", help="Take nodes and churn from the network, unless they are given.")
]
Preset = Annotated[str, typer.Option(help="The network's settings: lan, wan or test.")]
Runs = Annotated[
    int | None, typer.Option(min=1, help="How many worlds are simulated. [default: what takes about 10 s]")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")]
Svg = Annotated[str | None, typer.Option(metavar="FILE", help="Also write the plots to this file.")]


class NetworkFacts(NamedTuple):
    """What was observed in a live network."""

    nodes: int
    mtbf_ms: int
    """Mean time until a node goes down; 0 if none did."""
    return_ms: int
    """Mean time until it is back; 0 if unknown."""


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    job_length: Length,
    nodes: Nodes = None,
    churn: Churn = None,
    back: Back = None,
    checkpoint_every: Every = None,
    checkpoint_cost: Cost = "10s",
    prepare: Prepare = "10s",
    jobs: Jobs = 1,
    attempts: Attempts = None,
    price: Price = None,
    from_network: FromNetwork = False,
    preset: Preset = "lan",
    runs: Runs = None,
    seed: Seed = 0,
    svg: Svg = None,
    url: Url = None,
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Say how long jobs take on nodes that come and go.

    Also says what that costs. Nothing is run and no network is needed: worlds are simulated with the code that decides
    in a real one. Machines lose power at random moments and come back; the answer is what then happened to the jobs.
    With --checkpoint-every, also says how often to save: several intervals are tried on the same worlds, and the best
    is shown beside the one that the formula of Young and Daly gives. Ctrl-C prints what is known so far.

    Examples:
      holdfast plan --nodes 20 --churn 10%/day --job-length 10h
      holdfast plan --nodes 5 --churn mtbf=8h --job-length 2d --price 0.40
      holdfast plan --from-network --job-length 6h --checkpoint-every 30m
    """
    from holdfast.cli.flags import connect
    from holdfast.cli.render.plan_text import in_words, show
    from holdfast.errors import Misconfigured
    from holdfast.quantities import duration_ms
    from holdfast.sim.planning import Question

    _sensible(nodes, jobs, runs, preset, svg)
    seen = None
    if from_network:
        with connect(url, token_file) as client:
            seen = observed(client)
    question = Question(
        nodes=_nodes(nodes, seen),
        length_ms=_duration("--job-length", job_length),
        mtbf_ms=_churn(churn, seen),
        return_ms=_return(back, seen),
        every_ms=_duration("--checkpoint-every", checkpoint_every) if checkpoint_every else 0,
        cost_ms=duration_ms(checkpoint_cost),
        prepare_ms=duration_ms(prepare),
        jobs=jobs,
        attempts=attempts,
        preset=preset,
    )
    answer = asked(question, seed, runs, price)
    if svg:
        from holdfast.sim.planning_plot import svg as drawn

        try:
            Path(svg).write_text(drawn(answer, in_words(question)))
        except OSError as error:
            raise Misconfigured(f"{svg} cannot be written: {error.strerror}", hint="Name another file.") from None
    show(answer, json, svg)


def _sensible(nodes: int | None, jobs: int, runs: int | None, preset: str, svg: str | None) -> None:
    from holdfast.errors import Misconfigured, Misuse
    from holdfast.sim.planning import JOBS_MAX, NODES_MAX, RUNS_MAX

    for name, value, most in (("--nodes", nodes, NODES_MAX), ("--jobs", jobs, JOBS_MAX), ("--runs", runs, RUNS_MAX)):
        if value is not None and value > most:
            raise Misuse(f"{name} {value} is more than the {most} that can be simulated here", hint="Ask for less.")
    if preset not in ("lan", "wan", "test"):
        raise Misuse(f"there are no settings called {preset!r}", hint="There are lan, wan and test.")
    if svg and not Path(svg).absolute().parent.is_dir():
        raise Misconfigured(f"{svg} cannot be written: its folder is not there", hint="Make the folder first.")


def _nodes(nodes: int | None, seen: NetworkFacts | None) -> int:
    from holdfast.errors import Misuse

    if nodes is None and seen is None:
        raise Misuse("how many nodes?", hint="Say --nodes 20, or --from-network to take those of the network.")
    return nodes or (seen.nodes if seen is not None else 1)


def _churn(churn: str | None, seen: NetworkFacts | None) -> int:
    from holdfast.errors import Misuse

    if churn is not None:
        return mtbf_of(churn)
    if seen is None:
        raise Misuse("how often do nodes go down?", hint=f"{CHURN_HINT} --from-network uses what was observed.")
    return seen.mtbf_ms


def _return(back: str | None, seen: NetworkFacts | None) -> int:
    from holdfast.quantities import duration_ms

    if back is not None:
        return 0 if back == "never" else duration_ms(back)
    return seen.return_ms if seen is not None and seen.return_ms else duration_ms(RETURN)


def _duration(flag: str, text: str) -> int:
    from holdfast.errors import Misuse
    from holdfast.model.job import TIME_LIMIT_MS_MAX
    from holdfast.quantities import duration_ms

    ms = duration_ms(text)
    if not 1_000 <= ms <= TIME_LIMIT_MS_MAX:
        raise Misuse(f"{flag} {text} is out of range", hint="From 1s to 30d.")
    return ms


def mtbf_of(text: str) -> int:
    """`10%/day`, `2/week`, `mtbf=8h`, `none`: the mean time until a node goes down, 0 for never."""
    from holdfast.errors import Misuse
    from holdfast.quantities import duration_ms

    if text in ("none", "0"):
        return 0
    if text.startswith("mtbf="):
        ms = duration_ms(text.removeprefix("mtbf="))
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)/(hour|day|week|month)", text)
        if match is None:
            raise Misuse(f"{text!r} is not a churn rate", hint=CHURN_HINT)
        often = float(match[1]) / (100 if match[2] else 1)
        if not often:
            return 0
        ms = round(_PERIOD_MS[match[3]] / often)
    if ms < 1_000:
        raise Misuse(f"with {text} a node is gone before it has joined", hint=CHURN_HINT)
    return ms


def observed(client: "Client") -> NetworkFacts:
    """Counted from the journal: every time a node became suspect, and when it came back."""
    from holdfast.errors import Misuse

    listed = [node for node in client.nodes.list() if node.state != "gone"]
    if not listed:
        raise Misuse("the network has no nodes yet", hint="Say --nodes 20 --churn 10%/day instead.")
    joined = {node.id: node.joined_ms for node in listed}
    away: dict[str, int] = {}
    falls = back_ms = back = last = 0
    for event in client.events():
        last = event.at_ms
        if event.node is None or event.node not in joined:
            continue
        if event.kind == "node.suspect":
            falls += 1
            away[event.node] = event.at_ms
        elif event.kind in ("node.probation", "node.ready") and event.node in away:
            back_ms, back = back_ms + event.at_ms - away.pop(event.node), back + 1
    watched = sum(max(0, last - since) for since in joined.values())
    return NetworkFacts(len(listed), max(1_000, watched // falls) if falls else 0, back_ms // back if back else 0)


# --- asking ---


def asked(question: "Question", seed: int, runs: int | None, price: float | None) -> "Plan":
    """Simulate in two processes, with a bar on a terminal. When the time is up, or at Ctrl-C, the answer is what is
    known so far."""
    from msgspec.structs import replace

    from holdfast.errors import Misuse
    from holdfast.sim.planning import Plan, as_good, best, daly_every_ms, daly_total_ms, impossible, intervals, summary
    from holdfast.sim.planning_effort import SECONDS_MAX, of_the_whole, played_as, runs_for

    if why := impossible(question):
        raise Misuse(f"this cannot be planned: {why}", hint="Ask for less.")
    tried = intervals(question)
    part = played_as(question, len(tried))
    main, beside = runs_for(part, len(tried))
    main, beside = (main, beside) if runs is None else (runs, min(runs, max(beside, runs // 2)))
    # World by world, each with every interval, so that they can be compared whenever it ends.
    worlds = [
        (replace(part, every_ms=every), seed * 1_000_003 + number)
        for number in range(main)
        for every in [part.every_ms, *(other for other in tried if other != part.every_ms and number < beside)]
    ]
    by_every, stopped = gathered(worlds, SECONDS_MAX if runs is None else None)
    # A world that was not played with every interval counts for the question itself only.
    same = min([beside, *(len(by_every.get(every, ())) for every in tried)])
    # Nor is a world compared that was cut short with one of them.
    whole = [number for number in range(same) if not any(by_every[every][number].cut for every in tried)]
    compared = {every: [by_every[every][number] for number in whole] for every in tried if whole}
    here = of_the_whole(summary(part, by_every[part.every_ms]), question, part)
    sweep: tuple[Summary, ...] = tuple(
        of_the_whole(summary(replace(part, every_ms=every), outcomes), question, part)
        for every, outcomes in compared.items()
    )
    formula = question.mtbf_ms and question.cost_ms and question.every_ms
    return Plan(
        question=question,
        seed=seed,
        here=here,
        sweep=sweep,
        best_every_ms=best(sweep),
        as_good_ms=as_good(compared, best(sweep)),
        formula_every_ms=round(daly_every_ms(question.cost_ms, question.mtbf_ms)) if formula else 0,
        formula_mean_ms=round(
            daly_total_ms(
                question.length_ms, question.every_ms, question.cost_ms, question.prepare_ms, question.mtbf_ms
            )
        ),
        price=price,
        cost=None if price is None or not here.runs else round(price * here.node_hours, 4),
        played_nodes=part.nodes,
        played_jobs=part.jobs,
        runs_meant=main,
        stopped=stopped,
    )


def gathered(
    worlds: list[tuple["Question", int]], seconds: float | None
) -> tuple[dict[int, list["PlannedOutcome"]], str]:
    """The outcomes by checkpoint interval, and why some are missing. Always waits for the first one."""
    by_every: dict[int, list[PlannedOutcome]] = {}
    playing = _played(worlds, seconds)
    try:
        for (asked_for, _), outcome in zip(worlds, playing, strict=False):
            by_every.setdefault(asked_for.every_ms, []).append(outcome)
    except KeyboardInterrupt:
        if not by_every:
            raise
        return by_every, "interrupted"
    finally:
        playing.close()
    return by_every, "time" if sum(map(len, by_every.values())) < len(worlds) else ""


def _played(worlds: list[tuple["Question", int]], seconds: float | None) -> Generator["PlannedOutcome"]:
    """The outcomes, in order, for at most `seconds`. The other processes ignore Ctrl-C; this one ends them."""
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context
    from time import monotonic

    from holdfast.sim.planning_world import play

    until = None if seconds is None else monotonic() + seconds
    deaf = (signal.SIGINT, signal.SIG_IGN)
    others = set(active_children())
    with ProcessPoolExecutor(PROCESSES, get_context("fork"), signal.signal, deaf) as pool:
        pending = [pool.submit(play, question, seed) for question, seed in worlds]
        try:
            with counted("simulating", len(pending), "worlds") as advance:
                for number, one in enumerate(pending):
                    yield one.result(max(0, until - monotonic()) if until is not None and number else None)
                    advance()
        except TimeoutError:
            return
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            ours = [child for child in active_children() if child not in others]
            for child in ours:
                child.kill()  # a world that is half done is of no use, and may take minutes
            for child in ours:
                child.join()
