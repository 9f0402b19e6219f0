"""Which files `.dockerignore` keeps from an image."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.images.dockerignore import LINES_MAX, leaves_out, rules

CASES = [
    # pattern lines, path, whether it is left out
    ("data", "data", True),
    ("data", "data/a/b", True),
    ("data", "src/data", False),
    ("/data/", "data/a", True),
    ("**/data", "src/deep/data/x", True),
    ("**/data", "data", True),
    ("**", "any/thing", True),
    ("src/**", "src/a", True),
    ("src/**", "src", False),
    ("src/**/*.o", "src/a.o", True),
    ("src/**/*.o", "src/a/b/c.o", True),
    ("src/**/*.o", "src/a/b/c.c", False),
    ("*.md", "README.md", True),
    ("*.md", "docs/README.md", False),
    ("*/temp*", "a/temporary.txt", True),
    ("*/*/temp*", "a/b/temp/c", True),
    ("temp?", "tempa", True),
    ("temp?", "temp", False),
    ("[a-c]x", "bx", True),
    ("[^a-c]x", "bx", False),
    (r"\*", "*", True),
    (r"\*", "a", False),
    ("# data", "# data", False),
    ("*\n!keep", "keep/file", False),
    ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
    ("*.md\n!README*.md\nREADME-secret.md", "README.md", False),
    ("logs\n!logs/keep", "logs/keep", False),
    ("logs\n!logs/keep", "logs/drop", True),
    ("a/../b", "b", True),
    ("../../etc", "etc", True),
    ("", "a", False),
    ("/", "a", False),
]


@pytest.mark.spec("J1")
@pytest.mark.parametrize(("text", "path", "out"), CASES)
def test_it_is_read_as_docker_reads_it(text: str, path: str, out: bool) -> None:
    assert leaves_out(rules(text), path) is out


@pytest.mark.spec("J1", "N4")
def test_a_pattern_made_to_take_for_ever_does_not() -> None:
    hostile = rules("/".join(["**", "a*" * 60 + "b"] * 20))
    began = time.process_time()
    assert not leaves_out(hostile, "/".join(["a" * 250] * 15))
    assert time.process_time() - began < 5


@pytest.mark.spec("J1")
def test_too_many_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        rules("a\n" * (LINES_MAX + 1))


NAMES = st.text(st.sampled_from("ab*?[]-\\^.!"), min_size=1, max_size=8)


@pytest.mark.spec("J1")
@given(st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), max_size=5), NAMES)
def test_any_text_is_read_and_takes_back_only_what_was_out(lines: list[str], name: str) -> None:
    # Given any lines, then they can be asked about any name; and a last line that takes all back leaves nothing out
    leaves_out(rules("\n".join(lines)), name)
    assert not leaves_out(rules("\n".join([*lines, "!**"])), name)
