"""Tokens as tables: those that nodes join with, and those that people call with."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.render import estimate_text
from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render.jobs import ago, clean, columns
from holdfast.quantities import spoken_ms
from holdfast.wire.http import AccessTokenView, JoinTokenView


def uses_text(uses: int) -> str:
    if uses < 0:
        return "any number of machines"
    return "one machine" if uses == 1 else f"{uses} machines"


def join_tokens(listed: Sequence[JoinTokenView], *, everyone: bool = False) -> None:
    """`everyone`: also tokens that are no longer valid."""

    def facts(token: JoinTokenView) -> list[str]:
        uses = "any number" if token.uses_left < 0 else str(token.uses_left)
        return [uses, f"{ago(token.made_ms)} ago", _left(token, _left_ms(token)), clean(token.note)]

    _table(listed, everyone, "token", ["uses left", "made", "good for", "note"], facts)


def access_tokens(listed: Sequence[AccessTokenView], *, everyone: bool = False) -> None:
    """`everyone`: also tokens that are no longer valid."""

    def facts(token: AccessTokenView) -> list[str]:
        made = f"{spoken_ms(token.age_ms)} ago"
        left = _left(token, token.left_ms)
        return [token.role, clean(token.owner), made, left, clean(token.made_by), clean(token.note)]

    _table(listed, everyone, "access", ["role", "owner", "made", "good for", "made by", "note"], facts)


def _table(
    listed: Sequence[Any], everyone: bool, command: str, heads: list[str], facts: Callable[[Any], list[str]]
) -> None:
    out = render_jobs.console()
    shown = [token for token in listed if everyone or token.state == "good"]
    if shown:
        rows = columns("id", "state", *heads)
        for token in shown:
            rows.add_row(token.id, Text(token.state, style="green" if token.state == "good" else "dim"), *facts(token))
        out.print(rows)
    else:
        out.print(f"No valid tokens. Make one with: holdfast {command} new")
    ended = len(listed) - len(shown)
    if ended:
        out.print(f"{ended} more that {'is' if ended == 1 else 'are'} no longer valid (--all)", style="dim")


def _left(token: JoinTokenView | AccessTokenView, left_ms: int) -> str:
    return spoken_ms(left_ms) if token.state == "good" else ""


def _left_ms(token: JoinTokenView) -> int:
    """What is left of its lifetime, counted by the orchestrator; by this machine's clock if it is of an old release."""
    return max(0, token.expires_ms - estimate_text.now_ms()) if token.left_ms is None else token.left_ms
