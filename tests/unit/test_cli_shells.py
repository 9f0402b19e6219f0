"""Completion for a shell: what is written where, and that what a shell then does complains about nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import completing, shells
from holdfast.cli.frame import app

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
        f"[ -f '{home}/a b/holdfast/completion.zsh' ] && . '{home}/a b/holdfast/completion.zsh'  {shells.MARK}"
    ]


def test_fish_reads_its_own_folder(home: Path) -> None:
    said = typed("fish").stdout
    assert (home / ".config/fish/completions/holdfast.fish").read_text() == shells.SCRIPTS["fish"]
    assert "now reads it" not in said
    assert sorted(path.name for path in home.iterdir()) == [".config"]


def test_a_shell_that_nobody_knows_is_named(home: Path) -> None:
    wrong = typed("csh")
    assert wrong.exit_code != 0 and "bash, zsh, fish" in str(wrong.exception)
    assert not list(home.iterdir())


def test_the_shell_it_is_typed_in_is_found(home: Path) -> None:
    # given bash, with another shell as the user's own: and a program in between
    program = f"{sys.executable} -c 'from holdfast.cli.shells import _typed_in; print(_typed_in())'"
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
    file, _ = shells.places("bash")
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ASKED, "bash", str(file)], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (completed, "")


@pytest.mark.parametrize("name", ["a:b", "a@b", "a b", "$(x)", "-x", "", "é", "a;b"])
def test_names_that_mean_something_to_a_shell_are_not_completed(name: str) -> None:
    assert completing._fitting("", [{"name": name, "id": "node_1"}]) == ["node_1"]
