"""Completion for a shell: what is written where, and that what a shell then does complains about nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import completion_values
from holdfast.cli.app import app
from holdfast.cli.commands import completion
from holdfast.errors import Misuse

pytestmark = pytest.mark.spec("J3")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, ["completion", *words])


def test_it_says_what_it_wrote_and_a_second_time_changes_nothing(home: Path) -> None:
    # given a .bashrc that ends without a newline, and holds what is no text
    rc, file = home / ".bashrc", home / ".local/share/holdfast/completion.bash"
    rc.write_bytes(b"alias ll='ls -l'\n\xff=1")

    # when completion is installed, then it says what it wrote, and what stood there stands there still
    said = typed("bash").stdout
    assert f"wrote {file}" in said and f"{rc} now reads it" in said and f". {file}" in said
    assert file.read_text() == typed("bash", "--show").stdout
    before = rc.read_bytes()
    assert before.startswith(b"alias ll='ls -l'\n\xff=1\n[ -f ") and before.endswith(b"\n")

    # and once more, it is all there already
    assert f"{rc} reads it already" in typed("bash").stdout
    assert rc.read_bytes() == before


def test_a_line_that_reads_another_place_gives_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed("zsh")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "a b"))
    typed("zsh")
    lines = (home / ".zshrc").read_text().splitlines()
    assert lines == [
        f"[ -f '{home}/a b/holdfast/completion.zsh' ] && . '{home}/a b/holdfast/completion.zsh'  {completion.MARK}"
    ]


FULL = """
import resource, signal, sys
from pathlib import Path
from holdfast.cli.commands import completion

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
completion._read_by(Path(sys.argv[1], ".bashrc"), Path("x"))
"""


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_of_the_users_file_is_lost_where_the_disk_is_full(home: Path, replaced: bool) -> None:
    # given a file that is linked to where its owner keeps such things, readable by nobody else
    kept = home / "kept"
    kept.write_text("alias ll='ls -l'\n" + (f". /elsewhere  {completion.MARK}\n" if replaced else ""))
    kept.chmod(0o600)
    (home / ".bashrc").symlink_to(kept)
    before = kept.read_bytes()

    # when no file may grow any more, then what stood there stands there still
    done = subprocess.run([sys.executable, "-B", "-c", FULL, home], capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stderr
    assert kept.read_bytes() == before and list(home.glob("*.holdfast-new")) == []

    # and with room, the line is there once, and all else is as it was
    typed("bash")
    lines = kept.read_text().splitlines()
    assert (lines[0], len(lines), lines[1].endswith(completion.MARK)) == ("alias ll='ls -l'", 2, True)
    assert (home / ".bashrc").is_symlink() and kept.stat().st_mode & 0o777 == 0o600


def test_who_has_no_home_is_told_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    wrong = typed("bash")
    assert isinstance(wrong.exception, Misuse) and "no home folder" in wrong.exception.says


def test_fish_reads_its_own_folder(home: Path) -> None:
    said = typed("fish").stdout
    assert (home / ".config/fish/completions/holdfast.fish").read_text() == completion.SCRIPTS["fish"]
    assert "now reads it" not in said
    assert sorted(path.name for path in home.iterdir()) == [".config"]


def test_a_shell_that_nobody_knows_is_named(home: Path) -> None:
    wrong = typed("csh")
    assert wrong.exit_code != 0 and "bash, zsh, fish" in str(wrong.exception)
    assert not list(home.iterdir())


def test_the_shell_it_is_typed_in_is_found(home: Path) -> None:
    # given bash, with another shell as the user's own: and a program in between
    program = f"{sys.executable} -c 'from holdfast.cli.commands.completion import _typed_in; print(_typed_in())'"
    env = {**os.environ, "SHELL": "/usr/bin/fish"}
    found = subprocess.run(["bash", "-c", f"env {program}; true"], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "bash"


ASKED = """
. "$1"
COMP_WORDS=(holdfast no) COMP_CWORD=1
_holdfast_completion holdfast
printf '%s,' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("does", "completed"),
    [
        ('printf "node\\nnodes\\n"; echo "a warning" >&2', "node,nodes,"),
        ('echo "Traceback (most recent call last)" >&2; exit 1', ","),
        ('test "$COMP_WORDS" = "holdfast\nno" && test "$COMP_CWORD" = 1 && echo seen', "seen,"),
    ],
)
def test_bash_completes_what_it_hears_and_shows_nothing_else(home: Path, does: str, completed: str) -> None:
    typed("bash")
    program = home / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    file, _ = completion.places("bash")
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ASKED, "bash", str(file)], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (completed, "")


@pytest.mark.parametrize("word", ["a:b", "a@b", "a b", "$(x)", "-x", "", "é", "a;b", "tok_*"])
@pytest.mark.parametrize("kind", ["jobs", "nodes", "tokens"])
def test_what_means_something_to_a_shell_is_not_completed(
    monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    # given a network that calls things by such words, by name and by id
    found = [{"name": word, "id": word, "state": "good"}, {"name": "", "id": "one_1", "state": "good"}]
    monkeypatch.setattr(completion_values, "PATIENCE_S", 60.0)
    monkeypatch.setattr(completion_values, "_asked", lambda path: {"jobs": found} if "jobs" in path else found)

    # then only the other is completed
    assert getattr(completion_values, kind)("") == ["one_1"]
    assert getattr(completion_values, kind)("two") == []
