"""Flags that several commands share, said once, and the connection they lead to."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.client import Client

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the orchestrator is; else HOLDFAST_URL, else the local one."),
]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="File with the admin token; else HOLDFAST_ADMIN_TOKEN."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs to read.")]
JobArg = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or the first letters of it.")]
JobOrArray = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, or the first letters of it; or the whole id of an array.")
]
NodeArg = Annotated[str, typer.Argument(metavar="ID", help="The node's id, or the first letters of it.")]

SHORT_PATIENCE_S = 5.0
"""A person waits at the prompt: say soon that nobody answers."""
LONG_PATIENCE_S = 120.0
"""What follows a job outlasts a restart of the orchestrator."""


def connect(url: str | None, token_file: str | None, patience_s: float = SHORT_PATIENCE_S) -> "Client":
    from holdfast.client import Client

    return Client.find(url, token_file, patience_s=patience_s)


def connect_for_long(url: str | None, token_file: str | None) -> "Client":
    """For what outlasts a restart of the orchestrator. That nobody answers in the first place is said soon."""
    client = connect(url, token_file, LONG_PATIENCE_S)
    try:
        client.ping(patience_s=SHORT_PATIENCE_S)
    except BaseException:
        client.close()
        raise
    return client
