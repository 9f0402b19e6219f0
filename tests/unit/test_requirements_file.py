"""Which lines of a requirements file are used, and why each other one is not (SPEC N5, J7)."""

import pytest

from holdfast.node.attempt.requirements_file import (
    LINES_MAX,
    TEXT_BYTES_MAX,
    RefusedLine,
    RequirementsRefused,
    listed,
    refusal,
)

pytestmark = pytest.mark.spec("N5", "J1")

HASH = "--hash=sha256:" + "a" * 64


@pytest.mark.parametrize(
    "line",
    ["apple", "apple[red,green]==1.0", "apple >=1.0, <2", "apple~=1.0; python_version >= '3.8'", "Apple.T_x==1.0.post1",
     f"apple==1.0 {HASH}", f"apple==1.0 \\\n  {HASH}", "apple===1.0+local", "--require-hashes", "--pre",
     "--prefer-binary", "--only-binary :all:", "--only-binary=:all:"],
)  # fmt: skip
def test_every_usual_way_to_write_a_requirement_is_understood(line: str) -> None:
    assert len(listed(line)) == 1


@pytest.mark.spec("J7", "N13")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--index-url http://127.0.0.1/", RefusedLine.INDEX),
        ("--any-url=http://127.0.0.1/", RefusedLine.INDEX),
        ("--some-indexes", RefusedLine.OPTION),
        ("--index-url=http://127.0.0.1/", RefusedLine.INDEX),
        ("-i http://127.0.0.1/", RefusedLine.INDEX),
        ("-ihttp://127.0.0.1/", RefusedLine.INDEX),
        ("--extra-index-url http://127.0.0.1/", RefusedLine.INDEX),
        ("--no-index", RefusedLine.INDEX),
        ("--trusted-host 127.0.0.1", RefusedLine.INDEX),
        ("--proxy http://127.0.0.1", RefusedLine.INDEX),
        ("-f /etc", RefusedLine.FIND_LINKS),
        ("--find-links=/etc", RefusedLine.FIND_LINKS),
        ("-r /etc/passwd", RefusedLine.FILE),
        ("-r/etc/passwd", RefusedLine.FILE),
        ("--requirement other.txt", RefusedLine.FILE),
        ("-c constraints.txt", RefusedLine.FILE),
        ("--constraint=constraints.txt", RefusedLine.FILE),
        ("-e .", RefusedLine.EDITABLE),
        ("--editable=git+https://HOST/x", RefusedLine.EDITABLE),
        ("git+http://127.0.0.1/x", RefusedLine.VCS),
        ("pear @ git+ssh://HOST/x", RefusedLine.VCS),
        ("pear @ file:///etc/passwd", RefusedLine.ADDRESS),
        ("pear @ https://HOST/pear.whl", RefusedLine.ADDRESS),
        ("http://127.0.0.1/pear.whl", RefusedLine.ADDRESS),
        ("./package", RefusedLine.PATH),
        ("/etc/passwd", RefusedLine.PATH),
        ("~/package", RefusedLine.PATH),
        ("pear==2.0 --global-option=x", RefusedLine.BUILD),
        ("pear==2.0 --config-settings=x=y", RefusedLine.BUILD),
        ("pear==2.0 -Cx=y", RefusedLine.BUILD),
        ("--no-binary :all:", RefusedLine.BUILD),
        ("--only-binary pear", RefusedLine.BUILD),
        ("--no-build-isolation", RefusedLine.BUILD),
        ("--use-feature=fast-deps", RefusedLine.OPTION),
        ("pear==2.0 --hash=md5:aaaa", RefusedLine.OPTION),
        ("-", RefusedLine.OPTION),
        ("pear; python_version > '3' @ x", RefusedLine.ADDRESS),
        ("pear==2.0\x00", RefusedLine.SYNTAX),
        ("pear==", RefusedLine.SYNTAX),
        ("${HOME}", RefusedLine.SYNTAX),
    ],
)
def test_any_other_line_is_refused_with_its_reason(line: str, why: RefusedLine) -> None:
    assert refusal(line) is why
    with pytest.raises(RequirementsRefused) as wrong:
        listed(f"apple\n{line}\n")
    assert why.value in str(wrong.value)


def test_comments_and_empty_lines_are_skipped_and_lines_are_joined() -> None:
    assert listed("# a\n\napple  ==1.0   # b\npear \\\n  >=2\n") == ("apple ==1.0", "pear >=2")


@pytest.mark.spec("N13")
def test_the_text_and_its_lines_are_limited() -> None:
    assert listed("a\n" * LINES_MAX) == ("a",) * LINES_MAX
    with pytest.raises(RequirementsRefused, match=f"more than {LINES_MAX}"):
        listed("a\n" * (LINES_MAX + 1))
    long = "a" + "\n" * (TEXT_BYTES_MAX - 1)
    assert listed(long) == ("a",)
    with pytest.raises(RequirementsRefused, match="longer than 256 KiB"):
        listed(long + "\n")
