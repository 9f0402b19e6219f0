"""Inputs in S3: which objects may be read, what is signed for them, and how an address is fetched that was signed."""

import asyncio
import http.server
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.blobs.s3 import S3Place
from holdfast.errors import Misconfigured
from holdfast.model import FailureCode
from holdfast.node.attempt import web_inputs
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.content.s3_inputs import LINK_S, S3Inputs, check_apart, parsed

pytestmark = pytest.mark.spec("N13", "J1")


def place(bucket: str, prefix: str = "") -> S3Place:
    return S3Place(
        bucket=bucket, prefix=prefix, endpoint="http://127.0.0.1:9", access_key_id="who", secret_access_key="hush"
    )


INPUTS = S3Inputs([place("open"), place("shared", "data/2024")])


@pytest.mark.parametrize("url", ["s3://open/x", "s3://open/a/b/c", "s3://shared/data/2024/x"])
def test_what_the_operator_named_may_be_read(url: str) -> None:
    assert INPUTS.check(parsed(url)).bucket == url.split("/")[2]


@pytest.mark.parametrize(
    "url", ["s3://other/x", "s3://shared/x", "s3://shared/data/2024x", "s3://shared/data/20245/x", "s3://openx/x"]
)
def test_nothing_else_may_be_read_and_the_person_is_told_what_to_do(url: str) -> None:
    with pytest.raises(ApiError, match="does not read from") as refused:
        asyncio.run(INPUTS.address(url))
    assert refused.value.code == "bucket_not_allowed" and "--s3-inputs" in refused.value.hint


@pytest.mark.parametrize(
    "url", ["s3://open", "s3://open/", "s3:///x", "s3://open/a//b", "s3://open/../x", "s3://open/x/", "x"]
)
def test_only_a_single_object_has_an_address(url: str) -> None:
    with pytest.raises(ApiError):
        parsed(url)


def test_an_address_opens_one_object_for_a_few_minutes_and_holds_no_key() -> None:
    url = asyncio.run(INPUTS.address("s3://shared/data/2024/a=b.csv"))
    query = parse_qs(urlsplit(url).query)
    assert urlsplit(url).path.startswith("/shared/data/2024/")
    assert int(query["X-Amz-Expires"][0]) == LINK_S <= 600
    assert "hush" not in url
    assert "hush" not in repr(place("open"))


@pytest.mark.parametrize(("own", "theirs"), [("", ""), ("a", ""), ("", "a"), ("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_the_networks_own_files_are_never_among_them(own: str, theirs: str) -> None:
    with pytest.raises(Misconfigured, match="files of all users"):
        check_apart([place("mine", theirs)], place("mine", own))


def test_what_lies_beside_them_may_be() -> None:
    check_apart([place("mine", "ab"), place("other")], place("mine", "a"))
    check_apart([place("mine")], None)


# --- fetching ---


class Store(http.server.BaseHTTPRequestHandler):
    """Answers by the path: a status, or a way on."""

    def do_GET(self) -> None:
        word = self.path.partition("?")[0].strip("/")
        if word == "onward":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/200")
            self.end_headers()
            return
        body = b"content"
        self.send_response(int(word))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def store() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_inputs, "AGAIN_S", 0.01)


class Signer:
    """Gives a new address at every asking."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        return f"{self.urls[min(self.asked, len(self.urls)) - 1]}?X-Amz-Signature=hush{self.asked}"


def fetched(signer: Signer, into: Path, bytes_max: int = 100) -> str:
    limits = {"bytes_max": bytes_max, "seconds_max": 20.0}
    return asyncio.run(web_inputs.fetch("s3://open/x", into / "x", signed=signer, **limits))


def test_a_signed_address_may_lead_to_the_operators_own_network_and_one_from_a_stranger_may_not(
    store: str, tmp_path: Path
) -> None:
    fetched(Signer(f"{store}/200"), tmp_path)
    assert (tmp_path / "x").read_bytes() == b"content"
    with pytest.raises(web_inputs.Unfetched, match="own network"):
        asyncio.run(web_inputs.fetch(f"{store}/200", tmp_path / "y", bytes_max=100, seconds_max=20))


def test_where_a_signed_address_sends_us_on_to_is_a_strangers_again(store: str, tmp_path: Path) -> None:
    with pytest.raises(web_inputs.Unfetched, match="own network"):
        fetched(Signer(f"{store}/onward"), tmp_path)


def test_every_try_has_an_address_of_its_own(store: str, tmp_path: Path) -> None:
    signer = Signer(f"{store}/503", f"{store}/403", f"{store}/200")
    fetched(signer, tmp_path)
    assert signer.asked == 3


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("status", "code"), [(404, FailureCode.DATA), (403, FailureCode.NETWORK), (500, FailureCode.NETWORK)]
)
def test_a_failure_names_what_the_person_gave_and_never_the_signed_address(
    store: str, tmp_path: Path, status: int, code: FailureCode
) -> None:
    with pytest.raises(web_inputs.Unfetched, match="s3://open/x answered with status") as wrong:
        fetched(Signer(f"{store}/{status}"), tmp_path)
    assert wrong.value.failure.code is code
    assert "hush" not in wrong.value.failure.detail


def test_an_object_larger_than_there_is_room_for_is_refused(store: str, tmp_path: Path) -> None:
    with pytest.raises(web_inputs.Unfetched, match="larger than 3 bytes"):
        fetched(Signer(f"{store}/200"), tmp_path, bytes_max=3)


def test_a_node_does_not_log_the_addresses_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.node import run

    monkeypatch.setattr(run, "_run", lambda config: None)
    for name in ("httpx", "httpcore"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    run.run_node(None)  # type: ignore[arg-type]
    assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in ("httpx", "httpcore"))
