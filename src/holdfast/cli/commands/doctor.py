"""`doctor`: finds what is wrong with this machine or its connection to the network, and says how to fix it."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import Json, TokenFile, Url

if TYPE_CHECKING:
    from holdfast.client.endpoint import Endpoint
    from holdfast.diagnostics.findings import CheckResult, Diagnosis

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    node: Annotated[
        bool, typer.Option("--node", help="Check this machine as a node: what keeps it from hosting jobs is a failure.")
    ] = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Find what is wrong with this machine or the network.

    Also says how to fix it. Checks this machine, then whether it could host jobs, then each step of the connection to
    the orchestrator (name, connection, certificate, answer, token), its clock, its store, its nodes and their versions.
    If no orchestrator is known, only this machine is checked. Repairs nothing.

    The exit code is 0 when nothing failed (there may be warnings), else 1.

    Examples:
      holdfast doctor
      holdfast doctor --node
      holdfast doctor --url https://lab.example --token-file admin.token
      holdfast doctor --json
    """
    from holdfast.cli.render import jobs as render_jobs

    report = _examined(node, url, token_file, quiet=json)
    if json:
        render_jobs.print_json(report)
    if not report.ok:
        raise typer.Exit(1)


def _examined(node: bool, url: str | None, token_file: str | None, *, quiet: bool) -> "Diagnosis":
    """Run all checks, and show each finding as soon as it is known."""
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.client.endpoint import home
    from holdfast.diagnostics import machine
    from holdfast.diagnostics.findings import looked, report

    own = home()
    node_home = Path(os.environ.get("HOLDFAST_NODE_HOME") or own / "node").expanduser()
    endpoint, unknown = _where(url, token_file)

    def steps() -> "Iterator[CheckResult]":
        yield from machine.as_client(own, token_file)
        # A folder that this user may not enter does not count as a node's.
        yield from machine.as_node(node_home, is_node=node or os.path.exists(node_home / "uuid"))
        if unknown is not None:
            yield unknown
        if endpoint is not None:
            from holdfast.diagnostics.reach import GROUP, Reached

            yield from looked(GROUP, "way to it", lambda at=endpoint: Reached(at).examine(), "fail")

    screen = Screen(endpoint.url if endpoint else "")
    findings: list[CheckResult] = []
    for found in steps():
        findings.append(found)
        if not quiet:
            screen.show(found)
    whole = report(endpoint.url if endpoint else "", findings)
    if not quiet:
        screen.conclude(findings)
    return whole


def _where(url: str | None, token_file: str | None) -> "tuple[Endpoint | None, CheckResult | None]":
    """The orchestrator to check, or why there is none."""
    from holdfast.client.endpoint import find
    from holdfast.diagnostics.findings import CheckResult
    from holdfast.diagnostics.reach import GROUP
    from holdfast.errors import HoldfastError

    try:
        return find(url, token_file), None
    except HoldfastError as wrong:
        # A new machine knows no orchestrator; any other error is a setting that does not work.
        state = "warn" if wrong.code == "no_endpoint" else "fail"
        return None, CheckResult(GROUP, "place", state, f"{wrong.says} [{wrong.code}]", wrong.hint)


class Screen:
    """Findings, one to a line, under the group they belong to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._group = ""

    def show(self, found: "CheckResult") -> None:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        from holdfast.cli.render.jobs import clean, console

        out = console()
        if found.group != self._group:
            self._group = found.group
            title = found.group[:1].upper() + found.group[1:]
            where = f" {self._url}" if found.group == "orchestrator" and self._url else ""
            out.print(Text(f"{title}{clean(where)}", style="bold"))
        word = found.state.upper() if found.state == "fail" else found.state
        line = Table.grid(padding=(0, 1))
        for width in (7, 22):
            line.add_column(min_width=width, no_wrap=True)
        line.add_column(overflow="fold")
        line.add_row(Text(f"  {word}", style=COLOURS[found.state]), clean(found.name), clean(found.says))
        out.print(line)
        if found.do:
            out.print(Padding(Text(f"-> {clean(found.do)}"), (0, 0, 0, 8), expand=False))

    def conclude(self, findings: "list[CheckResult]") -> None:
        from holdfast.cli.render.jobs import console
        from holdfast.quantities import counted

        count = {state: sum(found.state == state for found in findings) for state in COLOURS}
        says = f"{counted(count['fail'], 'failure')}, {counted(count['warn'], 'warning')}, {count['ok']} ok"
        console().print(says, style=COLOURS["fail" if count["fail"] else "warn" if count["warn"] else "ok"])
