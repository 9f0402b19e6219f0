"""Arrays on the command line: shows an array until it ends, lists its items, stops it, fetches its results."""

from typing import TYPE_CHECKING

import typer

from holdfast.cleaning import clean

if TYPE_CHECKING:
    from holdfast.cli.watch.array_watch import ArrayWatch
    from holdfast.client import Client
    from holdfast.client.array_results import Collected
    from holdfast.errors import HoldfastError
    from holdfast.wire.http import ArrayView, JobView

ROWS_MAX = 20
"""Rows of the table at the end; the rest is in `index.json`."""
EXIT_FAILED = 1
EXIT_LATER = 75
EXIT_STOPPED = 130


def see_array_through(
    client: "Client", array: "ArrayView", texts: list[str], *, detach: bool, results: bool, json: bool
) -> None:
    """Show the array until all items have ended, and fetch its results; or, if detached, print its id."""
    from holdfast.cli.watch.interrupts import seen_through

    if detach and not json:
        typer.echo(array.id)
        return
    if detach:
        from holdfast.cli.render.jobs import print_json

        print_json(array)
        return
    watches: list[ArrayWatch] = []

    def until_ended() -> "ArrayView":
        # Imported here: an interrupt during the import still shows what was sent.
        from holdfast.cli.watch.array_watch import ArrayWatch

        if not watches:
            watches.append(ArrayWatch(client, array, texts))
        return watches[0].until_ended()

    ended = seen_through(
        array.id,
        until_ended,
        lambda: client.arrays.stop(array.id),
        {
            "see it": f"holdfast jobs --array {array.id}",
            "stop it": f"holdfast stop {array.id}",
            "its files": f"holdfast results {array.id}",
        },
    )
    _conclude(client, ended, texts, results=results, json=json)


def _conclude(client: "Client", array: "ArrayView", texts: list[str], *, results: bool, json: bool) -> None:
    from holdfast.cli.render.jobs import print_json

    collected, trouble = _brought(client, array) if results else (None, None)
    code = exit_code_of(array)
    if json:
        print_json({"array": array, "results": collected})
    else:
        table(client, array, texts, failed_first=True)
    typer.secho(summary(array), err=True, fg="green" if code == 0 else "red")
    if code == EXIT_LATER or any(item.verdict == "failed" for item in array.jobs):
        typer.echo(f"  run again what did not succeed: holdfast rerun {array.id}", err=True)
    if code:
        raise typer.Exit(code)
    if trouble is not None:
        raise trouble


def exit_code_of(array: "ArrayView") -> int:
    """0: every item succeeded. 75: what failed may succeed if it is run again. 130: stopped. Else 1."""
    from holdfast.model import MEANINGS, FailureCode

    codes = {item.failure or "" for item in array.jobs if item.verdict == "failed"}
    if codes:
        later = {code.value for code in FailureCode if MEANINGS[code].retryable}
        return EXIT_LATER if codes <= later else EXIT_FAILED
    return EXIT_STOPPED if any(item.verdict == "cancelled" for item in array.jobs) else 0


def summary(array: "ArrayView") -> str:
    from holdfast.cli.watch.array_watch import spoken_counts
    from holdfast.quantities import counted

    name = f" ({clean(array.name)})" if array.name else ""
    return f"{array.id}{name}: {counted(array.items, 'item')}: {spoken_counts(array.counts)}"


# --- results ---


def _brought(client: "Client", array: "ArrayView") -> "tuple[Collected | None, HoldfastError | None]":
    """The results of an array that has ended, or why they are missing. The outcome is shown in either case."""
    from holdfast.errors import HoldfastError

    if all(item.verdict == "cancelled" for item in array.jobs):
        return None, None
    try:
        collected = bring(client, array.id)
    except HoldfastError as trouble:
        trouble.hint = f"{trouble.hint} Then get them with: holdfast results {array.id}".strip()
        typer.echo(f"-- its results did not arrive: {clean(trouble.says)} [{trouble.code}]", err=True)
        return None, trouble
    typer.echo(f"-- {says(collected)}", err=True)
    return collected, incomplete(collected) if collected.missing else None


def bring(client: "Client", array: str, to: str | None = None) -> "Collected":
    """Fetch the results, with a bar. Ctrl-C prints how to continue."""
    from holdfast.cli.render.progress_bars import Tally

    try:
        with Tally("fetching the results") as tally:
            return client.arrays.results(
                array, to=to, told=lambda done, total: tally.told(done, total, f"item {done:,} of {total:,}")
            )
    except KeyboardInterrupt:
        from holdfast.cli.commands.results import cut

        raise cut(array, to) from None


def results(client: "Client", array: str, to: str | None, *, json: bool) -> None:
    from holdfast.cli.render.jobs import print_json

    collected = bring(client, array, to)
    print_json(collected) if json else typer.echo(says(collected))
    if collected.missing:
        raise incomplete(collected)


def says(collected: "Collected") -> str:
    """Where the results are, in one line."""
    from holdfast.quantities import counted, spoken_bytes

    files = f"{counted(collected.files, 'file')} ({spoken_bytes(collected.bytes)})" if collected.files else "no files"
    return f"{collected.folder}/: {counted(collected.items, 'item')}, {files}, {collected.index}"


def incomplete(collected: "Collected") -> "HoldfastError":
    """Which items did not arrive, and why the first of them did not."""
    from holdfast.errors import RequestError

    first, why = next(iter(collected.missing.items()))
    more = f" and those of {len(collected.missing) - 1} more" if len(collected.missing) > 1 else ""
    error = RequestError(
        f"the results of item {first}{more} did not arrive: {why}",
        hint=f"What arrived is kept. Fetch the rest with: holdfast results {collected.array}",
        code="incomplete",
    )
    error.exit_code = EXIT_LATER
    return error


# --- looking ---


def table(
    client: "Client",
    array: "ArrayView",
    texts: list[str],
    *,
    failed_first: bool = False,
    phase: str | None = None,
    limit: int = ROWS_MAX,
) -> None:
    """The items, one per row: the state of each, and why it failed if it did."""
    from holdfast.cli.render import jobs as render_jobs

    rows = [item for item in array.jobs if phase in (None, item.phase, item.verdict)]
    if failed_first:
        rows.sort(key=lambda item: (item.verdict == "succeeded", item.index))
    shown = rows[:limit]
    details: dict[str, JobView] = {item.job: client.jobs.get(item.job) for item in shown if item.failure}
    render_jobs.array(shown, texts, details)
    if len(rows) > len(shown):
        typer.echo(f"… and {len(rows) - len(shown):,} more", err=True)


def stop(client: "Client", array: str, *, json: bool) -> None:
    from holdfast.cli.render.jobs import print_json

    view = client.arrays.stop(array)
    if json:
        print_json(view)
    else:
        typer.echo(summary(view) if view.ended else f"{summary(view)}; the rest is being stopped")


def show_array(client: "Client", array: str, *, json: bool, phase: str | None = None, limit: int = 50) -> None:
    from holdfast.cli.render.jobs import print_json

    view = client.arrays.get(array)
    if json:
        print_json(view)
        return
    typer.echo(summary(view))
    table(client, view, [], phase=phase, limit=limit)
