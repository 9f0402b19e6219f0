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


# --- each way to be mistyped has its own words, and nothing else is taken ---


def spelled(*fields: bytes, checksum: bytes | None = None) -> str:
    body = b"".join(bytes([len(field)]) + field for field in fields)
    return raw_text(body + (tokens._checksum(body) if checksum is None else checksum))


def raw_text(raw: bytes) -> str:
    return tokens.PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


ID, SECRET, PIN_BYTES = TICKET.id.encode(), TICKET.secret, bytes.fromhex(PIN)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TICKET.text.removeprefix("hf1_"), "it does not start with hf1_"),
        ("x" * 256, "it does not start with hf1_"),
        ("x" * 257, "it is too long"),
        ("hf1_" + "A" * 253, "it is too long"),
        ("hf1_" + "A" * 252, "its checksum does not match"),
        ("hf1_!!!!", "an invalid character"),
        ("hf1_", "its checksum does not match"),
        (raw_text(tokens._checksum(b"")), "its checksum does not match"),
        (spelled(ID, SECRET, PIN_BYTES, checksum=b"nope"), "its checksum does not match"),
        (spelled(ID, SECRET), "its structure is invalid"),
        (spelled(ID, SECRET, PIN_BYTES, b""), "its structure is invalid"),
        (spelled(ID, b"", PIN_BYTES), "its structure is invalid"),
        (spelled(b"", SECRET, PIN_BYTES), "its structure is invalid"),
        (spelled(ID, SECRET, PIN_BYTES[:31]), "its structure is invalid"),
        (spelled(ID, SECRET, b"x"), "its structure is invalid"),
        (spelled(b"tok_SHOUTING", SECRET, PIN_BYTES), "its structure is invalid"),
        (spelled(b"tok_\xff\xff\xff\xff\xff\xff\xff\xff", SECRET, PIN_BYTES), "its structure is invalid"),
    ],
    ids=[f"way {number}" for number in range(17)],
)
def test_every_way_to_be_mistyped_is_told(text: str, why: str) -> None:
    with pytest.raises(Misconfigured, match="the join token is mistyped") as caught:
        tokens.parse(text)
    assert why in str(caught.value) and caught.value.code == "token_mistyped"


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    ticket = tokens.make("", Instant(0), Instant(1))[0]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    text = next(t for t in (ticket.text, TICKET.text, tokens.invitation(PIN).text) if (len(t) - 4) % 4)
    unused = 2 if (len(text) - 4) % 4 == 3 else 4
    last = letters.index(text[-1])
    other = text[:-1] + letters[last ^ 1]
    assert last % (1 << unused) == 0
    with pytest.raises(Misconfigured, match="its last letter is changed"):
        tokens.parse(other)


def test_what_a_token_is_drawn_from_is_used_as_far_as_it_is_needed() -> None:
    drawn = tokens.Drawn(bytes(range(32)), bytes(range(32, 64)))
    same = tokens.Drawn(drawn.id[:8] + b"x" * 24, drawn.secret[:24] + b"x" * 8)
    other = tokens.Drawn(drawn.id[:7] + b"x" * 25, drawn.secret[:23] + b"x" * 9)
    ticket = tokens.make(PIN, Instant(0), Instant(1), drawn=drawn)[0]

    assert tokens.make(PIN, Instant(0), Instant(1), drawn=same)[0] == ticket
    assert tokens.make(PIN, Instant(0), Instant(1), drawn=other)[0].id != ticket.id
    assert tokens.make(PIN, Instant(0), Instant(1), drawn=other)[0].secret != ticket.secret


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("hf1_abcdefghijklmnop is no id", "hf1_… is no id"),
        ("twice hfa_0123456789abcdef hf1_short", "twice hfa_… hf1_…"),
        ("a job named half1_done", "a job named half1_done"),
    ],
)
def test_no_token_is_shown_in_what_quotes_a_request(sent: str, shown: str) -> None:
    assert tokens.redacted(sent) == shown
