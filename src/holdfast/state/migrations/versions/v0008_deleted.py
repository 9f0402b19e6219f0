"""Adds what stays of jobs, nodes and tokens that were deleted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

WORD = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    for table in ("deleted_jobs", "deleted_nodes", "deleted_tokens"):
        op.create_table(
            table,
            sa.Column("id", WORD, primary_key=True),
            sa.Column("doc", sa.Text, nullable=False),
        )
