"""`nodes`, `token`, `sim`: list nodes, manage join tokens, replay a simulated world."""

import sys
from typing import Annotated, Any

import typer

from holdfast.cli.flags import Json, TokenFile, Url, connect

token_group = typer.Typer(
    help=(
        "Manage the tokens that nodes join with.\n\n"
        "Examples:\n  holdfast token new --uses 20\n  holdfast token list\n  holdfast token revoke tok_4d"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


def complete_token(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import tokens

    return tokens(incomplete)


def register(app: typer.Typer) -> None:
    app.command("nodes")(list_nodes)
    app.add_typer(token_group, name="token")
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


@token_group.command("new")
def new_token(
    uses: Annotated[str, typer.Option(metavar="N|unlimited", help="How many machines may join with it.")] = "1",
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long it is good for.")] = "24h",
    note: Annotated[str, typer.Option(help="What it is for; shown in the network's journal.")] = "",
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Make a join token. It is shown only once, and lets one machine join unless more are asked for.

    Examples:
      holdfast token new
      holdfast token new --uses 20 --ttl 1h --note "the lab"
      holdfast token new --uses unlimited
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import nodes as render_nodes
    from holdfast.quantities import duration_ms

    with connect(url, token_file) as client:
        token = client.tokens.create(ttl_ms=duration_ms(ttl), uses=_uses(uses), note=note)
        where = _where_nodes_join(client.url)
    if json:
        render_jobs.print_json(token)
        return
    typer.echo(token.token)
    # If the token went into a file, it must not appear in a log as well.
    word = token.token if sys.stdout.isatty() else "TOKEN"
    typer.echo(
        f"{token.id}, for {render_nodes.uses_text(token.uses_left)}, good for {ttl}; "
        f"end it with: holdfast token revoke {token.id}\n"
        f"Join a machine with: holdfast node --orchestrator {where} --token {word}",
        err=True,
    )


def _uses(asked: str) -> int:
    if asked == "unlimited":
        return -1
    if not asked.isascii() or not asked.isdigit() or int(asked) < 1:
        raise typer.BadParameter(f"{asked!r} is neither a number of machines nor 'unlimited'", param_hint="--uses")
    return int(asked)


def _where_nodes_join(url: str) -> str:
    """The address that the orchestrator of this machine has recorded; a placeholder for other orchestrators."""
    import msgspec

    from holdfast.client import contexts, endpoint
    from holdfast.errors import HoldfastError

    try:
        written = endpoint.local_folder(contexts.read(endpoint.home())) / "endpoint.json"
        said = msgspec.json.decode(written.read_bytes(), type=dict[str, Any])
    except (OSError, RuntimeError, msgspec.DecodeError, HoldfastError):
        return "HOST:PORT"
    nodes = said.get("nodes")
    return nodes if isinstance(nodes, str) and said.get("url") == url else "HOST:PORT"


@token_group.command("list")
def list_tokens(
    everyone: Annotated[
        bool, typer.Option("--all", help="Also tokens that are no longer valid; --json has them all.")
    ] = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List the join tokens, newest first. Their secrets are not shown.

    Examples:
      holdfast token list
      holdfast token list --all
      holdfast token list --json
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import nodes as render_nodes

    with connect(url, token_file) as client:
        listed = client.tokens.list()
    render_jobs.print_json(listed) if json else render_nodes.tokens(listed, everyone=everyone)


@token_group.command("revoke")
def revoke_token(
    token: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The token's id, or the first letters of it (not the token itself).",
            autocompletion=complete_token,
        ),
    ],
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """End a join token. Nodes that joined with it stay.

    Examples:
      holdfast token revoke tok_4d
    """
    with connect(url, token_file) as client:
        client.tokens.revoke(token)
    if json:
        from holdfast.cli.render.jobs import print_json

        print_json({"id": token, "revoked": True})
    else:
        typer.echo(f"{token} is revoked")


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
