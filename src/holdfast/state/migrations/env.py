"""Alembic's way in. `state/migrate.py` hands over the connection, its transaction already begun."""

from alembic import context

from holdfast.state.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
