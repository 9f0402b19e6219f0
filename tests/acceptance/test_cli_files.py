"""Folders, inputs and results against a real network: what goes up, what the job sees, what comes back."""

import contextlib
import hashlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.xdist_group("cli-files")

SMALL = ("--memory", "64MiB", "--disk", "64MiB")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("files")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant")
        yield network


@pytest.fixture(scope="module")
def maker(network: LocalNetwork, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that made two files; its results are still on the network."""
    script = "mkdir out; echo made > out/small; head -c 6000000 /dev/urandom > out/large; echo printed"
    cwd = tmp_path_factory.mktemp("maker")
    done = network.cli(
        "run", *SMALL, "--name", "maker", "--no-folder", "--no-results", "--json", "--", "sh", "-c", script, cwd=cwd,
        check=0,
    )  # fmt: skip
    assert list(cwd.iterdir()) == [], "--no-results leaves them where they are"
    return json.loads(done.stdout)["job"]["id"]


def parsed(network: LocalNetwork, *words: str, cwd: Path | None = None) -> Any:
    return json.loads(network.cli(*words, check=0, cwd=cwd).stdout)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.spec("J1", "N5")
def test_secrets_and_ignored_files_stay_here_unless_they_are_named(network: LocalNetwork, tmp_path: Path) -> None:
    # given a project with a secret, with data that Git ignores, and with an environment of this machine
    files = {
        ".env": "PASSWORD=x",
        ".gitignore": "data/\n",
        "data/big": "x" * 5000,
        "venv/bin/python": "",
        "code.sh": "ls -A",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    # when it is sent, then they stay here, and one line says so
    done = network.cli("run", *SMALL, "--no-results", "--", "sh", "code.sh", cwd=tmp_path, check=0)
    assert done.stdout.split() == [".gitignore", "code.sh"]
    said = [line for line in done.stderr.splitlines() if "not sent" in line]
    assert said == [
        "-- not sent: .env (10 B; is secret by its name), venv/ (was built for this machine), "
        "data/ (4.9 KiB; is ignored by .gitignore); --include PATH sends a file all the same"
    ]

    # and whoever means them says so
    meant = ["--include", ".env", "--include", "venv/bin/python"]
    done = network.cli(
        "run", *SMALL, "--no-results", "--no-gitignore", *meant, "--", "sh", "code.sh", cwd=tmp_path, check=0
    )
    assert done.stdout.split() == [".env", ".gitignore", "code.sh", "data", "venv"]
    assert "not sent" not in done.stderr
    refused = network.cli("run", *SMALL, "--include", "nothing.txt", "--", "sh", "code.sh", cwd=tmp_path, check=2)
    assert "nothing.txt" in refused.stderr


@pytest.mark.spec("J1", "J10")
def test_the_folder_goes_up_and_what_is_made_comes_back(network: LocalNetwork, tmp_path: Path) -> None:
    # given a folder with code, with something large that is ignored, and with an ignore file
    (tmp_path / "code.sh").write_text("ls; wc -c < data/in; mkdir made; tr a b < data/in > made/out; echo err >&2")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in").write_text("a" * 5000)
    (tmp_path / "junk").write_text("x")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".holdfastignore").write_text("junk\n")

    # when a command runs in it
    words = ["run", *SMALL, "--name", "both ways", "--", "sh", "code.sh"]
    done = network.cli(*words, cwd=tmp_path, check=0)

    # then it saw the folder without what is ignored
    assert done.stdout == "code.sh\ndata\n5000\n"

    # and what it made is here, with what it printed and how it ended, and the screen says where
    results = tmp_path / "results" / "both-ways"
    found = content(results)
    assert sorted(found) == ["made/out", "result.json", "stderr.log", "stdout.log"]
    assert found["made/out"] == b"b" * 5000
    assert found["stdout.log"] == done.stdout.encode()
    assert found["stderr.log"] == b"err\n"
    record = json.loads(found["result.json"])
    assert record["complete"] is True
    assert record["output"]["stdout"]["sha256"] == hashlib.sha256(found["stdout.log"]).hexdigest()
    assert "-- results/both-ways/: 1 file (4.9 KiB), stdout.log, stderr.log" in done.stderr

    # and the network was told that it has arrived
    view = network.client().jobs.get(record["job"])
    assert view.files is not None and view.files.received

    # when it runs again, then nothing is sent twice, and the results of the first stay as they are
    again = network.cli(*words, cwd=tmp_path, check=0)
    assert "all there already" in again.stderr
    assert content(results) == found
    assert len(list((tmp_path / "results").iterdir())) == 2


@pytest.mark.spec("J1")
def test_a_folder_is_sent_by_name_or_not_at_all(network: LocalNetwork, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "there").touch()

    named = network.cli("run", *SMALL, "--no-results", "--folder", "sub", "--", "ls", cwd=tmp_path, check=0)
    none = network.cli("run", *SMALL, "--no-results", "--no-folder", "--", "ls", cwd=tmp_path, check=0)

    assert named.stdout == "there\n"
    assert none.stdout == ""


@pytest.mark.spec("J1")
def test_what_nobody_means_is_refused_with_what_to_do(network: LocalNetwork, tmp_path: Path) -> None:
    before = len(network.client().jobs.list(limit=1000).jobs)

    home = network.cli("run", "--", "true", cwd=tmp_path, env={"HOME": str(tmp_path)}, check=65)
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2 << 30)
    large = network.cli("run", "--", "true", cwd=tmp_path, check=65)
    outside = network.cli("run", "--folder", ".", "--requirements", "../away.txt", "--", "true", cwd=tmp_path, check=2)
    missing = network.cli("run", "--folder", ".", "--dockerfile", "Dockerfile", "--", "true", cwd=tmp_path, check=2)
    inputs = network.cli("run", "--no-folder", "--input", "nonsense", "--", "true", cwd=tmp_path, check=2)

    assert "[folder_is_home]" in home.stderr
    assert "[folder_too_large]" in large.stderr
    for done in (home, large):
        assert all(way in done.stderr for way in ("--folder", "--no-folder"))
    assert ".holdfastignore" in large.stderr  # which would not help with a home
    assert "outside" in outside.stderr
    assert "Dockerfile is not a file" in missing.stderr
    assert "NAME=WHAT" in inputs.stderr
    for done in (home, large, outside, missing, inputs):
        assert "Traceback" not in done.stderr
    assert len(network.client().jobs.list(limit=1000).jobs) == before, "nothing was submitted"


@pytest.mark.spec("J2", "J13")
def test_what_no_machine_here_has_is_refused_by_name(network: LocalNetwork) -> None:
    # given machines without such a GPU, when jobs ask for it in every way there is
    gpu = network.cli(
        "run", "--no-folder", "--gpu", "1", "--gpu-memory", "24GiB", "--gpu-model", "H200", "--network", "--checkpoint",
        "--", "true", check=65,
    )  # fmt: skip
    image = network.cli("run", "--no-folder", "--image", "not an image", "--", "true", check=65)

    assert "[no_fit]" in gpu.stderr
    assert "image is 'not an image'" in image.stderr


@pytest.mark.spec("J1")
def test_a_job_reads_files_folders_and_what_an_earlier_job_made(
    network: LocalNetwork, maker: str, tmp_path: Path
) -> None:
    # given a file, a folder and an earlier job
    (tmp_path / "one.csv").write_text("1\n")
    (tmp_path / "two.csv").write_text("2\n")
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "deep" / "x").write_text("x\n")

    # when a job names them as inputs
    done = network.cli(
        "run", *SMALL, "--no-folder", "--input", f"file={tmp_path}/one.csv", "--input", f"folder={tmp_path}/set",
        "--input", f"earlier=job:{maker}", "--", "sh", "-c",
        "cd inputs; find . -type f | sort; cat file/one.csv folder/deep/x earlier/out/small; touch inside",
        check=0,
    )  # fmt: skip

    # then it finds each under its name, and only what it made itself comes back
    files = ["./earlier/out/large", "./earlier/out/small", "./file/one.csv", "./folder/deep/x"]
    assert done.stdout.split() == [*files, "1", "x", "made"]
    assert ": no files, stdout.log" in done.stderr


@pytest.mark.spec("J1", "N13")
def test_an_address_reaches_the_machine_which_fetches_nothing_from_its_own_network(network: LocalNetwork) -> None:
    url = f"http://127.0.0.1:9/x#sha256={'0' * 64}"
    done = network.cli("run", *SMALL, "--no-folder", "--attempts", "1", "--input", f"a={url}", "--", "true", check=1)
    assert "data: " in done.stderr
    assert "own network" in done.stderr


@pytest.mark.spec("J1")
def test_an_earlier_job_that_has_nothing_to_give_is_named(network: LocalNetwork) -> None:
    # given a job that made nothing, one that failed, and one that still runs
    client = network.client()
    fields = {"memory_mib": 64, "disk_mib": 16}
    empty = client.jobs.run(["true"], **fields, timeout_s=100).id
    failed = client.jobs.run(["false"], **fields, timeout_s=100, check=False).id
    running = client.jobs.submit(["sleep", "600"], **fields).id

    for job, says in ((empty, "made no files"), (failed, "is failed"), (running, "is still")):
        done = network.cli("run", "--no-folder", "--input", f"a=job:{job}", "--", "true", check=65)
        assert "[no_files]" in done.stderr
        assert says in done.stderr
    unknown = network.cli("run", "--no-folder", "--input", "a=job:job_00000000000000", "--", "true", check=66)
    assert "[not_found]" in unknown.stderr
    client.jobs.stop(running)


@pytest.mark.spec("J6")
def test_a_job_with_checkpoints_has_a_folder_for_them_and_the_library(network: LocalNetwork) -> None:
    # given a program that saves its state by the library, in a job that was sent with checkpoints and in one without
    code = "from holdfast import checkpoint as c; print(c.load('none')); c.save('one'); print(c.load())"
    words = ("--no-folder", "--no-results", "--", "python3", "-c", code)
    with_ = network.cli("run", *SMALL, "--checkpoint-every", "1s", *words, check=0)
    without = network.cli("run", *SMALL, *words, check=0)

    # then the first finds what it saved, and the second is told why it does not
    assert with_.stdout == "none\none\n"
    assert without.stdout == "none\nNone\n"
    assert "--checkpoint" in without.stderr


@pytest.mark.spec("J10")
def test_results_can_be_brought_later_again_and_elsewhere(network: LocalNetwork, maker: str, tmp_path: Path) -> None:
    # when the results of a job are asked for by its name
    said = network.cli("results", "maker", cwd=tmp_path, check=0).stdout
    assert said == "results/maker/: 2 files (5.7 MiB), stdout.log, stderr.log\n"
    first = content(tmp_path / "results" / "maker")
    assert first["out/small"] == b"made\n"

    # and again, after one file was lost and another damaged
    (tmp_path / "results" / "maker" / "out" / "small").unlink()
    with (tmp_path / "results" / "maker" / "out" / "large").open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"damage")
    again = parsed(network, "results", maker, "--json", cwd=tmp_path)

    # then all is whole once more; and a third time nothing is moved
    assert content(tmp_path / "results" / "maker") == first
    assert again["moved"] > 0
    assert parsed(network, "results", maker, "--json", cwd=tmp_path)["moved"] == 0

    # and they can be put into an empty folder of one's choice, but not among other things
    other = parsed(network, "results", maker, "--to", str(tmp_path / "other"), "--json", cwd=tmp_path)
    assert other["files"] == 2
    assert content(tmp_path / "other")["out/large"] == first["out/large"]
    mixed = network.cli("results", maker, "--to", str(tmp_path), cwd=tmp_path, check=73)
    assert "[in_the_way]" in mixed.stderr


@pytest.mark.spec("J10")
def test_a_job_that_runs_has_no_results_yet(network: LocalNetwork) -> None:
    job = network.client().jobs.submit(["sleep", "600"], memory_mib=64, disk_mib=16).id
    done = network.cli("results", job, check=75)
    assert "[not_ended]" in done.stderr
    assert f"holdfast logs -f {job}" in done.stderr
    network.client().jobs.stop(job)


@pytest.mark.spec("J12")
def test_a_job_can_be_run_again_by_its_id(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job with a folder
    (tmp_path / "word").write_text("hello\n")
    first = parsed(
        network, "run", *SMALL, "--name", "first", "--json", "--", "sh", "-c", "cat word; date > when", cwd=tmp_path
    )
    job = first["job"]["id"]
    (tmp_path / "word").write_text("changed\n")

    # when it is run again, watched and detached
    watched = network.cli("rerun", job, cwd=tmp_path, check=0)
    kept = parsed(network, "rerun", job, "--json", "--no-results", cwd=tmp_path)
    detached = network.cli("rerun", job, "--detach", cwd=tmp_path, check=0).stdout.strip()

    # then each is a new job, on the folder as it was
    assert watched.stdout == "hello\n"
    assert kept["results"] is None
    assert kept["job"]["result_sha256"] == first["job"]["result_sha256"]
    ended = network.client().jobs.wait(detached, timeout_s=100)
    assert len({job, kept["job"]["id"], ended.id}) == 3
    assert ended.name == "first"
    assert "[not_found]" in network.cli("rerun", "job_00000000000000", check=66).stderr


@pytest.mark.spec("J12", "J14")
def test_running_again_under_one_key_is_one_job(network: LocalNetwork, maker: str) -> None:
    jobs = network.client().jobs
    once, twice, other = jobs.rerun(maker, key="k"), jobs.rerun(maker, key="k"), jobs.rerun(maker)
    assert once.id == twice.id != other.id
    assert maker not in (once.id, other.id)


@pytest.mark.spec("J3")
def test_on_a_terminal_there_are_bars_and_a_status_line(network: LocalNetwork, tmp_path: Path) -> None:
    # given a folder that takes a moment to send
    (tmp_path / "data").write_bytes(os.urandom(24_000_000))
    words = [
        "run",
        "--memory",
        "64MiB",
        "--disk",
        "256MiB",
        "--name",
        "shown",
        "--",
        "sh",
        "-c",
        "cat data > copy; sleep 1",
    ]

    # when the command runs in a terminal
    code, screen = in_a_terminal(network, words, tmp_path)

    # then there were bars with bytes and speed both ways, and a line for where it stood
    assert code == 0, screen
    assert "sending" in screen and "/s" in screen and "━" in screen
    assert "fetching the results" in screen
    assert "\r\x1b[K" in screen
    assert "results/shown/: 1 file" in screen
    # and the last line, as it stands, is the verdict
    assert "succeeded" in screen.splitlines()[-1]


def in_a_terminal(network: LocalNetwork, words: list[str], cwd: Path) -> tuple[int, str]:
    """The exit code of a command that has a terminal, and all that was written to it."""
    ours, theirs = pty.openpty()
    env = network.environment({"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"})
    command = [sys.executable, "-m", "holdfast.cli", *words]
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = bytearray()
    with contextlib.suppress(OSError):  # how a terminal says that nobody is at its other end
        while data := os.read(ours, 65536):
            screen += data
    os.close(ours)
    return process.wait(120), screen.decode(errors="replace")


@pytest.mark.spec("N3")
def test_flags_of_place_work_here_too(network: LocalNetwork, maker: str, tmp_path: Path) -> None:
    url, token = network.client().url, str(network.home / "orchestrator" / "admin.token")
    env = {"HOLDFAST_HOME": str(tmp_path / "home")}
    network.cli("results", maker, "--url", url, "--token-file", token, cwd=tmp_path, env=env, check=0)
    network.cli("rerun", maker, "--detach", "--url", url, "--token-file", token, cwd=tmp_path, env=env, check=0)
    nobody = network.cli("results", maker, "--url", "http://127.0.0.1:1", cwd=tmp_path, check=69)
    assert "[unreachable]" in nobody.stderr
