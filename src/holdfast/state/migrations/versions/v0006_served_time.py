"""Adds the dates of served time, and converts the lifetimes of join tokens to it (docs/decisions/0028).

Every other stored moment was measured on the kernel's clock, which goes on as served time. Join tokens were dated by
the wall clock. Where the kernel's clock is ahead of it, because it once followed a wall clock that was wrong, a token
that is valid by the wall clock keeps exactly the lifetime that it has left.
"""

import json
import time

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "wall_times",
        sa.Column(
            "id",
            sa.Integer,
            sa.CheckConstraint("id = 1", name="wall_times_is_one"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("doc", sa.Text, nullable=False),
    )
    connection = op.get_bind()
    meta = connection.execute(sa.text("SELECT doc FROM meta")).scalar_one_or_none()
    wall_ms = time.time_ns() // 1_000_000
    ahead_ms = 0 if meta is None else json.loads(meta).get("now_ms", 0) - wall_ms
    if ahead_ms <= 0:
        return
    for id, doc in connection.execute(sa.text("SELECT id, doc FROM tokens")).all():
        token = json.loads(doc)
        if token["made_ms"] <= wall_ms < token["expires_ms"]:
            token["made_ms"] += ahead_ms
            token["expires_ms"] += ahead_ms
            connection.execute(
                sa.text("UPDATE tokens SET doc = :doc, expires_ms = :expires WHERE id = :id"),
                {"doc": json.dumps(token), "expires": token["expires_ms"], "id": id},
            )
