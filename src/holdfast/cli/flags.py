"""Flags that several commands share, and the connection that is made from them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import connection_monitor

if TYPE_CHECKING:
    from holdfast.client import Client


def complete_job(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import jobs

    return jobs(incomplete)


def complete_node(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import nodes

    return nodes(incomplete)


def complete_context(incomplete: str) -> list[str]:
    from holdfast.cli.completion_values import contexts

    return contexts(incomplete)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the orchestrator is; else HOLDFAST_URL, else the context."),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file", metavar="FILE", help="File with the token; else HOLDFAST_ACCESS_TOKEN or HOLDFAST_ADMIN_TOKEN."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs to read.")]
JobArg = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job: its id, the first letters of it, or its name.", autocompletion=complete_job
    ),
]
JobOrArray = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job: its id, the first letters of it, or its name; or the id or name of an array.",
        autocompletion=complete_job,
    ),
]
NodeArg = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="The node: its id, the first letters of it, or its name.", autocompletion=complete_node
    ),
]

SHORT_PATIENCE_S = 5.0
"""Seconds to wait for an orchestrator that does not answer, while a person waits at the prompt."""
LONG_PATIENCE_S = 120.0
"""Seconds to wait in commands that follow a job: they outlast a restart of the orchestrator."""


named: list[str] = []
"""The context named on the command line, if any."""
asked: list[str] = []
"""The addresses that this process sent requests to: an error names its network."""


def connect(url: str | None, token_file: str | None, patience_s: float = SHORT_PATIENCE_S) -> "Client":
    from holdfast.client import Client

    if url and named:
        from holdfast.errors import Misuse

        raise Misuse("--url and --context both say where the network is", hint="Give one of them.")
    client = Client.find(url, token_file, patience_s=patience_s)
    asked.append(getattr(client, "url", ""))
    connection_monitor.feel(client)
    return client


def connect_for_long(url: str | None, token_file: str | None) -> "Client":
    """For commands that outlast a restart of the orchestrator. If it does not answer at first, they fail soon."""
    client = connect(url, token_file, LONG_PATIENCE_S)
    try:
        client.ping(patience_s=SHORT_PATIENCE_S)
    except BaseException:
        client.close()
        raise
    return client
