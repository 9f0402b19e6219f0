"""A store of a release that counted by the wall clock goes on by served time, with every lifetime as it was."""

import time

import pytest
from alembic import command
from msgspec.structs import replace
from sqlalchemy import create_engine, text

from holdfast.model import DAY_MS, HOUR_MS, Instant, JoinToken, Meta, TokenId
from holdfast.model.rows import encode
from holdfast.state import Store, migrate

pytestmark = pytest.mark.spec("J14", "N5")

WALL_MS = 1_700_000_000_000


def token(id: str, made_ms: int, lasts_ms: int = DAY_MS) -> JoinToken:
    return JoinToken(TokenId(f"tok_{id}"), "0" * 64, Instant(made_ms), Instant(made_ms + lasts_ms), -1)


def upgraded(url: str, now_ms: int | None, *tokens: JoinToken) -> dict[str, JoinToken]:
    """The tokens of a store of schema 0005 whose kernel had that time, after the upgrade."""
    engine = create_engine(url)
    with engine.begin() as connection:
        chosen = migrate.config()
        chosen.attributes["connection"] = connection
        command.upgrade(chosen, "0005")
        if now_ms is not None:
            row = {"doc": encode(Meta(epoch=1, now_ms=Instant(now_ms)))}
            connection.execute(text("INSERT INTO meta (id, doc) VALUES (1, :doc)"), row)
        for one in tokens:
            row = {"id": one.id, "revoked": one.revoked, "expires": one.expires_ms, "doc": encode(one)}
            connection.execute(text("INSERT INTO tokens VALUES (:id, :revoked, :expires, :doc)"), row)
    engine.dispose()
    store = Store.open(url)
    try:
        meta = store.meta()
        assert (None if meta is None else meta.now_ms) == now_ms and store.wall_times() is None
        return {one.id: one for one in store.tokens()}
    finally:
        store.close()


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: WALL_MS * 1_000_000)


def test_where_the_clocks_agreed_no_date_changes(store_url: str) -> None:
    made = token("a", WALL_MS - HOUR_MS)
    assert upgraded(store_url, WALL_MS, made) == {made.id: made}


def test_time_in_which_nobody_led_before_the_upgrade_is_not_served_either(store_url: str) -> None:
    """The kernel's clock is a month behind: the token was valid for 23 hours more when the last leader stopped."""
    made = token("a", WALL_MS - 31 * DAY_MS)
    assert upgraded(store_url, WALL_MS - 31 * DAY_MS + HOUR_MS, made) == {made.id: made}


def test_a_store_that_was_never_led_has_nothing_to_convert(store_url: str) -> None:
    made = token("a", WALL_MS - HOUR_MS)
    assert upgraded(store_url, None, made) == {made.id: made}


def test_where_the_kernels_clock_is_ahead_a_valid_token_keeps_what_is_left_of_its_lifetime(store_url: str) -> None:
    # Given a kernel that once followed a wall clock that was 30 days ahead, and tokens that were made since
    ahead = 30 * DAY_MS
    valid, newest = token("a", WALL_MS - HOUR_MS), token("b", WALL_MS)
    over, last = token("c", WALL_MS - DAY_MS), token("d", WALL_MS - DAY_MS + 1)
    later = token("e", WALL_MS + 1)
    revoked = replace(token("f", WALL_MS - HOUR_MS), revoked=True)
    found = upgraded(store_url, WALL_MS + ahead, valid, newest, over, last, later, revoked)

    # Then those that the wall clock finds valid are moved by the difference, and no other
    for one in (valid, newest, last, revoked):
        moved = replace(one, made_ms=Instant(one.made_ms + ahead), expires_ms=Instant(one.expires_ms + ahead))
        assert found[one.id] == moved
    assert found[over.id] == over and found[later.id] == later
