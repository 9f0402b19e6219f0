"""A manifest that was sent by somebody hostile is refused, one that was made here is read back, in one spelling."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.blobs import CHUNK_BYTES, Blob, EmptyFolder, File, Manifest, ManifestLimits, Piece, Symlink, sha_of
from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.paths import Names, shown, why_not_a_path, why_not_a_target

pytestmark = pytest.mark.spec("J1", "J10")

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


def a_file(path: str, blob: int = 0, size: int = 10) -> list[Any]:
    """As it stands in the JSON: a file that is one whole blob."""
    return ["file", path, size, False, [[blob, 0, size]], ""]


def sent(entries: list[Any], blobs: list[Any] | None = None, version: int = 1, **more: Any) -> bytes:
    if blobs is None:
        blobs = [[A, 10]] if any(e[0] == "file" for e in entries) else []
    return msgspec.json.encode({"version": version, "blobs": blobs, "entries": entries, **more})


def refused(data: bytes, limits: ManifestLimits | None = None) -> str:
    with pytest.raises(ManifestRefused) as caught:
        Manifest.from_bytes(data, limits)
    assert caught.value.code == "manifest_refused"
    return caught.value.says


def test_what_keeps_the_rules_is_read() -> None:
    """The base of all refusals below: only what each of them changes is what is refused."""
    manifest = Manifest.from_bytes(sent([a_file("a/b"), ["folder", "empty"], ["symlink", "l", "a/b"]]))
    assert [type(e) for e in manifest.entries] == [File, EmptyFolder, Symlink]
    assert manifest.total_bytes == manifest.blob_bytes == 10


def test_the_name_is_the_hash_of_the_bytes_and_is_checked() -> None:
    data = sent([a_file("a")])
    assert Manifest.from_bytes(data, name=sha_of(data)).name == sha_of(data)
    with pytest.raises(ManifestRefused):
        Manifest.from_bytes(data, name=A)


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../x", "a/../b", "a/..", "./a", "a/.", "a//b", "a/", "/", "..", "a\0b", "a\nb",
        "a\x7fb", "a\x1b[2Jb", "C:/x", "c:x", "a\\b", "..\\x", "\u202egnp.exe", "a\u2028b", "a\u0085b",
        "x" * 241, "é" * 121,
        "/".join("d" * 65), "/".join(["y" * 200] * 21),
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_or_hide_something_are_refused(path: str) -> None:
    assert "name" in refused(sent([a_file(path)]))


@pytest.mark.parametrize("path", ["a", ".hidden", "a b/c..d/..e", "2024-01-01T10:00:00.log", "日本/ü.txt", "x" * 240])
def test_usual_names_are_fine(path: str) -> None:
    assert why_not_a_path(path) == ""


def test_a_lone_surrogate_is_no_name() -> None:
    assert why_not_a_path("bad\udc80name")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("A", "a"), ("Straße", "strasse"), ("\u00e9", "e\u0301"), ("D/x", "d/y"), ("K", "\u212a"),
        ("a", "a/b"), ("A", "a/b"), ("dir/x/y", "dir/X"),
    ],
)  # fmt: skip
def test_two_names_that_some_system_takes_for_one_are_refused(first: str, second: str) -> None:
    entries = [a_file(path) for path in sorted([first, second])]
    refused(sent(entries))


def test_names_may_come_in_any_order() -> None:
    for order in (["a", "A/b"], ["A/b", "a"]):
        names = Names()
        assert names.add(order[0]) == ""
        assert names.add(order[1]) != ""


def test_a_name_that_was_turned_away_leaves_no_trace() -> None:
    names = Names()
    assert names.add("a") == ""
    assert names.add("X/A") == ""
    assert names.add("a/deep/x") != ""
    assert names.add("A") != ""
    assert names.add("x") != "", "X is a folder"
    assert names.add("X/b") == ""


def test_a_conflict_is_told_with_the_whole_name_of_the_other() -> None:
    names = Names()
    assert names.add("A/b/C/d") == ""
    assert names.add("A/b/e", folder=True) == ""
    assert names.add("A/b/e", folder=True) == "", "a folder may be named again"
    assert names.add("A/b", folder=True) == "", "also one in which something lies"
    assert names.add("A/b/C/d") == "is there twice"
    assert names.add("A/b") == names.add("A/b/e") == "is there twice"
    assert names.add("a") == "is taken for 'A' by some systems"
    assert names.add("A/b/C/D") == "is taken for 'A/b/C/d' by some systems"
    assert names.add("A/b/c/x") == "lies in a folder that some systems take for 'A/b/C'"
    assert names.add("A/b/C/D/x") == "lies below 'A/b/C/d', which is not a folder"
    assert names.add("A/b/C/d/x") == "lies below 'A/b/C/d', which is not a folder"


def test_folders_that_names_lie_in_are_counted_once() -> None:
    names = Names()
    for path, folders in (("a", 0), ("b/c/d", 2), ("b/c/e", 2), ("b/f/g", 3), ("h/i", 4), ("b/j", 4)):
        assert names.add(path) == ""
        assert names.folders == folders
    assert names.add("B/x/y/z") != "" and names.folders == 4


def test_a_deep_name_is_read_once_and_not_once_for_each_of_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of 2 MB with such names took 40 s to check."""
    read: list[int] = []
    monkeypatch.setattr("holdfast.blobs.paths.folded", lambda text: read.append(len(text)) or text)
    names, path = Names(), "/".join(["part"] * 64)
    assert names.add(path) == ""
    assert sum(read) <= 2 * len(path)


