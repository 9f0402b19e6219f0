"""What people see of served time: dates of the wall clock, and lifetimes that no clock shortens."""

import asyncio
from pathlib import Path

import pytest

from holdfast.blobs import owned_key, owner_hash, sha_of
from holdfast.blobs.errors import LinkExpired
from holdfast.model import DAY_MS
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.content.blob_http import PREFIX, BlobTransferApp
from holdfast.orchestrator.content.blob_store import open_content
from holdfast.testing import Network
from holdfast.testing.network_context import VirtualTime

MONTH_MS = 31 * DAY_MS
KEY = owned_key(owner_hash("ann"), sha_of(b"x"))


def set_wall(network: Network, by_ms: int) -> None:
    """Set the wall clock of the orchestrator's machine, and let it notice."""
    leader = network._leader  # pyright: ignore[reportPrivateUsage]
    assert leader is not None
    leader._wall.jump(by_ms)  # pyright: ignore[reportPrivateUsage]
    network.advance(seconds=30)


@pytest.mark.spec("H2", "N5")
@pytest.mark.parametrize("by_ms", [MONTH_MS, -MONTH_MS, 3650 * DAY_MS])
def test_a_token_lives_in_served_time_and_is_shown_by_the_wall_clock(
    by_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Network(nodes=1) as network:
        client = network.client()
        network.advance(seconds=5)
        before = client.tokens.create(ttl_ms=DAY_MS, note="before")
        set_wall(network, by_ms)
        monkeypatch.setattr(VirtualTime, "wall_ms", lambda self: network.wall_ms + by_ms)  # pyright: ignore
        after = client.tokens.create(ttl_ms=DAY_MS, note="after")

        # A token that is made now is valid, and its date is the wall clock's
        assert after.left_ms is not None and DAY_MS - 60_000 <= after.left_ms <= DAY_MS
        assert abs(after.expires_ms - DAY_MS - (network.wall_ms + by_ms)) < 300_000
        # The one that was made before lives on, and its date follows
        shown = {token.note: token for token in client.tokens.list()}
        assert {token.state for token in shown.values()} == {"good"}
        assert abs(shown["before"].expires_ms - DAY_MS - (network.wall_ms + by_ms)) < 300_000
        assert abs(shown["before"].made_ms - (network.wall_ms)) < 300_000
        assert before.left_ms is not None and before.left_ms <= DAY_MS
        # And they end when they were served for as long as was asked
        network.advance(hours=23)
        assert {token.state for token in client.tokens.list()} == {"good"}
        network.advance(hours=2)
        ended = {token.note: token for token in client.tokens.list()}
        assert {(token.state, token.left_ms) for token in ended.values()} == {("expired", 0)}


@pytest.mark.spec("H2", "H4")
def test_every_date_of_a_job_is_that_of_its_day() -> None:
    with Network(nodes=1) as network:
        client = network.client()
        network.when("work", takes="2m")
        job = client.jobs.submit(["work"])
        network.advance(seconds=10)
        set_wall(network, MONTH_MS)
        ended = client.jobs.wait(job.id)
        begun, now = network.wall_ms, network.wall_ms + MONTH_MS
        assert ended.verdict == "succeeded" and ended.attempts_made == 1
        assert ended.ended_ms is not None
        assert abs(ended.submitted_ms - begun) < 300_000 and abs(ended.ended_ms - now) < 300_000
        (attempt,) = ended.attempts
        assert attempt.started_ms is not None and attempt.ended_ms is not None
        assert abs(attempt.offered_ms - begun) < 300_000 and abs(attempt.started_ms - begun) < 300_000
        assert abs(attempt.ended_ms - now) < 300_000
        (jump,) = [event.seq for event in client.events() if event.kind == "orchestrator.clock"]
        for event in client.events():
            assert abs(event.at_ms - (begun if event.seq < jump else now)) < 300_000
        (node,) = client.nodes.list()
        assert abs(node.joined_ms - begun) < 300_000


@pytest.mark.spec("J1", "H2")
def test_a_signed_url_lives_in_served_time(tmp_path: Path) -> None:
    served_s = [1_000.0]
    content, door = open_content(OrchestratorConfig(data=tmp_path), lambda: served_s[0])
    app = door(lambda scope, receive, send: None)  # pyright: ignore
    assert isinstance(app, BlobTransferApp)
    url = asyncio.run(content.store.sign("GET", KEY, size=1, expires_s=60))
    query = dict(pair.split("=", 1) for pair in url.partition("?")[2].split("&"))
    signer = app._signer  # pyright: ignore[reportPrivateUsage]
    assert url.startswith(PREFIX) and query["expires"] == "1060"
    served_s[0] = 1_059.9
    assert signer.check("GET", KEY, query, signer.now_s()).key == KEY
    served_s[0] = 1_060.0
    with pytest.raises(LinkExpired):
        signer.check("GET", KEY, query, signer.now_s())
