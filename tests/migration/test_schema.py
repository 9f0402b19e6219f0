"""Migrating from nothing gives exactly the schema in `state/tables.py`, on both engines, in one step or none."""

import threading
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect

from holdfast.state import Store, StoreFailed, migrate
from holdfast.state.tables import metadata
from holdfast.testing.store import a_job

pytestmark = pytest.mark.spec("J14")

POSTGRES_SCHEMA = """
    SELECT 'column', table_name, column_name, data_type, is_nullable, column_default, collation_name
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL
    SELECT 'index', tablename, indexname, indexdef, '', '', '' FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', ''
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""


def schema_of(connection: Connection) -> set[Any]:
    """Everything the database itself knows of its tables, Alembic's own apart."""
    if connection.dialect.name == "postgresql":
        rows = connection.exec_driver_sql(POSTGRES_SCHEMA).all()
        return {tuple(row) for row in rows if row[1] != "alembic_version"}
    found: set[Any] = set()
    for table in set(inspect(connection).get_table_names()) - {"alembic_version"}:
        found |= {(table, *column) for column in connection.exec_driver_sql(f"PRAGMA table_xinfo({table})")}
        found |= {(table, c["sqltext"]) for c in inspect(connection).get_check_constraints(table)}
    indexes = connection.exec_driver_sql("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index'").all()
    return found | {tuple(row) for row in indexes if row.tbl_name != "alembic_version"}


def test_the_migrations_and_the_tables_are_the_same(store_url: str) -> None:
    # Given a database that was migrated, and what it says of itself
    Store.open(store_url).close()
    engine = create_engine(store_url)
    with engine.begin() as connection:
        migrated = schema_of(connection)

        # When the same database is made from the tables directly
        metadata.drop_all(connection)
        metadata.create_all(connection)

        # Then it says the same, down to collations and the conditions of partial indexes
        assert migrated == schema_of(connection)
        assert len(migrated) > 40
    engine.dispose()


def test_opening_again_changes_nothing(store_url: str) -> None:
    store = Store.open(store_url)
    epoch = store.take_lead("me")
    store.commit([a_job(1)], epoch)
    store.close()

    again = Store.open(store_url)
    try:
        assert again.jobs() == [a_job(1)]
        again.commit([a_job(2)], epoch)
    finally:
        again.close()


def test_many_may_open_a_new_database_at_once(store_url: str) -> None:
    # Given a database that nobody has used, when several orchestrators open it at the same moment
    epochs: list[int] = []
    together = threading.Barrier(4)

    def start(name: str) -> None:
        together.wait(60)
        store = Store.open(store_url)
        epochs.append(store.take_lead(name))
        store.close()

    starting = [threading.Thread(target=start, args=(f"o{i}",)) for i in range(4)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(150)

    # Then all of them can use it
    assert sorted(epochs) == [1, 2, 3, 4]


def test_a_schema_from_the_future_is_refused_and_left_alone(store_url: str) -> None:
    # Given a database that a newer program has migrated
    Store.open(store_url).close()
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    # When this program opens it, then it says so and touches nothing
    with pytest.raises(StoreFailed, match="9999") as failure:
        Store.open(store_url)
    assert "newer" in failure.value.hint
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "9999"
    engine.dispose()


def test_there_is_one_line_of_history() -> None:
    scripts = ScriptDirectory.from_config(migrate.config())
    assert len(scripts.get_heads()) == 1 and len(scripts.get_bases()) == 1
