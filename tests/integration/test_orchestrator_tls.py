"""TLS on both doors: pinned by the join token, trusted by the endpoint file, and bound into the node's proof."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from orchestrators import OrchestratorProcess
from wire_node import Line, WireNode

from holdfast.client import Client
from holdfast.errors import Untrusted
from holdfast.identity.certificates import fetch_pinned
from holdfast.identity.tokens import parse
from holdfast.model.messages import Refusal
from holdfast.wire.convert import Admitted


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path_factory.mktemp("tls"), tls=True) as running:
        yield running.start()


@pytest.fixture(scope="module")
def endpoint(orchestrator: OrchestratorProcess) -> dict[str, str]:
    return msgspec.json.decode((orchestrator.config.data / "endpoint.json").read_bytes())


@pytest.fixture(scope="module")
def client(orchestrator: OrchestratorProcess, endpoint: dict[str, str]) -> Iterator[Client]:
    with Client(endpoint["url"], orchestrator.admin_token(), certificate=endpoint["certificate"]) as client:
        yield client


def joined(orchestrator: OrchestratorProcess, node: WireNode, pin: str) -> Admitted | Refusal:
    """Dial over TLS, trusting only the certificate that the token pins; prove the key for a channel with `pin`."""
    assert node.ticket is not None
    host, _, port = orchestrator.listen.rpartition(":")
    line = Line(orchestrator.listen, pem=fetch_pinned(host, int(port), node.ticket.pin))
    try:
        return node.introduce(line, pin)
    finally:
        line.close()


@pytest.mark.spec("N1", "N6")
def test_a_token_pins_the_certificate_and_the_proof_is_bound_to_it(
    orchestrator: OrchestratorProcess, client: Client, endpoint: dict[str, str]
) -> None:
    # Given a token made over HTTPS
    token = client.tokens.create().token
    pin = parse(token).pin
    assert pin == endpoint["pin"] != ""
    # When a node follows it, then it is welcome
    assert isinstance(joined(orchestrator, WireNode(orchestrator.listen, token), pin), Admitted)
    # And a proof made for another channel, as someone in between would pass it on, is worth nothing
    for other in ("", "ab" * 32):
        refusal = joined(orchestrator, WireNode(orchestrator.listen, token), other)
        assert isinstance(refusal, Refusal) and refusal.code == "bad_signature"


@pytest.mark.spec("N1")
def test_both_doors_show_the_same_certificate_and_speak_nothing_else(
    orchestrator: OrchestratorProcess, endpoint: dict[str, str], tmp_path: Path
) -> None:
    assert endpoint["url"].startswith("https://")
    for address in (orchestrator.config.http, orchestrator.config.nodes):
        host, _, port = address.rpartition(":")
        assert fetch_pinned(host, int(port), endpoint["pin"]).decode().strip() == endpoint["certificate"].strip()
        with pytest.raises(Untrusted):
            fetch_pinned(host, int(port), "00" * 32)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{orchestrator.config.http}/healthz", trust_env=False)


@pytest.mark.spec("N1")
def test_nothing_secret_stands_in_the_endpoint_file_or_the_log(
    orchestrator: OrchestratorProcess, client: Client
) -> None:
    token = client.tokens.create()
    public = (orchestrator.config.data / "endpoint.json").read_text() + orchestrator.tail(10_000)
    assert orchestrator.admin_token() not in public and token.token not in public and "PRIVATE" not in public
    for name in ("admin.token", "certificate.key"):
        assert (orchestrator.config.data / name).stat().st_mode & 0o077 == 0
