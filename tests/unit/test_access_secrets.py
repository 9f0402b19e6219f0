"""The text of access tokens, and the names that no owner can have."""

import pytest

from holdfast.identity import access
from holdfast.identity.tokens import Drawn, redacted
from holdfast.model import AccessToken, Role
from holdfast.model.access import RESERVED_OWNERS, is_reserved

pytestmark = pytest.mark.spec("A12")


def made(drawn: Drawn | None = None) -> tuple[access.AccessSecret, AccessToken]:
    return access.make(Role.USER, "ann", "a note", "admin", drawn)


def test_the_text_of_a_token_is_read_back() -> None:
    secret, row = made()
    assert access.parse(secret.text) == secret and secret.id == row.id
    assert secret.text.startswith("hfr_") and row.id.startswith("acc_")
    assert (row.role, row.owner, row.note, row.made_by, row.revoked) == (Role.USER, "ann", "a note", "admin", False)
    assert secret.matches(row)


def test_every_token_is_another_unless_it_is_derived() -> None:
    assert made()[0] != made()[0]
    drawn = Drawn(b"i" * 32, b"s" * 32)
    assert made(drawn) == made(drawn)
    assert made(drawn)[0].id == made(Drawn(b"i" * 32, b"t" * 32))[0].id
    assert not made(drawn)[0].matches(made(Drawn(b"i" * 32, b"t" * 32))[1])


def test_the_row_and_the_repr_hold_no_secret() -> None:
    secret, row = made()
    assert secret.secret not in repr(row) and secret.secret not in repr(secret)
    assert secret.id in repr(secret)


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "A", lambda t: "hfa_" + t[4:], lambda t: t[4:]])
def test_another_text_is_no_access_token(change: object) -> None:
    assert access.parse(change(made()[0].text)) is None  # pyright: ignore[reportCallIssue]
    assert access.parse("") is None


def test_a_token_in_a_text_is_left_out_also_a_part_of_it() -> None:
    text = made()[0].text
    for part in (text, text[:20], text.replace("_", "%5f", 1)):
        assert part[8:] not in redacted(f"/v1/jobs/{part}?x=1")
        assert "hfr_…" in redacted(part)


def test_reserved_names_are_reserved_in_any_spelling() -> None:
    for name in sorted(RESERVED_OWNERS):
        assert is_reserved(name) and is_reserved(name.upper()) and is_reserved(name.replace("-", "_"))
        assert is_reserved(name.replace("-", " ")) and not is_reserved(name + "x")
    assert {"admin", "user", "node-operator", "network-operator"} <= RESERVED_OWNERS
    assert not is_reserved("ann")
