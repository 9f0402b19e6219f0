"""The store keeps its contract on SQLite and on PostgreSQL alike: the public conformance suite, on both."""

import pytest

from holdfast.state import engines
from holdfast.testing.store import StoreConformance
from holdfast.testing.store_deletion import DeletionConformance


class TestSqlite(StoreConformance, DeletionConformance):
    @pytest.fixture
    def store_url(self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        # Several write at once here, which no orchestrator meets; on a slow disk the last of them waits for long.
        monkeypatch.setattr(engines, "BUSY_MS", 60_000)
        return sqlite_url


class TestPostgres(StoreConformance, DeletionConformance):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url
