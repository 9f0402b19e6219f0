"""Adds how the last attempts on each node ended."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"

WORD = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table("node_records", sa.Column("id", WORD, primary_key=True), sa.Column("doc", sa.Text, nullable=False))
