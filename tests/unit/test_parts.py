"""The distribution has a name of its own: another one that is called `holdfast` is told from ours, and hints name what
can really be installed (SPEC J8)."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import holdfast
from holdfast import parts

pytestmark = pytest.mark.spec("J8")


def test_the_command_refuses_to_start_among_the_files_of_another_package(tmp_path: Path) -> None:
    # given an environment where a package of the same import name was installed after ours
    source = Path(holdfast.__file__).parent
    shutil.copytree(source, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "holdfast" / "__init__.py").write_text('"""Somebody else\'s."""\n')

    # when the command is started, then it says what is wrong and what to do, whatever was asked for
    for words in (["version"], ["--help"], ["up"]):
        program = f"import sys; sys.argv = {['holdfast', *words]!r}; from holdfast.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 78, done
        assert "pip uninstall holdfast holdfast-compute" in done.stderr and not done.stdout


def test_ours_is_not_mixed_up() -> None:
    assert parts.mixed_up() == ""


@pytest.mark.parametrize("extra", ["neural", "postgres"])
def test_a_hint_names_the_libraries_of_an_extra_and_no_package_of_a_stranger(extra: str) -> None:
    hint = parts.install_hint(extra)
    wanted = [one for one in metadata.requires(parts.DISTRIBUTION) or [] if extra in one.partition("extra")[2]]
    assert len(wanted) == hint.count("'") // 2 and "holdfast" not in hint.partition(" -m ")[2]
    for one in wanted:
        assert one.partition(";")[0].strip() in hint


def test_without_metadata_a_hint_names_our_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert parts.install_hint("neural").endswith(" -m pip install 'holdfast-compute[neural]'")
