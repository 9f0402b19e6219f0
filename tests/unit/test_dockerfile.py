"""What a Dockerfile has an engine fetch, and what no build may fetch."""

import pytest

from holdfast.node.images.dockerfile import BadDockerfile, check_name, images
from holdfast.node.images.image_names import BadName, parse

GIT_HOST = "github" + ".com"
"""Some engines clone from there without being told by which protocol."""

pytestmark = pytest.mark.spec("N5", "N13", "J1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM scratch\nCOPY a /a\nADD a.tar.gz /\n", []),
        ("FROM busybox:1 AS one\nFROM one\nCOPY --from=one /a /a\nCOPY --from=0 /a /a\n", ["busybox:1"]),
        ("ARG TAG=3\nARG BASE=alpine:${TAG}\nFROM --platform=linux/amd64 ${BASE}\n", ["alpine:3"]),
        ("ARG BASE\nFROM $BASE\n", ["given:1"]),
        ("ARG X\nFROM ${X:-debian}\n", ["debian"]),
        ("from a\ncopy --chown=1 --from=b:1 /x /y\nrun --mount=type=tmpfs,target=/c true\n", ["a", "b:1"]),
        ("FROM a\nRUN make && \\\n    # why\n    make install\n", ["a"]),
        ("FROM a\nCOPY \\\n# why\n  x /y\r\n", ["a"]),
        ("# syntax=docker/dockerfile:1.4\nFROM a\n", ["a"]),
        ("# escape=\\\nFROM a\n", ["a"]),
        ("FROM a\nRUN echo $((1 << 2)); grep x <<<y\n", ["a"]),
        ("ARG A='x' B=\"y\"\nFROM $A\nFROM ${B:+z}\nFROM ${C:+z}a\n", ["x", "z", "a"]),
        ("FROM \\\n# a comment\n  127.0.0.1:5000/x\n", ["127.0.0.1:5000/x"]),
        ("FROM far/x\nONBUILD COPY --from=y:1 / /\n", ["far/x", "y:1"]),
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


@pytest.mark.parametrize(
    "text",
    [
        # engines differ on where a line, a comment or an instruction ends
        "FROM a\nADD \x0c#x http://10.0.0.1/x /x",
        "FROM a\nADD \u2028#x http://10.0.0.1/x /x",
        "FROM a\nADD \xa0x /x",
        "FROM a\nRUN x\rADD y /y",
        "FROM a\nADD \\\n  # http://10.0.0.1/x /x",
        "FROM \\\n\t# b\n  a",
        "FROM a\nRUN echo \\\n\nADD x /y",
        "FROM a\nRUN echo \\\\\nADD x /y",
        "# escape=`\nFROM a",
        " # hello\n #  Escape = `\nFROM a",
        # other languages, and text inside of the file
        "# syntax=10.0.0.1/frontend\nFROM a",
        "#syntax = docker/dockerfile-upstream:master\nFROM a",
        "FROM a\nRUN <<EOF\nmake\nEOF",
        "FROM a\nCOPY 3<<-'x' /y",
        # addresses in disguise
        'FROM a\nADD ["http:\\u002f\\u002f10.0.0.1/x", "/x"]',
        f"FROM a\nADD {GIT_HOST}/x/y /x",
        "FROM a\nADD me@10.0.0.1:x /x",
        # mounts and options that reach beyond the build
        "FROM a\nRUN --mount=type=cache,target=/x true",
        "FROM a\nRUN --mount=type=secret,id=x true",
        "FROM a\nRUN --mount=type=ssh true",
        "FROM a\nRUN --mount=type=bind,source=x,target=/x true",
        "FROM a\nRUN --mount=from=a,target=/x true",
        "FROM a\nRUN --mount=target=/x true",
        "FROM a\nRUN --mount=type=tmpfs,from=b,target=/x true",
        "FROM a\nRUN --mount=type=tmpfs,type=cache,target=/x true",
        'FROM a\nRUN --mo"unt"=type=cache,target=/x true',
        "FROM a\nRUN --network=host true",
        "FROM a\nRUN --security=insecure true",
        "FROM a\nONBUILD RUN --mount=type=cache,target=/x true",
        "FROM a\nCOPY --keep=x /a /b",
        "FROM a\nADD --keep-git-dir x /b",
        "FROM --network=host a",
        # names that another reader would read in another way
        'ARG B=evil\nARG A="x B=good"\nFROM $B',
        "ARG A=x\\\ny\nARG B=a\\ b\nFROM $A",
        "ARG A='$B'\nFROM a",
        "ARG TARGETARCH=x\nFROM a-$TARGETARCH",
        "FROM a AS 10.0.0.1:5000/x\nCOPY --from=10.0.0.1:5000/x / /",
        "FROM a b",
        "FROM a b c",
        "FROM a AS",
        "FROM",
    ],
)
def test_what_an_engine_may_read_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(BadDockerfile):
        images(f"{text}\n", {})


@pytest.mark.parametrize("reference", ['COPY --from="b" / /', "COPY --from=b\\c / /", 'FROM "b"/x', "FROM b\\x"])
def test_a_name_in_quotes_is_not_taken_for_another_one(reference: str) -> None:
    """It is no name of an image, so that it is refused later."""
    (found,) = images(f"FROM scratch\n{reference}\n", {})
    with pytest.raises(BadName):
        parse(found)


@pytest.mark.parametrize("path", ["Dockerfile", "docker/app.Dockerfile", "a_b-c", "x.in/Dockerfile", "inn"])
def test_a_plain_path_names_a_dockerfile(path: str) -> None:
    check_name(path)


@pytest.mark.parametrize("path", ['["/etc/passwd"]', "Dockerfile.in", "a b", "a\nb", "", "http:x", "[x]"])
def test_a_path_that_podman_reads_as_more_than_a_name_is_refused(path: str) -> None:
    with pytest.raises(BadDockerfile):
        check_name(path)
