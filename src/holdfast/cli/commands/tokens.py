"""`token`, `access`: make, list and revoke the tokens that nodes join with, and those that people call with."""

import sys
from collections.abc import Callable
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
access_group = typer.Typer(
    help=(
        "Manage the tokens that people call the network with.\n\n"
        "Examples:\n  holdfast access new --role user --owner ann\n  holdfast access list\n"
        "  holdfast access revoke acc_4d"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

Everyone = Annotated[bool, typer.Option("--all", help="Also tokens that are no longer valid; --json has them all.")]


def id_argument(complete: Callable[[str], list[str]]) -> Any:
    return typer.Argument(
        metavar="ID",
        help="The token's id, or the first letters of it (not the token itself).",
        autocompletion=complete,
    )


def show_secret(secret: str, told: Callable[[str], str]) -> None:
    """The token alone goes to stdout; what to do with it goes to stderr.

    If the token went into a file, it must not appear in a log as well: then `told` gets a placeholder.
    """
    typer.echo(secret)
    typer.echo(told(secret if sys.stdout.isatty() else "TOKEN"), err=True)


def say_revoked(token: str, json: bool) -> None:
    if json:
        from holdfast.cli.render.jobs import print_json

        print_json({"id": token, "revoked": True})
    else:
        typer.echo(f"{token} is revoked")


def register(app: typer.Typer) -> None:
    app.add_typer(token_group, name="token")
    app.add_typer(access_group, name="access")


# --- what nodes join with ---


def complete_token(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import tokens

    return tokens(incomplete)


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
    from holdfast.cli.render import tokens as render_tokens
    from holdfast.quantities import duration_ms

    with connect(url, token_file) as client:
        token = client.tokens.create(ttl_ms=duration_ms(ttl), uses=_uses(uses), note=note)
        where = _where_nodes_join(client.url)
    if json:
        render_jobs.print_json(token)
        return
    show_secret(
        token.token,
        lambda word: (
            f"{token.id}, for {render_tokens.uses_text(token.uses_left)}, good for {ttl}; "
            f"end it with: holdfast token revoke {token.id}\n"
            f"Join a machine with: holdfast node --orchestrator {where} --token {word}"
        ),
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
    everyone: Everyone = False,
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
    from holdfast.cli.render import tokens as render_tokens

    with connect(url, token_file) as client:
        listed = client.tokens.list()
    render_jobs.print_json(listed) if json else render_tokens.join_tokens(listed, everyone=everyone)


@token_group.command("revoke")
def revoke_token(
    token: Annotated[str, id_argument(complete_token)],
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
    say_revoked(token, json)


# --- what people call with ---


def complete_access(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import access_tokens

    return access_tokens(incomplete)


def complete_role(incomplete: str) -> list[str]:
    from holdfast.model.access import Role

    return [role for role in Role if role.startswith(incomplete)]


@access_group.command("new")
def new_access(
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="user, node-operator or network-operator.",
            autocompletion=complete_role,
        ),
    ],
    owner: Annotated[
        str,
        typer.Option(metavar="NAME", help="Whose jobs, or whose nodes, it is for; a network operator needs none."),
    ] = "",
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long it is good for.")] = "30d",
    note: Annotated[str, typer.Option(help="What it is for; shown in `holdfast access list`.")] = "",
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Make an access token. It is shown only once.

    A user submits jobs and sees its own. A node operator makes join tokens, and sees and drains the nodes that joined
    with them. A network operator may do everything, as the holder of the admin token.

    Examples:
      holdfast access new --role user --owner ann
      holdfast access new --role node-operator --owner lab --ttl 7d
      holdfast access new --role network-operator --note "the on-call phone"
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.quantities import duration_ms

    with connect(url, token_file) as client:
        made = client.access.create(role, owner=owner, ttl_ms=duration_ms(ttl), note=note)
    if json:
        render_jobs.print_json(made)
        return
    show_secret(
        made.token,
        lambda word: (
            f"{made.id}, good for {ttl}; end it with: holdfast access revoke {made.id}\n"
            f"Whoever gets it uses it with: HOLDFAST_ACCESS_TOKEN={word}"
        ),
    )


@access_group.command("list")
def list_access(
    everyone: Everyone = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List the access tokens, newest first. Their secrets are not shown.

    Examples:
      holdfast access list
      holdfast access list --all
      holdfast access list --json
    """
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render import tokens as render_tokens

    with connect(url, token_file) as client:
        listed = client.access.list()
    render_jobs.print_json(listed) if json else render_tokens.access_tokens(listed, everyone=everyone)


@access_group.command("revoke")
def revoke_access(
    access: Annotated[str, id_argument(complete_access)],
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """End an access token, and the join tokens that were made with it.

    Its jobs go on, and its nodes stay.

    Examples:
      holdfast access revoke acc_4d
    """
    with connect(url, token_file) as client:
        client.access.revoke(access)
    say_revoked(access, json)
