"""Alembic's entry point. `state/migrate.py` passes the connection, with its transaction already begun."""

from alembic import context

from holdfast.state.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