def test_folders_count_as_entries_do() -> None:
    deep = sent([a_file("a/b/c"), a_file("a/d")])
    assert Manifest.from_bytes(deep, ManifestLimits(entries=4)).entries
    assert "more than 3 entries and folders" in refused(deep, ManifestLimits(entries=3))
    with pytest.raises(ManifestTooLarge):
        Manifest.from_bytes(deep, ManifestLimits(entries=3))


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd", "..", "../..", "../../x", "x/../../y", "x/..", "C:/x", "a\\b", "a\0b", "", "\u202ea", "a//b",
        "y" * 4001,
    ],
)  # fmt: skip
def test_links_that_lead_out_or_turn_back_are_refused(target: str) -> None:
    refused(sent([a_file("a"), ["symlink", "l", target]]))


def test_links_inside_the_tree_are_fine() -> None:
    assert why_not_a_target("d/e/l", "../../a") == ""
    assert why_not_a_target("d/e/l", "../..") == ""
    assert why_not_a_target("d/e/l", "../../../a") != ""
    assert why_not_a_target("l", "not/there") == ""


def test_a_link_is_never_the_way_to_a_file() -> None:
    refused(sent([["symlink", "d", "elsewhere"], a_file("d/x")]))


def test_links_cannot_add_up_to_a_way_out() -> None:
    """`deep/er/s` leads to the root, so `deep/er/s/../..` would lead above it, though it looks harmless."""
    to_the_root = ["symlink", "deep/er/s", "../.."]
    assert Manifest.from_bytes(sent([to_the_root]))
    assert "turns back" in refused(sent([to_the_root, ["symlink", "out", "deep/er/s/../.."]]))


@pytest.mark.parametrize(
    ("entries", "blobs"),
    [
        ([a_file("a", size=11)], [[A, 10]]),
        ([["file", "a", 9, False, [[0, 0, 10]], ""]], [[A, 10]]),
        ([["file", "a", 11, False, [[0, 0, 10]], ""]], [[A, 10]]),
        ([["file", "a", 0, False, [[0, 0, 0]], ""]], [[A, 10]]),
        ([["file", "a", 5, False, [[0, 5, 6]], ""]], [[A, 10]]),
        ([["file", "a", 5, False, [[0, -1, 5]], ""]], [[A, 10]]),
        ([["file", "a", 10, False, [[1, 0, 10]], ""]], [[A, 10]]),
        ([["file", "a", 10, False, [[7, 0, 10]], ""]], [[A, 10]]),
        ([["file", "a", -1, False, [], ""]], []),
        ([a_file("a")], [[A, 10], [B, 10]]),
        ([a_file("a"), a_file("b", 1)], [[A, 10], [A, 10]]),
        ([a_file("a", 1), a_file("b", 0)], [[A, 10], [B, 10]]),
        ([["file", "a", 5, False, [[0, 0, 5]], B]], [[A, 10]]),
        ([["file", "a", 6, False, [[0, 0, 6]], B], ["file", "b", 6, False, [[0, 4, 6]], B]], [[A, 10]]),
        ([["file", "a", 4, False, [[0, 0, 4]], B], ["file", "b", 4, False, [[0, 6, 4]], B]], [[A, 10]]),
        ([["file", "a", 5, False, [[0, 0, 5]], B], ["file", "b", 5, False, [[0, 5, 5]], ""]], [[A, 10]]),
        ([["file", "a", 10, False, [[0, 0, 10]], B]], [[A, 10]]),
        ([["file", "a", 20, False, [[0, 0, 10], [1, 0, 10]], ""]], [[A, 10], [B, 10]]),
        ([a_file("a", size=CHUNK_BYTES + 1)], [[A, CHUNK_BYTES + 1]]),
        ([a_file("a")], [["AA" * 32, 10]]),
        ([a_file("a")], [["aa" * 31, 10]]),
        ([a_file("a")], [[A, 10.0]]),
        ([a_file("b"), a_file("a")], None),
        ([a_file("a"), a_file("a")], None),
        ([["device", "a", 1]], []),
        ([["file", "a", 10, 1, [[0, 0, 10]], ""]], None),
        ([[*a_file("a"), "more"]], None),
        ([["folder", "d"], a_file("D")], None),
    ],
)  # fmt: skip
def test_sums_pieces_and_types_must_agree(entries: list[Any], blobs: list[Any] | None) -> None:
    refused(sent(entries, blobs))


