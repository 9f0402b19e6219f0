"""What each attempt sent is remembered, within a bound."""

import pytest

from holdfast.orchestrator.content.sent_hashes import SentHashes


@pytest.mark.spec("A12")
def test_each_attempt_has_its_own_and_the_oldest_are_forgotten_first() -> None:
    sent = SentHashes(3)
    for uploader, sha in (("one", "a"), ("one", "b"), ("two", "a"), ("one", "b")):
        sent.add(uploader, sha)
    assert (set(sent.of("one")), set(sent.of("two")), set(sent.of("three"))) == ({"a", "b"}, {"a"}, set())
    # the fourth is one too many: the attempt that sent nothing for longest is forgotten as a whole
    sent.add("three", "c")
    assert (set(sent.of("one")), set(sent.of("two")), set(sent.of("three"))) == ({"a", "b"}, set(), {"c"})
    # one attempt alone may have more than that
    for sha in "defg":
        sent.add("three", sha)
    assert (set(sent.of("one")), set(sent.of("three"))) == (set(), set("cdefg"))
    sent.add("two", "x")
    assert (set(sent.of("two")), set(sent.of("three"))) == ({"x"}, set())
    sent.add("one", "a")
    sent.add("one", "b")
    assert (set(sent.of("two")), set(sent.of("one"))) == ({"x"}, {"a", "b"})
