"""The install script installs, upgrades and removes, touches nothing that is not its own, and says what is wrong."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import DEPLOY, ROOT, lend_packages

import holdfast

pytestmark = [pytest.mark.spec("N1", "N12"), pytest.mark.xdist_group("wheel")]  # it is built once

SCRIPT = DEPLOY / "install.sh"
QUICK = {"PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "1", "PIP_NO_DEPS": "1"}
"""Its packages are lent, so nothing of them need be looked through."""
SHELL_SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *DEPLOY.glob("*.sh")])


class Machine:
    """Folders that stand for those of a machine, and the script run on them."""

    def __init__(self, root: Path) -> None:
        self.prefix, self.bin = root / "opt" / "holdfast", root / "bin"
        self.units, self.settings = root / "units", root / "etc"

    def run(self, *words: str, code: int = 0) -> str:
        places = ["--prefix", self.prefix, "--bin", self.bin, "--unit-dir", self.units, "--settings", self.settings]
        done = subprocess.run(
            ["sh", SCRIPT, *places, "--python", sys.executable, "--no-index", *words],
            capture_output=True, text=True, timeout=120, env=os.environ | QUICK,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def lend(self) -> None:
        """An environment that finds its packages here: nothing is downloaded."""
        self.prefix.mkdir(parents=True)
        (self.prefix / ".installed-by-holdfast").touch()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.prefix], check=True)
        lend_packages(self.prefix)


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
    machine.lend()

    # When it is run with a wheel and both services
    said = machine.run("--wheel", str(wheel), "--service", "node", "--service", "orchestrator")

    # Then there is a command, and units that name it
    assert f"holdfast {holdfast.__version__}" in said
    shown = subprocess.run([machine.bin / "holdfast", "version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith(f"holdfast {holdfast.__version__} ")
    text = (machine.units / "holdfast-node.service").read_text()
    assert f"ExecStart={machine.prefix}/bin/holdfast node" in text
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
