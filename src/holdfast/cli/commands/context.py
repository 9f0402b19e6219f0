"""`context`: the networks a person works with, by name. Sends no requests; never prints a token."""

from typing import Annotated, Any

import typer

from holdfast.cli.flags import Json, complete_context

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NameArg = Annotated[str, typer.Argument(metavar="NAME", help="The context.", autocompletion=complete_context)]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="context")


@group.callback()
def context() -> None:
    """Work with several networks, by name.

    A context is the address of a network and the credentials for it. Every command uses the context in use;
    --context NAME or HOLDFAST_CONTEXT selects another one, and an explicit address (--url, HOLDFAST_URL) overrides
    both. `local` is the orchestrator of this machine, and always exists.

    Examples:
      holdfast context add lab --url https://lab.example --token-file lab.token
      holdfast context use lab
      holdfast jobs --context local
    """


@group.command("list")
def list_contexts(json: Json = False) -> None:
    """List the known networks, and which one is in use.

    Examples:
      holdfast context list
      holdfast context list --json
    """
    from holdfast.client.contexts import LOCAL

    contexts, used = _read()
    views = [_view(name, used) for name in sorted({LOCAL, *contexts.contexts})]
    if json:
        _print_json(views)
        return
    width = max(len(view["name"]) for view in views)
    for view in views:
        address = view["url"] or ("(not running)" if view["name"] == LOCAL else view["folder"])
        typer.echo(f"{'*' if view['used'] else ' '} {view['name']:<{width}}  {address}")


@group.command("show")
def show_context(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The context; else the one in use.", autocompletion=complete_context),
    ] = None,
    json: Json = False,
) -> None:
    """Show a network, without its token.

    Prints its address, and whether a token and a certificate are stored for it.

    Examples:
      holdfast context show
      holdfast context show lab --json
    """
    contexts, used = _read()
    contexts.get(name or used)
    view = _view(name or used, used)
    if json:
        _print_json(view)
        return
    typer.echo(f"context      {view['name']}{' (in use)' if view['used'] else ''}")
    typer.echo(f"address      {view['url'] or 'none: it is not running'}")
    typer.echo(f"token        {'stored here' if view['token'] else 'none'}")
    typer.echo(f"certificate  {'pinned, sha256 ' + view['certificate'][:16] if view['certificate'] else 'not pinned'}")


@group.command("use")
def use_context(name: NameArg) -> None:
    """Use this network from now on.

    Examples:
      holdfast context use lab
      holdfast context use local
    """
    from holdfast.client import contexts
    from holdfast.client.endpoint import home

    with contexts.changing(home()) as known:
        known.get(name)
        known.current = name
    typer.echo(f"commands now go to {name}")


@group.command("add")
def add_context(
    name: NameArg,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where its orchestrator is.")],
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with a token for it, which is copied; - is stdin.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="The one certificate to trust, as PEM; else the system's.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing context of this name.")] = False,
) -> None:
    """Add a network. Its token is kept in a file that only you can read.

    Examples:
      holdfast context add lab --url https://lab.example --token-file lab.token
      holdfast context add lab --url https://lab.example --use --force
    """
    from holdfast.client import contexts
    from holdfast.client.answers import checked
    from holdfast.client.endpoint import Endpoint, home
    from holdfast.errors import Misuse

    contexts.checked_name(name)
    if not url.startswith(("http://", "https://")):
        raise Misuse(f"{url!r} is not an address", hint="It takes http://HOST:PORT or https://HOST:PORT.")
    if name == contexts.LOCAL:
        raise Misuse("`local` is the orchestrator of this machine", hint="Give this network another name.")
    added = contexts.Context(
        url=url.rstrip("/"),
        token=_content(token_file, "token").strip() if token_file else "",
        certificate=_content(certificate, "certificate") if certificate else "",
    )
    checked(Endpoint(added.url, added.token))
    with contexts.changing(home()) as known:
        if name in known.contexts and not force:
            raise Misuse(f"there is a context {name!r} already", hint="--force replaces it.", code="context_exists")
        known.contexts[name] = added
        if use:
            known.current = name
    typer.echo(f"{name} is {added.url}" + ("; commands now go there" if use else ""))
    if not use:
        typer.echo(f"use it with: holdfast context use {name}", err=True)
    if token_file and token_file != "-" and (who := _readers(token_file)):
        typer.echo(f"{who} can read {token_file}, from which the token was copied: chmod 600 it", err=True)


@group.command("remove")
def remove_context(name: NameArg) -> None:
    """Forget a network, and the token that was kept for it.

    Examples:
      holdfast context remove lab
    """
    from holdfast.client import contexts
    from holdfast.client.endpoint import home
    from holdfast.errors import Misuse

    with contexts.changing(home()) as known:
        known.get(name)
        if name == contexts.LOCAL and name not in known.contexts:
            raise Misuse("`local` is the orchestrator of this machine: there is nothing to remove")
        known.contexts.pop(name, None)
        was_used = known.current == name
        if was_used:
            known.current = ""
    typer.echo(f"{name} is forgotten" + ("; commands now go to local" if was_used else ""))


def _read() -> "tuple[Any, str]":
    """The contexts, and the name of the one in use."""
    import os

    from holdfast.client.contexts import LOCAL, read
    from holdfast.client.endpoint import home

    contexts = read(home())
    return contexts, os.environ.get("HOLDFAST_CONTEXT") or contexts.current or LOCAL


def _view(name: str, used: str) -> dict[str, Any]:
    """What may be shown of a context: not its token."""
    import hashlib

    from holdfast.client.endpoint import known_as

    endpoint, folder = known_as(name)
    return {
        "name": name,
        "url": endpoint.url,
        "folder": folder,
        "used": name == used,
        "token": bool(endpoint.token),
        "certificate": hashlib.sha256(endpoint.certificate.encode()).hexdigest() if endpoint.certificate else "",
    }


def _print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def _readers(file: str) -> str:
    from pathlib import Path

    from holdfast.diagnostics.machine import readers

    return readers(Path(file))


def _content(named: str, what: str) -> str:
    import sys
    from pathlib import Path

    from holdfast.errors import Misuse

    try:
        text = sys.stdin.read(1 << 20) if named == "-" else Path(named).read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise Misuse(
            f"the {what} file {named} cannot be read: {cause}", hint="Check the path and its permissions."
        ) from None
    if not text.strip() or (what == "token" and not text.strip().isprintable()):
        raise Misuse(f"{named} holds no {what}", hint=f"Write the {what} to it, and nothing else.")
    return text
