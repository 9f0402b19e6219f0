"""Adds notes from one leader to the next."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"

WORD = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notes",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("doc", sa.Text, nullable=False),
    )
