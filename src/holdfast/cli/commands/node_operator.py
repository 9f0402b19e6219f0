"""`node status`, `pause`, `resume`, `offer`: for the operator of a node's machine. Ask only that node."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.flags import Json

if TYPE_CHECKING:
    from pathlib import Path

Home = Annotated[str | None, typer.Option(metavar="DIR", help="The node's folder; else HOLDFAST_NODE_HOME.")]


def register(group: typer.Typer) -> None:
    group.command("status")(status)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("offer")(offer)


def _folder(home: str | None) -> "Path":
    import os
    from pathlib import Path

    from holdfast.client.endpoint import home as user_home

    return Path(home or os.environ.get("HOLDFAST_NODE_HOME") or user_home() / "node").expanduser().absolute()


def _ask(home: str | None, words: dict[str, Any], json: bool, says: str) -> None:
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import nodes as render_nodes
    from holdfast.node.operator.operator_socket import ask

    found = ask(_folder(home), words)
    if json:
        render_jobs.print_json(found)
    elif says:
        hours: dict[str, Any] = found.get("hours", {})
        but = [] if hours.get("within", True) else [f"now it is {hours.get('says')}"]
        if words.get("do") == "resume" and found.get("drained"):
            but.append("but the network's operator drained it: it gets no work until they undo that")
        typer.echo("; ".join([says, *but]))
    else:
        render_nodes.node_status(found)


def status(home: Home = None, json: Json = False) -> None:
    """Show what the node on this machine hosts.

    Also shows its limits, how much of them is in use, and recent failures.

    Examples:
      holdfast node status
      holdfast node status --home /var/lib/holdfast/node --json
    """
    _ask(home, {"ask": "status"}, json, "")


def pause(
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for running work to finish before it is moved.")
    ] = "1m",
    home: Home = None,
    json: Json = False,
) -> None:
    """Stop hosting for now: no new work, and running work is moved.

    Lasts until `resume`, even across restarts.

    Examples:
      holdfast node pause
      holdfast node pause --grace 10m
    """
    from holdfast.quantities import duration_ms

    words = {"do": "pause", "grace_ms": duration_ms(grace)}
    _ask(home, words, json, "paused: running work may finish, then it is moved; `holdfast node resume` ends the pause")


def resume(home: Home = None, json: Json = False) -> None:
    """Host work again, within the hours that the node offers.

    Examples:
      holdfast node resume
    """
    _ask(home, {"do": "resume"}, json, "taking work again")


def offer(
    cpu: Annotated[str | None, typer.Option(metavar="CORES", help="Cores: 2, 0.5 or 250m.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory, such as 512MiB or 2GiB.")] = None,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="Disk.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs.")] = None,
    hours: Annotated[
        list[str] | None,
        typer.Option(metavar="WINDOW", help="Hours: 20:00-08:00 or 'Mon-Fri 19:00-07:00'; repeatable; or `always`."),
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Offer more or less of this machine, from now on.

    Work that no longer fits is moved, the newest first. Outside its hours, by this machine's clock, a node takes no new
    work, and the work that it hosts is moved.

    Examples:
      holdfast node offer --cpu 2 --memory 4GiB
      holdfast node offer --hours 'Mon-Fri 19:00-07:00'
    """
    from holdfast.errors import Misuse
    from holdfast.quantities import cpu_milli, size_mib

    amounts = {
        "cpu_milli": cpu_milli(cpu) if cpu else None,
        "memory_mib": size_mib(memory) if memory else None,
        "disk_mib": size_mib(disk) if disk else None,
        "gpus": gpus,
        "hours": _checked(hours) if hours else None,
    }
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if not given:
        raise Misuse("nothing to offer was named", hint="Give --cpu, --memory, --disk, --gpus or --hours.")
    _ask(home, {"do": "offer", **given}, json, f"offered from now on: {_in_words(given)}")


def _in_words(given: dict[str, Any]) -> str:
    """The offer in words."""
    from holdfast.node.operator.hours import ALWAYS
    from holdfast.quantities import counted, spoken_cores, spoken_mib

    words = {
        "cpu_milli": lambda amount: "1 core" if amount == 1_000 else f"{spoken_cores(amount)} cores",
        "memory_mib": lambda amount: f"{spoken_mib(amount)} memory",
        "disk_mib": lambda amount: f"{spoken_mib(amount)} disk",
        "gpus": lambda amount: counted(amount, "GPU"),
        "hours": lambda windows: "at all hours" if windows == ALWAYS else f"in these hours: {windows}",
    }
    return ", ".join(words[name](amount) for name, amount in given.items())


def _checked(windows: list[str]) -> str:
    from holdfast.errors import Misuse
    from holdfast.node.operator.hours import parse_hours, spoken

    try:
        return spoken(parse_hours("; ".join(windows)))
    except ValueError as wrong:
        raise Misuse(f"the hours cannot be read: {wrong}") from None
