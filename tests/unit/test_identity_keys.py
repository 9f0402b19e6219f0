"""Keys, proofs and secret files: made once, readable by one, good for one session."""

import os
import stat
import threading
from pathlib import Path

import pytest

from holdfast.errors import Misconfigured
from holdfast.identity import keys, private_files, proof
from holdfast.identity.admin import AdminToken
from holdfast.identity.keys import NodeKey

pytestmark = pytest.mark.spec("N1")

NODE = keys.node_id("12345678-1234-5678-1234-567812345678")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- node ids ---


@pytest.mark.spec("N3")
@pytest.mark.parametrize(
    "spelling",
    [
        "12345678-1234-5678-1234-567812345678",
        "12345678123456781234567812345678",
        "{12345678-1234-5678-1234-567812345678}",
        " node_12345678123456781234567812345678\n",
    ],
)
def test_a_uuid_in_any_spelling_is_the_same_node(spelling: str) -> None:
    assert keys.node_id(spelling) == "node_12345678123456781234567812345678"


@pytest.mark.spec("N3")
@pytest.mark.parametrize("spelling", ["", "node_", "my-laptop", "1234", "node_" + "g" * 32])
def test_what_is_no_uuid_is_refused_with_what_to_do(spelling: str) -> None:
    with pytest.raises(Misconfigured, match="PNODE_UUID") as refused:
        keys.node_id(spelling)
    assert refused.value.code == "bad_uuid"


# --- keys ---


def test_the_key_is_made_on_the_first_start_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "node" / "node.key"
    first = NodeKey.load_or_make(path)
    again = NodeKey.load_or_make(path)
    assert first.public_hex == again.public_hex
    assert mode_of(path) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["node.key"]


def test_two_agents_that_start_together_get_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    gate = threading.Barrier(8)
    seen: list[str] = []

    def start() -> None:
        gate.wait(60)
        seen.append(NodeKey.load_or_make(path).public_hex)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 8 and len(set(seen)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["node.key"]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    NodeKey.load_or_make(path)
    path.chmod(0o640)
    with pytest.raises(Misconfigured, match="chmod 600") as refused:
        NodeKey.load_or_make(path)
    assert refused.value.code == "secret_exposed"


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_is_named_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Misconfigured) as refused:
        NodeKey.load_or_make(path)
    assert refused.value.code == "bad_key"
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Misconfigured, match="node key"):
        NodeKey.load_or_make(tmp_path / "file" / "node.key")


def test_a_crash_while_writing_leaves_no_file_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "fsync", full)
    with pytest.raises(Misconfigured, match="No space left"):
        NodeKey.load_or_make(tmp_path / "node.key")
    assert list(tmp_path.iterdir()) == []


def test_the_private_key_is_never_printed(tmp_path: Path) -> None:
    key = NodeKey.load_or_make(tmp_path / "node.key")
    assert "PRIVATE" not in repr(key) and key.public_hex[:16] in repr(key)


def test_a_signature_holds_for_its_message_and_key_only() -> None:
    key, other = NodeKey.make(), NodeKey.make()
    signature = key.sign(b"message")
    assert keys.verify(key.public_hex, b"message", signature)
    assert not keys.verify(key.public_hex, b"massage", signature)
    assert not keys.verify(other.public_hex, b"message", signature)
    for public in ["", "zz", "ab" * 31, "00" * 32]:
        assert not keys.verify(public, b"message", signature)
    assert not keys.verify(key.public_hex, b"message", b"")


# --- proofs ---


def test_the_bytes_of_a_proof_are_exactly_those_of_the_protocol() -> None:
    """A node in another language signs these very bytes: they may not change within a version."""
    assert proof.proof_bytes(b"\x01\x02", NODE, "i1", "") == (
        b"holdfast node proof v1"
        b"\0\0\0\x02\x01\x02"
        b"\0\0\0\x25node_12345678123456781234567812345678"
        b"\0\0\0\x02i1"
        b"\0\0\0\x05plain"
    )


def test_a_proof_holds_for_one_nonce_one_node_one_instance_and_one_orchestrator() -> None:
    key, nonce, pin = NodeKey.make(), proof.new_nonce(), "ab" * 32
    signature = proof.prove(key, nonce, NODE, "i1", pin)
    assert proof.proven(key.public_hex, signature, nonce, NODE, "i1", pin)
    for moved in [
        (proof.new_nonce(), NODE, "i1", pin),
        (nonce, keys.node_id("f" * 32), "i1", pin),
        (nonce, NODE, "i2", pin),
        (nonce, NODE, "i1", "cd" * 32),
        (nonce, NODE, "i1", ""),
    ]:
        assert not proof.proven(key.public_hex, signature, *moved)


def test_no_two_proofs_share_their_bytes_by_shifting_a_border() -> None:
    assert proof.proof_bytes(b"n", NODE, "ab", "c") != proof.proof_bytes(b"n", NODE, "a", "bc")


# --- the admin token ---


def test_the_admin_token_is_made_once_and_matches_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    token = AdminToken.load_or_make(path)
    assert AdminToken.load_or_make(path).text == token.text
    assert mode_of(path) == 0o600
    assert token.matches(token.text)
    for wrong in ["", token.text[:-1], token.text + "x", "\ud800", token.text.upper()]:
        assert not token.matches(wrong)
    assert token.text not in repr(token)


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"\xff" * 40])
def test_an_admin_token_that_is_no_token_opens_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "admin.token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Misconfigured) as refused:
        AdminToken.load_or_make(path)
    assert refused.value.code == "bad_admin_token"


def test_the_umask_of_the_caller_cannot_open_a_secret(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AdminToken.load_or_make(tmp_path / "admin.token")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "admin.token") == 0o600
