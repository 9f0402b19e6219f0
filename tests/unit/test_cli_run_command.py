"""What `run` asks for is what its flags say, and what a person hears when the results do not arrive."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from holdfast.blobs.errors import DiskFull
from holdfast.cli import error_output
from holdfast.cli.app import app
from holdfast.cli.commands import arrays, results
from holdfast.cli.commands import run as run_command
from holdfast.cli.watch import array_watch, job_watch
from holdfast.wire.http import AttemptView, JobRequest, JobView

JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="ended", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=100, verdict="succeeded", failure=None, result_sha256="0", result_bytes=0, exit_code=0,
    attempts_made=1, attempts=[AttemptView("att_1.1", "node_1", "ended", 0, 1, 2, None, None)],
)  # fmt: skip
URL = "https://example/x"


class Jobs:
    def __init__(self) -> None:
        self.asked: list[JobRequest] = []
        self.ended = JOB
        self.answers = True

    def submit(self, request: JobRequest, *items: Any, **fields: Any) -> JobView:
        self.asked.append(msgspec.structs.replace(request, **fields))
        if not self.answers:
            raise KeyboardInterrupt
        return JOB

    def results(self, job: str, **rest: Any) -> None:
        raise DiskFull("the disk is full", hint="Make room there.")


class Client:
    """As much of one as `run` uses."""

    def __init__(self) -> None:
        self.jobs = self.arrays = Jobs()
        self.content = self

    def send(self, folder: Path, **rest: Any) -> None:
        raise KeyboardInterrupt

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Client:
    made = Client()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "connect_for_long", lambda *_: made)
    monkeypatch.setattr(job_watch.JobWatch, "until_ended", lambda self: made.jobs.ended)
    return made


def run(*words: str) -> int:
    """The exit code, or that of the error that the front door would show."""
    done = CliRunner().invoke(app, ["run", *words])
    return getattr(done.exception, "exit_code", done.exit_code)


@pytest.mark.spec("J2", "J1", "J6")
def test_every_flag_becomes_the_field_it_names(client: Client) -> None:
    done = run(
        "--detach", "--image", "debian@sha256:abc", "--gpu", "2", "--gpu-memory", "24GiB", "--gpu-model", "H200",
        "--network", "--checkpoint", "--input", "a=job:job_9", "--input", f"b={URL}", "--cpu", "2",
        "--memory", "4GiB", "--disk", "10GiB", "--time-limit", "2h", "--class", "resume", "--", "python3", "train.py",
    )  # fmt: skip

    assert done == 0
    asked = client.jobs.asked[0]
    assert (asked.image, asked.gpus, asked.gpu_memory_mib, asked.gpu_model) == ("debian@sha256:abc", 2, 24576, "H200")
    assert (asked.network, asked.checkpoint_ms, asked.recovery) == (True, 300_000, "resume")
    assert [(i.name, i.job, i.url) for i in asked.inputs] == [("a", "job_9", ""), ("b", "", URL)]
    assert (asked.cpu_milli, asked.memory_mib, asked.disk_mib, asked.time_limit_ms) == (2000, 4096, 10240, 7_200_000)
    assert asked.argv == ["python3", "train.py"]
    assert asked.package == "", "the folder is empty"


@pytest.mark.spec("J6")
def test_an_interval_asks_for_checkpoints_by_itself(client: Client) -> None:
    run("--detach", "--checkpoint-every", "90s", "--", "true")
    run("--detach", "--", "true")
    assert [asked.checkpoint_ms for asked in client.jobs.asked] == [90_000, 0]


@pytest.mark.spec("J10")
def test_results_that_did_not_arrive_are_an_error_of_their_own(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    # when a job succeeded but its results find no room
    with pytest.raises(DiskFull) as caught:
        run_command._see_through(client, JOB, detach=False, results=True, json=False)  # type: ignore[arg-type]

    # then its verdict is said all the same, and how to get them later
    said = capsys.readouterr().err
    assert "the disk is full [disk_full]" in said
    assert "succeeded" in said.splitlines()[-1]
    assert caught.value.hint == "Make room there. Then get them with: holdfast results job_1"


@pytest.mark.spec("J1")
def test_ctrl_c_while_the_folder_is_sent_sends_no_job(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["run", "--", "true"])
    assert done.exit_code == 130
    assert "no job was sent" in done.output
    assert client.jobs.asked == []


@pytest.mark.spec("J1")
def test_ctrl_c_before_anybody_answered_says_that_no_job_was_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "connect_for_long", waits)
    done = CliRunner().invoke(app, ["run", "--", "true"])
    assert isinstance(done.exception, error_output.Interrupted) and str(done.exception) == "no job was sent"


@pytest.mark.spec("J3", "J16")
@pytest.mark.parametrize("flags", [[], ["--array", "items"]], ids=["job", "array"])
def test_ctrl_c_as_soon_as_it_is_sent_says_what_goes_on(
    client: Client, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given what shows a job, which somebody does not wait for
    def is_made(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_watch.JobWatch, "__init__", is_made)
    monkeypatch.setattr(array_watch.ArrayWatch, "__init__", is_made)
    Path("items").write_text("a\n")

    done = CliRunner().invoke(app, ["run", "--no-folder", *flags, "--", "true"])

    assert done.exit_code == 130
    assert "job_1 goes on without you" in done.output and "holdfast stop job_1" in done.output


@pytest.mark.spec("J10", "J16")
@pytest.mark.parametrize("array", [False, True])
def test_ctrl_c_while_results_come_says_how_to_go_on_in_the_same_folder(
    client: Client, array: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def comes(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "results", comes)
    with pytest.raises(typer.Exit) as caught:
        (arrays if array else results).bring(client, "it", "a folder")  # type: ignore[arg-type]
    assert caught.value.exit_code == 130
    assert "continue with: holdfast results it --to 'a folder'\n" in capsys.readouterr().err


@pytest.mark.spec("J1", "J12")
@pytest.mark.parametrize("flags", [[], ["--array", "items"], ["--key", "mine"]], ids=["job", "array", "own key"])
def test_ctrl_c_while_the_job_is_sent_names_the_key_to_ask_again_with(client: Client, flags: list[str]) -> None:
    # given a network that took the job but whose answer is not here yet
    client.jobs.answers = False
    Path("items").write_text("a\nb\n")
    words = ["run", "--no-folder", "--detach", "--class", "never", *flags]

    # when somebody loses patience
    done = CliRunner().invoke(app, [*words, "--", "true"])

    # then nobody says that nothing was sent, and the key that it went under is told
    assert done.exit_code == 130
    assert "may have been sent" in done.output and "no job was sent" not in done.output
    found = re.search(r"--key (\w+)", done.output)
    assert found is not None and found[1] == client.jobs.asked[0].key

    # and whoever asks again with it asks for the very same job
    client.jobs.answers = True
    CliRunner().invoke(app, [*words, "--key", found[1], "--", "true"])
    assert client.jobs.asked[1] == client.jobs.asked[0]


@pytest.mark.spec("J1")
def test_two_runs_without_a_key_are_two_jobs(client: Client) -> None:
    run("--detach", "--", "true")
    run("--detach", "--", "true")
    first, second = (asked.key for asked in client.jobs.asked)
    assert first and second and first != second


@pytest.mark.spec("J10")
def test_ctrl_c_while_results_arrive_says_how_to_go_on(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.jobs, "results", cut)
    assert run("--", "true") == 130
    with pytest.raises(typer.Exit):
        run_command._see_through(client, JOB, detach=False, results=True, json=False)  # type: ignore[arg-type]
    assert "holdfast results job_1" in capsys.readouterr().err


@pytest.mark.spec("J7", "J10")
def test_a_job_that_failed_fails_with_its_own_code_even_if_its_results_are_missing(client: Client) -> None:
    client.jobs.ended = msgspec.structs.replace(JOB, verdict="failed")
    assert run("--", "false") == 1
