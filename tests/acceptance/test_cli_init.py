"""`init` and the job file: what a folder suggests, what may stand in the file, and how a mistake in it is told."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from holdfast.cli import job_file
from holdfast.cli.app import app
from holdfast.errors import HoldfastError

PAGE = Path(__file__).parents[2] / "docs" / "job-file.md"
NOT_OF_THE_JOB = {"include", "detach", "no_results", "key", "json", "url", "token_file", "context", "help"}
"""Flags of `run` that are about this one time it is typed, or about where it goes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def holdfast(*words: str, check: int = 0) -> str:
    """What a command says, run in this process, where nobody sits at a terminal."""
    done = CliRunner().invoke(app, list(words))
    code = getattr(done.exception, "exit_code", done.exit_code)
    said = f"{done.output}{done.exception or ''}"
    assert code == check, said
    return said


def written(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "holdfast.toml").read_text())


# --- what a folder suggests ---


@pytest.mark.spec("J1", "J3")
def test_a_training_script_with_requirements_and_data_suggests_all_of_that(folder: Path) -> None:
    (folder / "train_digits.py").write_text("import torch\n")
    (folder / "test_train.py").touch()
    (folder / "requirements.txt").write_text("torch>=2\nnumpy\n")
    (folder / "data").mkdir()

    said = holdfast("init")

    made = written(folder)
    assert made["command"] == ["python3", "train_digits.py"]
    assert made["requirements"] == "requirements.txt"
    assert (made["checkpoint"], made["memory"]) == (True, "4GiB")
    assert made["input"] == {"data": "data"}
    assert "train_digits.py" in said
    # and what was written is a job file
    assert job_file.read_job_file(folder / "holdfast.toml")["input"] == ["data=data"]


@pytest.mark.spec("J1")
def test_a_dockerfile_suggests_an_image_and_a_project_its_dependencies(folder: Path) -> None:
    (folder / "main.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "it"\ndependencies = ["httpx", "msgspec>=0.19"]\n')
    holdfast("init")
    assert written(folder)["requirements"] == "requirements.holdfast.txt"
    assert (folder / "requirements.holdfast.txt").read_text() == "httpx\nmsgspec>=0.19\n"

    (folder / "Dockerfile").write_text("FROM scratch\n")
    holdfast("init", "--force")
    assert written(folder)["dockerfile"] == "Dockerfile"
    assert "requirements" not in written(folder)


@pytest.mark.spec("J1", "J3")
def test_an_empty_folder_gets_a_file_that_runs_and_nothing_is_ever_replaced_unasked(folder: Path) -> None:
    found = json.loads(holdfast("init", "--json"))
    assert found["written"] == ["holdfast.toml"]
    assert written(folder)["command"] == ["echo", "hello"]

    before = (folder / "holdfast.toml").read_text()
    assert "[job_file_exists]" in holdfast("init", "--", "other", check=2)
    assert (folder / "holdfast.toml").read_text() == before

    holdfast("init", "--force", "--", "python3", "-c", 'print("\\"")')
    assert written(folder)["command"] == ["python3", "-c", 'print("\\"")']


# --- what may stand in it ---


@pytest.mark.spec("J1")
def test_every_flag_that_describes_a_job_is_a_key_and_the_page_says_so() -> None:
    # given the flags of `run`
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    flags = {one.name: one.opts[0].lstrip("-") for one in run.params}

    # then each that is about the job is a key, called as the flag is called
    assert {name for name in flags if name not in NOT_OF_THE_JOB} == {key.parameter for key in job_file.KEYS.values()}
    assert all(flags[key.parameter] == name for name, key in job_file.KEYS.items() if name != "command")

    # and the page lists just these, with what they take
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE.read_text().partition("## Keys")[2], re.M)
    assert rows == [(name, key.takes) for name, key in job_file.KEYS.items()]


@pytest.mark.spec("J1")
def test_the_example_on_the_page_is_a_job_file(folder: Path) -> None:
    example = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    (folder / "holdfast.toml").write_text(example)
    said = job_file.read_job_file(folder / "holdfast.toml")
    assert said["argv"] == ["python3", "train.py", "--epochs", "3"]
    assert said["env"] == ["SEED=7"]


