"""What a Dockerfile has an engine fetch, and what no build may fetch."""

import pytest

from holdfast.node.images.dockerfile import BadDockerfile, images

pytestmark = pytest.mark.spec("N5", "N13", "J1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM scratch\nCOPY a /a\nADD a.tar.gz /\n", []),
        ("FROM busybox:1 AS one\nFROM one\nCOPY --from=one /a /a\nCOPY --from=0 /a /a\n", ["busybox:1"]),
        ("ARG TAG=3\nARG BASE=alpine:${TAG}\nFROM --platform=linux/amd64 ${BASE}\n", ["alpine:3"]),
        ("ARG BASE\nFROM $BASE\n", ["given:1"]),
        ("ARG X\nFROM ${X:-debian}\n", ["debian"]),
        (
            "from a\ncopy --chown=1 --from=b:1 /x /y\nrun --mount=from=c:2,target=/c true\n",
            ["a", "b:1", "c:2"],
        ),
        ("FROM \\\n# a comment\n  127.0.0.1:5000/x\n", ["127.0.0.1:5000/x"]),
        ("# escape=`\nFROM `\n  far/x\n", ["far/x"]),
        ('FROM "far"/x\nONBUILD COPY --from=y:1 / /\n', ["far/x", "y:1"]),
        ("FROM a\nRUN echo $X\nENV B=$X\n", ["a"]),
        ("FROM a\nADD x /y", ["a"]),
    ],
)
def test_every_image_is_found_with_its_variables_replaced(text: str, found: list[str]) -> None:
    assert images(text, {"BASE": "given:1"} if "ARG BASE\n" in text else {}) == found


@pytest.mark.parametrize(
    "line",
    [
        "ADD http://127.0.0.1:8080/x /x",
        "add --chown=1:1 HTTPS://example.com/x /x",
        'ADD ["http://10.0.0.1/x", "/x"]',
        'ADD ht"tp:"//10.0.0.1/x /x',
        "ADD htt\\p://10.0.0.1/x /x",
        "ADD \\\n  http://10.0.0.1/x /x",
        "ADD git@10.0.0.1:x.git /x",
        "ADD git://10.0.0.1/x.git /x",
        "ONBUILD ADD http://10.0.0.1/x /x",
        "ENV A=http:\nADD ${A}//10.0.0.1/x /x",
        "ADD $FROM_THE_IMAGE /x",
        "COPY --from=$FROM_THE_IMAGE / /",
        "RUN --mount=type=bind,from=$FROM_THE_IMAGE,target=/x true",
        "FROM $FROM_THE_IMAGE",
        "FROM ${A:-${B}}",
    ],
)
def test_an_address_or_what_may_become_one_is_refused(line: str) -> None:
    with pytest.raises(BadDockerfile):
        images(f"FROM scratch\n{line}\n", {})
