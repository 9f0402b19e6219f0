"""`access`: make, list and revoke the tokens that people call the network with."""

import sys
from typing import Annotated

import typer

from holdfast.cli.flags import Json, TokenFile, Url, connect

access_group = typer.Typer(
    help=(
        "Manage the tokens that people call the network with.\n\n"
        "Examples:\n  holdfast access new --role user --owner ann\n  holdfast access list\n"
        "  holdfast access revoke acc_4d"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


def complete_access(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import access_tokens

    return access_tokens(incomplete)


def complete_role(incomplete: str) -> list[str]:
    from holdfast.model.access import Role

    return [role for role in Role if role.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    app.add_typer(access_group, name="access")


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
    typer.echo(made.token)
    # If the token went into a file, it must not appear in a log as well.
    word = made.token if sys.stdout.isatty() else "TOKEN"
    typer.echo(
        f"{made.id}, good for {ttl}; end it with: holdfast access revoke {made.id}\n"
        f"Whoever gets it uses it with: HOLDFAST_ACCESS_TOKEN={word}",
        err=True,
    )


@access_group.command("list")
def list_access(
    everyone: Annotated[
        bool, typer.Option("--all", help="Also tokens that are no longer valid; --json has them all.")
    ] = False,
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
    from holdfast.cli.render.access import access_tokens

    with connect(url, token_file) as client:
        listed = client.access.list()
    render_jobs.print_json(listed) if json else access_tokens(listed, everyone=everyone)


@access_group.command("revoke")
def revoke_access(
    access: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The token's id, or the first letters of it (not the token itself).",
            autocompletion=complete_access,
        ),
    ],
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
    if json:
        from holdfast.cli.render.jobs import print_json

        print_json({"id": access, "revoked": True})
    else:
        typer.echo(f"{access} is revoked")
