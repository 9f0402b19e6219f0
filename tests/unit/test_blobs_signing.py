"""A signed address opens one key, for one method and size, until its time is over. Nothing else does."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.blobs import (
    Grant,
    LinkSigner,
    client_uploader,
    incoming_key,
    owned_key,
    owner_hash,
    parse_key,
    shown_link,
)
from holdfast.blobs.errors import LinkExpired, LinkRefused
from holdfast.blobs.keys import Incoming, Owned

pytestmark = pytest.mark.spec("N13")

SHA = "ab" * 32
KEY = incoming_key("att_0123.1", SHA)
SIGNER = LinkSigner(b"s" * 32, "http://127.0.0.1:8080/blobs/")


def read(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    return parts.path.removeprefix("/blobs/"), dict(parse_qsl(parts.query))


def test_an_address_opens_what_it_was_made_for() -> None:
    key, query = read(SIGNER.make("PUT", KEY, 1234, 1_000))
    assert SIGNER.check("PUT", key, query, 999.9) == Grant("PUT", KEY, 1234, 1_000)


@pytest.mark.parametrize("now", [1_000, 1_000.5, 10**12])
def test_an_expired_address_opens_nothing(now: float) -> None:
    key, query = read(SIGNER.make("GET", KEY, 1, 1_000))
    with pytest.raises(LinkExpired) as caught:
        SIGNER.check("GET", key, query, now)
    assert caught.value.code == "link_expired"


@pytest.mark.parametrize(
    "change",
    [
        {"size": "1235"}, {"size": "-1"}, {"size": ""}, {"size": "1e3"}, {"size": "١"},
        {"expires": "2000"}, {"expires": "9" * 30}, {"expires": "nan"},
        {"signature": ""}, {"signature": "0" * 64}, {"signature": "é"}, {"signature": "\ud800"},
    ],
)  # fmt: skip
def test_whoever_changes_an_address_has_none(change: dict[str, str]) -> None:
    key, query = read(SIGNER.make("PUT", KEY, 1234, 1_000))
    with pytest.raises(LinkRefused) as caught:
        SIGNER.check("PUT", key, {**query, **change}, 0)
    assert caught.value.code == "link_refused"


def test_method_and_key_are_part_of_it() -> None:
    key, query = read(SIGNER.make("PUT", KEY, 1234, 1_000))
    other = incoming_key("att_0123.2", SHA)
    for method, asked in (("GET", key), ("DELETE", key), ("PUT", other), ("PUT", key + "/x"), ("PUT", "../" + key)):
        with pytest.raises(LinkRefused):
            SIGNER.check(method, asked, query, 0)
    with pytest.raises(LinkRefused):
        LinkSigner(b"t" * 32, "http://127.0.0.1").check("PUT", key, query, 0)


def test_even_a_right_signature_opens_only_keys_and_known_methods() -> None:
    for method, key in (("DELETE", KEY), ("GET", "etc/passwd"), ("GET", "owned/../../secret")):
        _, query = read(SIGNER.make(method, key, 1, 1_000))
        with pytest.raises(LinkRefused):
            SIGNER.check(method, key, query, 0)


@given(st.dictionaries(st.sampled_from(["size", "expires", "signature"]), st.text(max_size=70)))
def test_noise_opens_nothing(query: dict[str, str]) -> None:
    with pytest.raises(LinkRefused):
        SIGNER.check("GET", KEY, query, 0)


def test_a_short_secret_is_none() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        LinkSigner(b"short", "http://127.0.0.1")


def test_an_address_is_shown_without_its_signature() -> None:
    url = SIGNER.make("PUT", KEY, 1234, 1_000)
    assert shown_link(url) == f"http://127.0.0.1:8080/blobs/{KEY}"
    who = "user:password"
    assert shown_link(f"https://{who}@host.example/x?X-Amz-Signature=1#y") == "https://host.example/x"


def test_keys_are_read_as_they_are_made() -> None:
    owner = owner_hash("somebody/else @ example")
    assert parse_key(KEY) == Incoming("att_0123.1", SHA)
    assert parse_key(owned_key(owner, SHA)) == Owned(owner, SHA)
    assert parse_key(incoming_key(client_uploader("me"), SHA)) == Incoming(client_uploader("me"), SHA)
    assert owner_hash("a") != owner_hash("b")


@pytest.mark.parametrize(
    "key",
    [
        "", "incoming", f"incoming/{SHA}", f"incoming/../{SHA}", f"incoming/./{SHA}", f"incoming/a/b/{SHA}",
        f"incoming//{SHA}",
        f"incoming/a/{SHA.upper()}", f"incoming/a/{SHA}\n", f"incoming/a\0/{SHA}", f"/incoming/a/{SHA}",
        f"owned/x/ab/{SHA}",
        f"owned/{'0' * 32}/cd/{SHA}", f"owned/{'0' * 32}/{SHA}", f"incoming/{'a' * 101}/{SHA}", f"incoming/.a/{SHA}",
    ],
)  # fmt: skip
def test_nothing_else_is_a_key(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize("uploader", ["", "..", "a/b", "a b", "é", "a" * 101, ".hidden"])
def test_nothing_else_makes_a_key(uploader: str) -> None:
    with pytest.raises(LinkRefused):
        incoming_key(uploader, SHA)
    with pytest.raises(LinkRefused):
        owned_key(uploader, SHA)
    with pytest.raises(LinkRefused):
        incoming_key("a", SHA[:-1])
