"""Which files of a folder are sent: ignore files, secrets, and what is included on purpose (SPEC J1, N5)."""

import json
from pathlib import Path

import pytest

from holdfast.blobs import scan
from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import Ignore
from holdfast.client import selection
from holdfast.client.secret_files import SEARCHED_BYTES, SECRET_SHAPES, secret_in
from holdfast.client.selection import FolderRules, NotSentWhy, SearchingSelection, Selection, left_out_line
from holdfast.errors import Misuse
from holdfast.testing import Network

pytestmark = pytest.mark.spec("J1", "N5")

BASE64 = "MC4CAQAwBQYDK2VwBCIEIFooBarBazQuxFooBarBazQuxFooBarBazQuxFooBar"


def private_key(kind: str = "", newline: str = "\n") -> str:
    return f"-----BEGIN {kind}PRIVATE KEY-----{newline}{BASE64}{newline}-----END {kind}PRIVATE KEY-----{newline}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def lay(folder: Path, **files: str) -> None:
    """Files by path; `__` stands for a slash, `_dot_` for a dot."""
    write(folder, {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()})


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def sent(folder: Path, *include: str, gitignore: bool = True) -> tuple[list[str], dict[str, NotSentWhy]]:
    """What would be sent, and why the rest would not."""
    chosen = SearchingSelection(folder, FolderRules(include, gitignore))
    found = scan(folder, ignore=chosen)
    return [entry.path for entry in found.manifest.entries], {one.path: one.reason for one in chosen.told()}


# --- ignore files ---


def test_history_and_caches_stay_here_in_silence(folder: Path) -> None:
    write(folder, dict.fromkeys([".git/x", "a/__pycache__/x.pyc", "results/j/out", "a/results/out", "code.py"], "x"))
    assert sent(folder) == (["a/results/out", "code.py"], {})


@pytest.mark.parametrize("place", [".venv", "venv", "node_modules", "sub/node_modules", "my-env"])
def test_what_was_built_for_this_machine_stays_here_and_that_is_said(folder: Path, place: str) -> None:
    write(folder, {f"{place}/lib/x": "12345", f"{place}/pyvenv.cfg": "home = /usr", "sub/code.py": ""})
    assert sent(folder) == (["sub/code.py"], {place: NotSentWhy.BUILT_HERE})


def test_gitignore_counts_unless_it_is_said_not_to(folder: Path) -> None:
    write(folder, {".gitignore": "data/\n*.log\n", "data/big": "x" * 5000, "a/b.log": "x", "a/b": "x"})
    paths, left = sent(folder)
    assert paths == [".gitignore", "a/b"]
    assert left == {"data": NotSentWhy.GIT_IGNORE, "a/b.log": NotSentWhy.GIT_IGNORE}
    assert sent(folder, gitignore=False) == ([".gitignore", "a/b", "a/b.log", "data/big"], {})


def test_the_deepest_gitignore_that_has_an_opinion_decides(folder: Path) -> None:
    write(folder, {".gitignore": "*.bin\n/top\n", "a/.gitignore": "!keep.bin\n/only\n", "a/b/.gitignore": "keep.bin"})
    write(
        folder, dict.fromkeys(["x.bin", "a/x.bin", "a/keep.bin", "a/b/keep.bin", "top", "a/top", "a/only", "only"], "x")
    )
    paths, left = sent(folder)
    assert [path for path in paths if "gitignore" not in path] == ["a/keep.bin", "a/top", "only"]
    assert set(left) == {"x.bin", "a/x.bin", "a/b/keep.bin", "top", "a/only"}


def test_only_gitignores_inside_the_folder_count(folder: Path) -> None:
    (folder.parent / ".gitignore").write_text("*\n")
    lay(folder, code_dot_py="")
    assert sent(folder) == (["code.py"], {})


def test_a_gitignore_that_cannot_be_understood_says_nothing(folder: Path) -> None:
    (folder / ".gitignore").write_bytes(b"!\n\xff\xfe\nignored\n")
    lay(folder, ignored="", code="")
    (folder / "a").mkdir()
    (folder / "a" / ".gitignore").symlink_to("../.gitignore")
    (folder / "a" / "ignored2").touch()
    (folder / "b" / ".gitignore").mkdir(parents=True)
    assert "code" in (paths := sent(folder)[0]) and "ignored" not in paths and "a/ignored2" in paths


