"""What follows from the admin token: the same again for the same words, and for no others."""

import pytest

from holdfast.identity.admin import AdminToken

TOKEN = AdminToken("hfa_" + "x" * 40)


@pytest.mark.spec("N6")
def test_no_two_lists_of_words_give_the_same_secret() -> None:
    """Else a token that was made under one key, for one use, would be that of another request."""
    lists = [("token", "ab", "c"), ("token", "a", "bc"), ("token", "abc"), ("tokena", "bc"), ("token", "abc", "")]
    derived = [TOKEN.derived(*words) for words in lists]
    assert len(set(derived)) == len(lists) and {len(secret) for secret in derived} == {32}
    assert TOKEN.derived(*lists[0]) == derived[0] != AdminToken("hfa_" + "y" * 40).derived(*lists[0])
