"""The store keeps its contract on SQLite and on PostgreSQL alike: the public conformance suite, on both."""

import pytest

from holdfast.testing.store import StoreConformance


class TestSqlite(StoreConformance):
    @pytest.fixture
    def store_url(self, sqlite_url: str) -> str:
        return sqlite_url


class TestPostgres(StoreConformance):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url