def test_holdfastignore_decides_over_gitignore_both_ways(folder: Path) -> None:
    write(folder, {".gitignore": "data/\n", ".holdfastignore": "notes/\n!data/\n!results/\n# a comment\n"})
    write(folder, {"data/a": "1", "notes/b": "1", "results/c": "1"})
    assert sent(folder) == (
        [".gitignore", ".holdfastignore", "data/a", "results/c"],
        {"notes": NotSentWhy.IGNORE_FILE},
    )


def test_a_path_reaches_into_an_ignored_folder_and_a_bare_name_does_not(folder: Path) -> None:
    write(
        folder, {".gitignore": "data/\nother/\n", ".holdfastignore": "!data/model.bin\n!data/deep/*.txt\n!bare.txt\n"}
    )
    write(
        folder,
        dict.fromkeys(["data/model.bin", "data/junk", "data/deep/a.txt", "data/deep/a.py", "other/bare.txt"], "x"),
    )
    write(folder, {"data/empty/deeper/junk": "x", "bare.txt": "x"})
    paths, left = sent(folder)
    assert paths == [".gitignore", ".holdfastignore", "bare.txt", "data/deep/a.txt", "data/model.bin"]
    assert set(left) == {"data/deep/a.py", "data/junk", "data/empty", "other"}


def test_a_folder_that_was_only_looked_through_is_not_sent_empty(folder: Path) -> None:
    write(folder, {".gitignore": "data/\n", ".holdfastignore": "!data/sub/none\n", "data/sub/x": "1"})
    assert sent(folder)[0] == [".gitignore", ".holdfastignore"]


def test_a_broken_ignore_file_is_said_to_be_broken(folder: Path) -> None:
    (folder / ".holdfastignore").write_bytes(b"\xff\xfe")
    with pytest.raises(FolderRefused, match=r"holdfastignore cannot be read"):
        Selection(folder)
    (folder / ".holdfastignore").write_text("!\n")
    with pytest.raises(FolderRefused, match=r"holdfastignore cannot be read") as caught:
        Selection(folder)
    assert ".gitignore" in caught.value.hint
    (folder / ".holdfastignore").write_bytes(b"a" * (selection.IGNORE_BYTES_MAX + 1))
    with pytest.raises(FolderRefused, match="longer than"):
        Selection(folder)


# --- secrets ---


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.production", "sub/.envrc", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".ssh/config",
        "deploy/id_ed25519", ".aws/credentials", ".kube/config", ".docker/config.json", "a/kubeconfig", "x.p12",
        ".config/gcloud/x.json", "terraform.tfstate", "kaggle.json", ".pgpass", "client_secret_1.json", "a/.ssh/config",
    ],
)  # fmt: skip
def test_files_that_are_secret_by_name_stay_here_whatever_ignore_files_say(folder: Path, name: str) -> None:
    write(folder, {name: "x", "code.py": "", ".holdfastignore": f"!{name}\n!.*\n!*\n", ".gitignore": f"!{name}\n"})
    paths, left = sent(folder)
    assert name not in paths and NotSentWhy.SECRET in left.values()
    # and go only if they are named
    assert name in sent(folder, name)[0]


@pytest.mark.parametrize(
    "name", [".env.example", ".env.sample", "environment.py", "env", ".docker/Dockerfile", "id_rsa.pub"]
)
def test_what_only_resembles_a_secret_by_name_is_sent(folder: Path, name: str) -> None:
    write(folder, {name: "x"})
    assert sent(folder) == ([name], {})