@pytest.mark.spec("J7", "J14")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 'x'\ncpuu = 2\n", "line 2: cpuu: there is no such key"),
        ("cpu = 'many'\n", "line 1: cpu: 'many' is not a number of cores"),
        ("# one\n\nmemory = true\n", "line 3: memory: it takes text or a number"),
        ("time_limit = '2h'\n", "line 1: time_limit: there is no such key"),
        ("command = []\n", "line 1: command: it takes a list of words"),
        ("command = 'echo \"'\n", "line 1: command: it cannot be split into words"),
        ("priority = 10\n", "line 1: priority: it takes a whole number from 0 to 9"),
        ("class = 'sometimes'\n", "line 1: class: it takes"),
        ("checkpoint = 'yes'\n", "line 1: checkpoint: it takes true or false"),
        ("[env]\n'A B' = 'x'\n", "line 1: env: 'A B=x' is not a variable assignment"),
        ("name = 'x'\n[input]\ndata = 7\n", "line 2: input: data takes text"),
        ("name = 'x'\nname = 'y'\n", "line 2"),
        ("url = 'https://elsewhere.example'\n", "line 1: url: there is no such key"),
        ("\xff", "not UTF-8"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(folder: Path, text: str, says: str) -> None:
    (folder / "holdfast.toml").write_bytes(text.encode("latin-1"))
    said = holdfast("run", check=78)
    assert says in said
    assert "[bad_job_file]" in said


@pytest.mark.spec("J1", "N6")
@pytest.mark.parametrize(
    "text",
    [
        "folder = '..'",
        "folder = '{above}'",
        "folder = 'way-out'",
        "array = '../items.txt'",
        "array = 'link.txt'",
        "requirements = '../requirements.txt'",
        "dockerfile = '{above}/Dockerfile'",
        "[input]\nk = '../.ssh'",
        "[input]\nk = 'way-out/.ssh'",
        "[input]\ndata = 'data'\nk = '{above}/.ssh/id'",
        "[input]\n'k=../.ssh/id' = 'x'",
        "[input]\nk = 'circle'",
        "[input]\nk = 'job/../../.ssh'",
    ],
)
def test_a_file_that_came_with_the_code_sends_nothing_from_outside_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    # given somebody else's folder, beside what is private
    (clone := tmp_path / "clone").mkdir()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id").touch()
    (clone / "way-out").symlink_to("..")
    (clone / "link.txt").symlink_to("../.ssh/id")
    (clone / "circle").symlink_to("circle")
    monkeypatch.chdir(clone)
    (clone / "holdfast.toml").write_text("command = 'true'\n" + text.format(above=tmp_path))

    # when it is run, then it is refused, and the line is named
    said = holdfast("run", check=78)
    assert "[job_file_outside]" in said
    assert "holdfast.toml, line 2: " in said


@pytest.mark.spec("J1")
def test_what_lies_in_the_folder_of_the_file_or_is_typed_may_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone := tmp_path / "clone").mkdir()
    (clone / "near").symlink_to("src")
    monkeypatch.chdir(clone)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = clone / "holdfast.toml"
    path.write_text(
        f"command = 'true'\nfolder = '{clone}'\narray = '-'\nrequirements = 'src/../r.txt'\n"
        "[input]\na = 'near/x'\nb = 'https://e.example/../x'\nc = 'job:../x'\nd = 's3://b/../../x'\n"
    )
    assert len(job_file.read_job_file(path)["input"]) == 4

    # and a flag may name anything, but a file does not send a home folder even where it lies in one
    path.write_text("command = 'true'\n")
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    typed = run.make_context("run", ["--folder", "..", "--input", "k=../k"]).params
    assert (typed["folder"], list(typed["input"])) == ("..", ["k=../k"])
    path.write_text("folder = '.'\n")
    monkeypatch.setenv("HOME", str(clone))
    with pytest.raises(HoldfastError) as caught:
        job_file.read_job_file(path)
    assert caught.value.code == "job_file_outside"


@pytest.mark.spec("J1")
def test_a_flag_overrules_what_contradicts_it_in_the_file(folder: Path) -> None:
    # given a file that names requirements, and a folder
    (folder / "holdfast.toml").write_text('command = "true"\nrequirements = "requirements.txt"\nno-folder = true\n')
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]

    # when another way to the same is typed
    typed = run.make_context("run", ["--image", "debian", "--folder", "."]).params

    # then the file's way does not count, and the rest does
    assert (typed["image"], typed["requirements"]) == ("debian", None)
    assert (typed["folder"], typed["no_folder"]) == (".", False)
    assert typed["argv"] == ["true"]

    # and a file without a command is refused
    (folder / "holdfast.toml").write_text("cpu = 1\n")
    with pytest.raises(HoldfastError, match="has no command"):
        run.make_context("run", [])
