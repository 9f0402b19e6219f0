"""Access tokens as a table."""

from collections.abc import Sequence

from rich.text import Text

from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render.jobs import clean, columns
from holdfast.quantities import spoken_ms
from holdfast.wire.http import AccessTokenView


def access_tokens(listed: Sequence[AccessTokenView], *, everyone: bool = False) -> None:
    """`everyone`: also tokens that are no longer valid."""
    out = render_jobs.console()
    shown = [token for token in listed if everyone or token.state == "good"]
    if shown:
        rows = columns("id", "state", "role", "owner", "made", "good for", "made by", "note")
        for token in shown:
            good = token.state == "good"
            rows.add_row(
                token.id,
                Text(token.state, style="green" if good else "dim"),
                token.role,
                clean(token.owner),
                f"{spoken_ms(token.age_ms)} ago",
                spoken_ms(token.left_ms) if good else "",
                clean(token.made_by),
                clean(token.note),
            )
        out.print(rows)
    else:
        out.print("No valid access tokens. Make one with: holdfast access new")
    ended = len(listed) - len(shown)
    if ended:
        out.print(f"{ended} more expired or revoked (--all)", style="dim")