HELD = {
    "private key": private_key(),
    "rsa": private_key("RSA "),
    "openssh": private_key("OPENSSH "),
    "pgp": private_key("PGP ").replace("KEY-----", "KEY BLOCK-----"),
    "encrypted, old": private_key("RSA ").replace("-----\nMC", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,1F\n\nMC"),
    "json": json.dumps({"type": "service_account", "private_key": private_key()}),
    "windows": private_key(newline="\r\n"),
    "aws": "key = AKIA" + "QWERTYUIOPASDFGH",
    "github": "x ghp_" + "a1" * 18,
    "github fine": "github_pat_" + "a1" * 41,
    "gitlab": "glpat-" + "a1" * 10,
    "slack": "xoxb-" + "1234567890-" * 3,
    "stripe": "sk_live_" + "a1" * 12,
    "anthropic": "sk-ant-" + "api03-" + "a1" * 20,
    "openai": "sk-proj-" + "a1" * 20,
    "hugging face": "hf_" + "aB" * 17,
    "google": "AIza" + "a1" * 17 + "b",
    "npm": "npm_" + "a1" * 18,
    "sendgrid": "SG." + "a1" * 11 + "." + "b" * 43,
    "digitalocean": "dop_v1_" + "0f" * 32,
    "join token": "hf1_" + "a1" * 40,
    "access token": "hfr_" + "a1" * 20,
    "admin token": "hfa_" + "a1" * 20,
}


@pytest.mark.parametrize("text", HELD.values(), ids=HELD.keys())
def test_files_with_a_secret_in_them_stay_here(folder: Path, text: str) -> None:
    write(folder, {"settings.txt": f"a = 1\n{text}\n", "code.py": ""})
    assert sent(folder) == (["code.py"], {"settings.txt": NotSentWhy.SECRET})
    assert sent(folder, "settings.txt") == (["code.py", "settings.txt"], {})


def test_every_shape_is_tried() -> None:
    assert {secret_in(text.encode()) for text in HELD.values()} == {shape.what for shape in SECRET_SHAPES}


@pytest.mark.parametrize(
    "text",
    [
        'PRIVATE = b"-----BEGIN PRIVATE KEY"', "-----BEGIN PRIVATE KEY-----\n…\n",
        "-----BEGIN PUBLIC KEY-----\n" + BASE64, "AKIA" + "IOSFODNN7EXAMPLE", "xAKIA" + "QWERTYUIOPASDFGH",
        "AKIA" + "QWERTYUIOPASDFG", "hf_model_name", "my_hf_" + "aB" * 17,
        "ghp_short", "task-proj-" + "a" * 9, "sk-learn", "npm_config_registry", "the SG.x",
    ],
)  # fmt: skip
def test_what_only_resembles_a_secret_is_sent(folder: Path, text: str) -> None:
    write(folder, {"a.txt": text})
    assert sent(folder) == (["a.txt"], {})


def test_a_secret_is_searched_for_in_the_beginning_of_a_large_file(folder: Path) -> None:
    padding = "x" * 99 + "\n"
    write(
        folder, {"near": padding * 5000 + private_key(), "far": padding * (SEARCHED_BYTES // 100 + 1) + private_key()}
    )
    assert sent(folder) == (["far"], {"near": NotSentWhy.SECRET})


def test_a_link_to_a_secret_is_only_a_link(folder: Path) -> None:
    write(folder, {"k.pem": private_key()})
    (folder / "link").symlink_to("k.pem")
    assert sent(folder) == (["link"], {"k.pem": NotSentWhy.SECRET})


# --- included on purpose ---


def test_an_included_folder_brings_no_secret_that_is_not_named(folder: Path) -> None:
    write(folder, {".gitignore": "data/\n", "data/a": "1", "data/.env": "1", "data/k.pem": private_key()})
    paths, left = sent(folder, "data/")
    assert paths == [".gitignore", "data/a"]
    assert left == {"data/.env": NotSentWhy.SECRET, "data/k.pem": NotSentWhy.SECRET}
    assert sent(folder, "data/", "data/.env", "*.pem")[0] == [".gitignore", "data/.env", "data/a", "data/k.pem"]


def test_a_secret_folder_that_is_named_is_sent_whole(folder: Path) -> None:
    write(folder, {".aws/config": "region = x", ".aws/credentials": "y"})
    assert sent(folder, ".aws/") == ([".aws/config", ".aws/credentials"], {})
    # and one file of it brings no other
    assert sent(folder, ".aws/config") == ([".aws/config"], {".aws/credentials": NotSentWhy.SECRET})


@pytest.mark.parametrize(
    "spelled", ["./data/deep/model", "data/deep/model", "/data/deep/model", "data/deep/*", "{}/data/deep/model"]
)
def test_a_path_to_include_may_be_spelled_in_any_way(folder: Path, spelled: str) -> None:
    write(folder, {".gitignore": "data/\n", "data/deep/model": "1", "data/other": "1"})
    assert sent(folder, spelled.format(folder))[0] == [".gitignore", "data/deep/model"]


@pytest.mark.parametrize("include", ["nothing.txt", "data/none", "!code.py", "# x", "", "/elsewhere/file"])
def test_what_would_include_nothing_is_refused(folder: Path, include: str) -> None:
    write(folder, {"code.py": "", "data/x": ""})
    with pytest.raises(Misuse) as caught:
        sent(folder, include)
    assert caught.value.hint


def test_one_path_is_not_a_list_of_letters() -> None:
    with pytest.raises(Misuse, match=r"include is '\.env'"):
        FolderRules(".env")


def test_keys_of_holdfast_are_not_included_either(folder: Path) -> None:
    write(folder, {"network/admin.token": "x", "network/state.db": "", "network/data/x": "", "code.py": ""})
    paths, left = sent(folder, "code.py")
    assert (paths, left) == (["code.py"], {"network": NotSentWhy.OWN_KEYS})
    for include in ("network/", "network/data/x"):
        with pytest.raises(Misuse, match="was to be included"):
            sent(folder, include)


def test_whoever_gives_rules_of_their_own_means_them(folder: Path) -> None:
    write(folder, {".env": "x", "a.log": private_key(), "network/admin.token": "x", "network/state.db": "x"})
    chosen = SearchingSelection(folder, ignore=Ignore(["*.txt"]))
    assert [entry.path for entry in scan(folder, ignore=chosen).manifest.entries] == [".env", "a.log"]
    assert [one.path for one in chosen.told()] == ["network"]


# --- what is said ---


def test_the_line_names_secrets_first_and_then_the_largest(folder: Path) -> None:
    write(folder, {".gitignore": "data/\n*.log\n", "data/a": "x" * 3000, "data/b/c": "x" * 72, "a.log": "x" * 10})
    write(folder, {".env": "x" * 7, "node_modules/m/i.js": "x" * 2048, "code.py": ""})
    chosen = SearchingSelection(folder)
    scan(folder, ignore=chosen)
    assert left_out_line(chosen.told(), "do so") == (
        "not sent: .env (7 B; is secret by its name), node_modules/ (2.0 KiB; was built for this machine), "
        "data/ (3.0 KiB; is ignored by .gitignore), a.log (10 B; is ignored by .gitignore); do so"
    )


def test_the_line_is_one_line_however_much_stays_here(folder: Path) -> None:
    write(folder, {".gitignore": "*.log\n"} | {f"{number}\n.log": "x" * number for number in range(1, 9)})
    chosen = SearchingSelection(folder)
    scan(folder, ignore=chosen)
    line = left_out_line(chosen.told(), "do so")
    assert line.count(".log") == selection.NAMED_MAX and " and 4 more; do so" in line and "\n" not in line
    assert left_out_line((), "do so") == ""


def test_a_huge_folder_is_not_counted_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "COUNTED_MAX", 4)
    write(folder, {f"node_modules/{name}": "12345" for name in "abcdefgh"})
    chosen = SearchingSelection(folder)
    scan(folder, ignore=chosen)
    assert [one.bytes for one in chosen.told()] == [15]


# --- through the client ---


def test_a_job_is_sent_without_secrets_and_the_caller_is_warned(folder: Path) -> None:
    write(folder, {".env": "x", "code.py": "", ".gitignore": "data/", "data/x": "1"})
    with Network(nodes=1) as network:
        client = network.client()
        with pytest.warns(UserWarning, match=r"not sent: \.env .*data/ .*include=\[PATH\]"):
            client.jobs.submit(["true"], folder=folder)
        client.jobs.submit(["true"], folder=folder, include=[".env"], gitignore=False)
        everything = client.content.send(folder, include=[".env"], gitignore=False)
        assert everything.left_out == ()
        assert {entry.path for entry in client.content.manifest(everything.manifest).entries} == {
            ".env", ".gitignore", "code.py", "data/x",
        }  # fmt: skip
        with pytest.raises(Misuse, match="include is"):
            client.jobs.submit(["true"], folder=folder, include=".env")
