"""`nodes`, `sim`: list nodes, replay a simulated world."""

from typing import Annotated

import typer

from holdfast.cli.flags import Json, TokenFile, Url, connect


def register(app: typer.Typer) -> None:
    app.command("nodes")(list_nodes)
    app.command("sim")(sim)


def list_nodes(
    everyone: Annotated[bool, typer.Option("--all", help="Also nodes that have left; --json has them all.")] = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List the machines of the network.

    Shows the state of each, what it offers, and how much of that is free. Machines with problems come first, with the
    reason. `holdfast top` shows the same live.

    Examples:
      holdfast nodes
      holdfast nodes --all
      holdfast nodes --json
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import nodes as render_nodes

    with connect(url, token_file) as client:
        listed = client.nodes.list()
    render_jobs.print_json(listed) if json else render_nodes.nodes(listed, everyone=everyone)


def sim(
    seed: Annotated[int, typer.Option(help="Which world: the same seed is the same world.")] = 1,
    story: Annotated[bool, typer.Option("--story", help="Print everything that happens, step by step.")] = False,
    json: Json = False,
) -> None:
    """Replay one simulated world.

    Simulates a fleet, its load and its faults, with the kernel that runs real networks.

    Examples:
      holdfast sim
      holdfast sim --seed 7 --story
    """
    from holdfast.sim.story import tell

    raise typer.Exit(tell(seed, story, json))
