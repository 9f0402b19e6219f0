"""Migrates a database to the schema of this release. Runs Alembic from code, without a configuration file.

The whole migration is one transaction on both engines, so a crash in the middle leaves the old schema. Two
orchestrators that start at the same time migrate one after the other.
"""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from holdfast.state.errors import StoreFailed

_ADVISORY_LOCK = 0x686F6C64
"""Key of the advisory lock that a migration holds on PostgreSQL. The number has no other meaning."""

_one_at_a_time = threading.Lock()
"""Alembic keeps the current migration in module globals."""


def config() -> Config:
    chosen = Config()
    chosen.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    chosen.set_main_option("path_separator", "os")
    return chosen


def to_head(writer: Engine, where: str) -> None:
    chosen = config()
    scripts = ScriptDirectory.from_config(chosen)
    known = {script.revision for script in scripts.walk_revisions()}
    with _one_at_a_time, writer.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        present = MigrationContext.configure(connection).get_current_revision()
        if present == scripts.get_current_head():
            return
        if present is not None and present not in known:
            raise StoreFailed(
                f"the store {where} has schema {present}, which this version of Holdfast does not know",
                hint="A newer version wrote it. Start that one, or restore a backup from before the upgrade.",
            )
        chosen.attributes["connection"] = connection
        command.upgrade(chosen, "head")


def need_head(reader: Engine, where: str) -> None:
    """Raises StoreFailed unless the database has the schema of this release."""
    with reader.connect() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
    known = ScriptDirectory.from_config(config()).get_current_head()
    if present != known:
        raise StoreFailed(
            f"the store {where} has schema {present}, and this version of Holdfast works with {known}",
            hint="Use the version that the orchestrator runs.",
        )
