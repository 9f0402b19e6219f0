"""Adds how long the files of ended jobs are kept, and which jobs are items of an array."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

WORD = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "keeps",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
    )
    op.create_index("keeps_until", "keeps", ["until_ms"])
    op.add_column("jobs", sa.Column("array_id", WORD))
    item = sa.text("array_id IS NOT NULL")
    op.create_index("jobs_of_array", "jobs", ["array_id", "submitted_ms"], sqlite_where=item, postgresql_where=item)