def test_a_file_may_equal_the_pack_of_its_neighbours() -> None:
    """What `split` leaves: small parts that share a blob, and the file they were cut from is that very blob."""
    parts = [["file", f"x{i}", 5, False, [[0, i * 5, 5]], B if i else C] for i in range(2)]
    assert len(Manifest.from_bytes(sent([a_file("whole"), *parts])).blobs) == 1


def test_limits_stop_what_is_too_much() -> None:
    many = sent([["folder", f"d{i:03}"] for i in range(100)], [])
    assert "entries" in refused(many, ManifestLimits(entries=99))
    assert "bytes is over" in refused(many, ManifestLimits(manifest_bytes=len(many) - 1))
    two = sent([a_file("a"), a_file("b", 1)], [[A, 10], [B, 10]])
    assert "blobs" in refused(two, ManifestLimits(blobs=1))


def test_a_bomb_is_seen_before_a_byte_is_written() -> None:
    """A thousand files that are all the same blob: one small upload, and a lot to write."""
    bomb = sent([a_file(f"f{i:04}", size=CHUNK_BYTES) for i in range(1000)], [[A, CHUNK_BYTES]])
    assert f"{1000 * CHUNK_BYTES} bytes" in refused(bomb, ManifestLimits(total_bytes=1 << 30))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe", b"{" * 100_000, b"[" * 100_000,
        sent([], [], version=2), sent([], [], extra=1), sent([], []) + b" ", sent([], []).replace(b":", b": "),
        sent([], []).replace(b'"blobs":[]', b'"blobs":[],"blobs":[]'), b'{"version":1,"entries":[],"blobs":[]}',
    ],
)  # fmt: skip
def test_only_the_one_spelling_is_read(data: bytes) -> None:
    refused(data)


def test_a_newer_version_is_named() -> None:
    assert "version 9" in refused(sent([], [], version=9))


def test_what_is_shown_hides_nothing() -> None:
    assert shown("a\x1b[2J\u202eb") == repr("a\\u001b[2J\\u202eb")
    assert len(shown("x" * 9999)) < 130


names = st.lists(st.sampled_from(["a", "b", "c", "é"]), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(names, st.integers(0, 3), max_size=8))
def test_whatever_is_made_here_is_read_elsewhere(tree: dict[str, int]) -> None:
    """Either the tree itself is impossible, or its manifest survives the strict reading and keeps its name."""
    blobs = [Blob(sha_of(bytes([n])), 1) for n in range(4)]
    entries = [File(path, 1, False, (Piece(n, 0, 1),)) for path, n in tree.items()]
    impossible = any(other.startswith(path + "/") for path in tree for other in tree)
    try:
        made = Manifest.of(entries, blobs)
    except ManifestRefused:
        assert impossible
        return
    assert not impossible
    assert Manifest.from_bytes(made.to_bytes()) == made == Manifest.of(reversed(entries), blobs)
    assert {made.blobs[e.pieces[0].blob].sha for e in made.entries if isinstance(e, File)} == {
        b.sha for b in made.blobs
    }


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_noise_is_refused_and_nothing_else_happens(data: bytes) -> None:
    refused(data)
