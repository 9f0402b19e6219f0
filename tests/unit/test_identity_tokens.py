"""A join token survives copying, and a mistyped one is told apart from a wrong one."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Misconfigured
from holdfast.identity import tokens
from holdfast.model import Instant
from holdfast.model.node import JoinToken

pytestmark = pytest.mark.spec("N1", "N6")

PIN = "5a" * 32
TICKET, ROW = tokens.make(PIN, Instant(1_000), Instant(2_000), uses=3, note="lab")


def test_a_token_says_who_may_join_and_whom_to_trust() -> None:
    read = tokens.parse(f"  {TICKET.text}\n")
    assert read == TICKET
    assert read.pin == PIN
    assert TICKET.text.startswith("hf1_")


def test_the_row_that_is_kept_has_the_hash_and_not_the_secret() -> None:
    assert JoinToken(TICKET.id, TICKET.secret_sha256, Instant(1_000), Instant(2_000), 3, note="lab") == ROW
    assert TICKET.secret.hex() not in repr(ROW)
    assert len(TICKET.secret) * 8 >= 128


def test_a_token_without_pin_is_for_plain_loopback() -> None:
    ticket, _ = tokens.make("", Instant(0), Instant(1))
    assert tokens.parse(ticket.text).pin == ""


def test_an_invitation_carries_the_pin_and_nothing_secret() -> None:
    read = tokens.parse(tokens.invitation(PIN).text)
    assert (read.id, read.secret, read.secret_sha256, read.pin) == ("", b"", "", PIN)


def test_two_tokens_never_share_id_or_secret() -> None:
    made = [tokens.make(PIN, Instant(0), Instant(1))[0] for _ in range(50)]
    assert len({t.id for t in made}) == len({t.secret for t in made}) == 50


def test_the_secret_is_never_printed() -> None:
    assert repr(TICKET) == f"Ticket({TICKET.id})"


def assert_mistyped(text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        tokens.parse(text)
    assert refused.value.code == "token_mistyped"
    shown = str(refused.value)
    assert text not in shown or len(text) < 8, "the error repeats what may be most of a secret"


@given(st.integers(4, len(TICKET.text) - 1), st.sampled_from("abcXYZ019-_"))
def test_any_changed_letter_is_noticed(at: int, letter: str) -> None:
    if TICKET.text[at] != letter:
        assert_mistyped(TICKET.text[:at] + letter + TICKET.text[at + 1 :])


@given(st.integers(0, len(TICKET.text) - 1))
def test_any_missing_letter_is_noticed(at: int) -> None:
    without = TICKET.text[:at] + TICKET.text[at + 1 :]
    if without != TICKET.text:
        assert_mistyped(without)


@given(st.text(max_size=300))
def test_any_other_text_is_refused_and_raises_nothing_else(text: str) -> None:
    assert_mistyped(text)
    assert_mistyped(tokens.PREFIX + text)


@given(st.binary(max_size=120))
def test_sound_checksums_do_not_make_up_for_unsound_parts(body: bytes) -> None:
    text = tokens.PREFIX + base64.urlsafe_b64encode(body + tokens._checksum(body)).rstrip(b"=").decode()
    try:
        read = tokens.parse(text)
    except Misconfigured as refused:
        code = refused.code
    else:
        code = "token_mistyped" if read.text == text else "two spellings of one token"
    assert code == "token_mistyped"
