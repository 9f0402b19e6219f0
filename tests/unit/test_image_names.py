"""Names of images come from strangers, and an engine's complaints decide who is to blame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import FailureCode
from holdfast.node.images.image_names import BadName, ImageName, blame, parse

DIGEST = "sha256:" + "a1" * 32


@pytest.mark.spec("J1", "J11")
@pytest.mark.parametrize(
    ("text", "name", "asked", "host"),
    [
        ("python", "python", "python:latest", ""),
        ("python:3.12-slim", "python", "python:3.12-slim", ""),
        ("team/tool:v1", "team/tool", "team/tool:v1", ""),
        ("registry.example/tool:v1", "registry.example/tool", "registry.example/tool:v1", "registry.example"),
        ("127.0.0.1:5000/tool", "127.0.0.1:5000/tool", "127.0.0.1:5000/tool:latest", "127.0.0.1:5000"),
        ("localhost/tool:v1", "localhost/tool", "localhost/tool:v1", "localhost"),
        (f"tool@{DIGEST}", "tool", f"tool@{DIGEST}", ""),
        (f"registry.example:443/tool:v1@{DIGEST}", "registry.example:443/tool", f"registry.example:443/tool@{DIGEST}",
         "registry.example:443"),
    ],
)  # fmt: skip
def test_a_name_is_taken_apart_and_asked_for_by_its_content_where_that_is_known(
    text: str, name: str, asked: str, host: str
) -> None:
    found = parse(text)
    assert (found.name, str(found), found.host) == (name, asked, host)


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    "text",
    [
        "", ":", "@", "/", "UPPER", "a b", "a//b", "../etc", "tool:", "tool:bad tag", "tool@sha256:123", "tool@md5:00",
        "tool?x=1", "tool#x", "tool\n", "tool/", "/tool", "host:port/tool", "registry.example/", "x" * 300,
        DIGEST, "a1" * 32, "holdfast-build:00", "holdfast-trial", "https://registry.example/tool", "tool&t=x",
    ],
)  # fmt: skip
def test_what_names_no_image_that_a_job_may_have_is_refused(text: str) -> None:
    with pytest.raises(BadName):
        parse(text)


@pytest.mark.spec("N5")
@given(st.text(max_size=80))
def test_whatever_is_accepted_is_one_plain_word(text: str) -> None:
    try:
        found = parse(text)
    except BadName:
        return
    assert isinstance(found, ImageName)
    assert not set(str(found)) & set(" \t\r\n?#&%\\\"'")
    assert parse(str(found)) == found or found.digest


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("says", "code"),
    [
        ('Get "http://127.0.0.1:5000/v2/": dial tcp 127.0.0.1:5000: connect: connection refused', FailureCode.NETWORK),
        ("dial tcp: lookup registry.example: no such host", FailureCode.NETWORK),
        ("net/http: TLS handshake timeout", FailureCode.NETWORK),
        ("received unexpected HTTP status: 503 Service Unavailable", FailureCode.NETWORK),
        ("toomanyrequests: You have reached your pull rate limit", FailureCode.NETWORK),
        ('Get "http://127.0.0.1/v2/": EOF', FailureCode.NETWORK),
        ("manifest for x:v1 not found: manifest unknown: manifest unknown", FailureCode.IMAGE),
        ("pull access denied for x, repository does not exist or may require 'docker login'", FailureCode.IMAGE),
        ("unauthorized: authentication required", FailureCode.IMAGE),
        ("filesystem layer verification failed for digest sha256:00", FailureCode.IMAGE),
        ("Digest did not match, expected sha256:00, got sha256:11", FailureCode.IMAGE),
        ("no matching manifest for linux/amd64 in the manifest list entries", FailureCode.IMAGE),
        ("write /var/lib/docker/tmp/x: no space left on device", FailureCode.NODE_DISK_FULL),
        ("open /var/lib/docker/x: permission denied", FailureCode.RUNTIME_FAULT),
        ("something nobody has seen yet", FailureCode.RUNTIME_FAULT),
    ],
)
def test_an_engines_words_are_blamed_on_the_right_one(says: str, code: FailureCode) -> None:
    assert blame(says) is code
