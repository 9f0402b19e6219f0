"""The first schema: jobs, attempts, nodes, tokens, journal, counters, and who leads."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

WORD = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    leader = op.create_table(
        "leader",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="leader_is_one"),
    )
    op.bulk_insert(leader, [{"id": 1, "epoch": 0, "holder": ""}])
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("doc", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="meta_is_one"),
    )
    _jobs_and_attempts()
    _nodes_and_tokens()
    _journal()


def _jobs_and_attempts() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("phase", WORD, nullable=False),
        sa.Column("submitted_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("doc", sa.Text, nullable=False),
    )
    op.create_index("jobs_newest", "jobs", ["submitted_ms", "id"])
    op.create_index("jobs_of_owner", "jobs", ["owner", "submitted_ms", "id"])
    _partial("jobs_named", "jobs", ["owner", "name", "submitted_ms", "id"], "name <> ''")
    _partial("jobs_live", "jobs", ["submitted_ms", "id"], "phase <> 'ended'")
    _partial("jobs_live_of_owner", "jobs", ["owner", "submitted_ms", "id"], "phase <> 'ended'")
    op.create_table(
        "attempts",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("job", WORD, nullable=False),
        sa.Column("node", WORD, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("phase", WORD, nullable=False),
        sa.Column("offered_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("doc", sa.Text, nullable=False),
    )
    op.create_index("attempts_of_job", "attempts", ["job", "fence"])
    _partial("attempts_live", "attempts", ["id"], "phase <> 'ended'")


def _nodes_and_tokens() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("name", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("joined_ms", sa.BigInteger, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("doc", sa.Text, nullable=False),
    )


def _journal() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "entries",
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("job", WORD),
        sa.Column("attempt", WORD),
        sa.Column("node", WORD),
        sa.Column("doc", sa.Text, nullable=False),
    )
    _partial("entries_of_job", "entries", ["job", "seq"], "job IS NOT NULL")
    _partial("entries_of_node", "entries", ["node", "seq"], "node IS NOT NULL")


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
