"""The install script installs, upgrades and removes, touches nothing that is not its own, and says what is wrong."""

import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from shipped import DEPLOY, ROOT

import holdfast

pytestmark = [pytest.mark.spec("N1", "N12"), pytest.mark.xdist_group("wheel")]  # it is built once

SCRIPT = DEPLOY / "install.sh"
QUICK = {"PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "1", "PIP_NO_DEPS": "1"}
"""Its packages are lent, so nothing of them need be looked through."""
LENDING_PYTHON = """#!/bin/sh
# Python, whose new environments find their packages here: nothing is downloaded.
if [ "$1 $2" = "-m venv" ]; then
    {python} -m venv --without-pip "$3"
    for folder in "$3"/lib/python3*/site-packages; do echo {packages} >"$folder/lent.pth"; done
    exit
fi
exec {python} "$@"
"""
SHELL_SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *DEPLOY.glob("*.sh")])


class Machine:
    """Folders that stand for those of a machine, and the script run on them."""

    def __init__(self, root: Path) -> None:
        self.prefix, self.bin = root / "opt" / "holdfast", root / "bin"
        self.units, self.settings = root / "units", root / "etc"
        self.python = root / "python"
        self.python.write_text(LENDING_PYTHON.format(python=sys.executable, packages=sysconfig.get_paths()["purelib"]))
        self.python.chmod(0o755)

    def run(self, *words: str, code: int = 0) -> str:
        places = ["--prefix", self.prefix, "--bin", self.bin, "--unit-dir", self.units, "--settings", self.settings]
        done = subprocess.run(
            ["sh", SCRIPT, *places, "--python", self.python, "--no-index", *words],
            capture_output=True, text=True, timeout=120, env=os.environ | QUICK,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def releases(self) -> set[str]:
        return {path.name for path in (self.prefix / "releases").iterdir()}

    @property
    def current(self) -> str:
        return (self.prefix / "current").resolve().name


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_a_linter_finds_nothing_in_the_scripts(script: Path) -> None:
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


def test_the_fresh_machine_is_given_the_commands_that_the_readme_prints() -> None:
    listed = subprocess.run(
        [ROOT / "scripts" / "fresh_machine.sh", "--list"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split("\n")[:-1] == ["make demo", "make test"]


def test_it_installs_upgrades_and_removes(wheel: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    # When it is run with a wheel and both services
    said = machine.run("--wheel", str(wheel), "--service", "node", "--service", "orchestrator")

    # Then there is a command, and units that name it
    assert f"holdfast {holdfast.__version__}" in said
    shown = subprocess.run([machine.bin / "holdfast", "version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith(f"holdfast {holdfast.__version__} ")
    text = (machine.units / "holdfast-node.service").read_text()
    assert f"ExecStart={machine.prefix}/current/bin/holdfast node" in text
    assert f"EnvironmentFile={machine.settings}/node.env" in text
    assert stat.S_IMODE((machine.settings / "node.env").stat().st_mode) == 0o600

    # When someone has written settings, and it is run again
    (machine.settings / "node.env").write_text("ORCHESTRATOR_ADDRESS=here:7421\n")
    machine.run("--wheel", str(wheel), "--service", "node")

    # Then they stay
    assert (machine.settings / "node.env").read_text() == "ORCHESTRATOR_ADDRESS=here:7421\n"

    # When it is asked to take everything away, then settings stay until they are to go as well
    machine.run("--uninstall")
    assert not machine.prefix.exists() and not (machine.bin / "holdfast").is_symlink()
    assert not list(machine.units.iterdir()) and (machine.settings / "node.env").exists()
    machine.run("--uninstall", "--purge")
    assert not machine.settings.exists()


def test_an_upgrade_leaves_what_runs_on_the_files_it_was_started_from(wheel: Path, tmp_path: Path) -> None:
    # Given an installed release, and a process that runs from it
    machine = Machine(tmp_path)
    machine.run("--wheel", str(wheel), "--extras", "postgres,neural")
    assert machine.current == "1"
    python = machine.prefix / "current" / "bin" / "holdfast"
    started_by = python.read_text().splitlines()[0].removeprefix("#!")
    assert started_by.startswith(f"{machine.prefix}/releases/1/"), "through the link it would change under a process"
    with subprocess.Popen([started_by, "-c", "input()"], stdin=subprocess.PIPE) as running:
        # When it is upgraded
        machine.run("--wheel", str(wheel))

        # Then the command is the new one, and the one before is kept
        assert (machine.current, machine.releases) == ("2", {"1", "2"})
        assert os.readlink(machine.bin / "holdfast") == f"{machine.prefix}/current/bin/holdfast"

        # When it is upgraded again, then what the process runs from is still there
        machine.run("--wheel", str(wheel))
        assert (machine.current, machine.releases) == ("3", {"1", "2", "3"})
        assert running.stdin is not None
        running.stdin.close()
        running.wait(60)

    # When a wheel cannot be installed, then nothing has changed
    (broken := tmp_path / wheel.name).write_bytes(b"no wheel")
    assert "pip could not install" in machine.run("--wheel", str(broken), code=1)
    assert (machine.current, machine.releases) == ("3", {"1", "2", "3"})

    # When it is upgraded once more, then what nothing runs from has gone, but for the one before
    machine.run("--wheel", str(wheel))
    assert (machine.current, machine.releases) == ("4", {"3", "4"})
    assert (machine.prefix / "current" / "extras").read_text() == "postgres,neural\n", "an upgrade lost the extras"


def test_a_purge_takes_its_own_settings_and_no_others(tmp_path: Path) -> None:
    # Given a folder of settings with the script's files, and others
    machine = Machine(tmp_path)
    (machine.settings / "folder").mkdir(parents=True)
    for name in ("orchestrator.env", "node.env", "passwd", "folder/file"):
        (machine.settings / name).write_text("mine\n")

    # When everything is to go, then the others stay
    assert "holds other files" in machine.run("--uninstall", "--purge")
    assert {path.name for path in machine.settings.iterdir()} == {"passwd", "folder"}
    assert (machine.settings / "folder" / "file").read_text() == "mine\n"


def test_what_is_not_its_own_stays(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.prefix.mkdir(parents=True)
    (machine.prefix / "diary.txt").write_text("mine\n")
    assert "was not made by this script" in machine.run(code=1)
    assert "was not made by this script" in machine.run("--uninstall", code=1)
    assert (machine.prefix / "diary.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--wheel", "/nowhere/holdfast.whl"], "there is no wheel at /nowhere/holdfast.whl"),
        (["--service", "gateway"], "there is no service gateway"),
        (["--nonsense"], "there is no option --nonsense"),
        (["--prefix", "relative"], "not an absolute path"),
        (["--extras", "a;rm"], "extras are names"),
        (["--python", "/bin/false"], "needs 3.11 or newer"),
        (["--python", "no-such-python"], "there is no no-such-python"),
        (["--wheel"], "--wheel takes a value"),
        ([], "it is not said what to install"),
    ],
)
def test_a_mistake_is_named(words: list[str], said: str, tmp_path: Path) -> None:
    assert said in Machine(tmp_path).run(*words, code=1)
    assert not (tmp_path / "opt").exists()


def test_its_help_names_every_option() -> None:
    help_text = subprocess.run(["sh", SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    lines = [line.strip() for line in SCRIPT.read_text().splitlines()]
    taken = {line.partition(")")[0] for line in lines if line.startswith("--") and ";;" in line}
    assert len(taken) > 10
    for option in {word for words in taken for word in words.split(" | ") if word.startswith("--")}:
        assert option in help_text
