"""`holdfast check`: what a job would meet, asked before it is sent; and a frozen machine that is found out."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import typer

from holdfast.cli.app import app
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = pytest.mark.xdist_group("cli-check")

SMALL = {"cpu_milli": 500, "memory_mib": 64, "disk_mib": 16}
DOES_NOT_ANSWER, WOULD_WAIT = 69, 75


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("check")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant", flags=["--cpu", "1"])
        yield network


def well(network: LocalNetwork, *words: str, cwd: Path | None = None) -> str:
    """What a check says of a job that would run now. It is asked again where a busy machine answered its question later
    than a person at the prompt would wait."""

    def asked() -> CompletedProcess[str] | None:
        done = network.cli(*words, cwd=cwd)
        late = done.returncode == DOES_NOT_ANSWER and "does not answer" in done.stdout
        assert done.returncode == 0 or late, done.stdout + done.stderr
        return done if done.returncode == 0 else None

    done = wait_for(asked, "the machine to answer in time")
    assert done is not None
    return done.stdout


def idle(network: LocalNetwork) -> None:
    """A job that was stopped has ended before its machine has room again."""
    wait_for(lambda: not network.client().nodes.get("ant").attempts, "the machine to be idle")


@pytest.mark.spec("H5", "J15", "S1")
def test_a_job_that_would_run_now_is_told_where_why_and_for_how_long(network: LocalNetwork) -> None:
    client = network.client()
    before = len(client.jobs.list().jobs)
    # given that nothing like it has run, then no end is promised
    like = ("--memory", "64MiB", "--disk", "16MiB")
    first = well(network, "check", "--cpu", "0.5", *like, "--name", "nap", "--", "true")
    assert "would run now" in first and "no estimate" in first
    assert len(client.jobs.list().jobs) == before
    # when some have run, and what was foretold of one of them is judged: one in a while is
    ran = 0

    def judged() -> str:
        nonlocal ran
        client.jobs.run(["true"], name="nap", **SMALL, timeout_s=100)
        ran += 1
        idle(network)
        told = well(network, "check", "--cpu", "0.5", *like, "--name", "nap", "--", "true")
        return told if ran >= 3 and "target: 4 of 5" in told else ""

    # then the machine is named, asked, and the estimate says from what it comes and how often such were right
    told = wait_for(judged, "an estimate to be judged")
    assert "ant" in told and "last heard" in told and "cost" in told
    assert f"the last {ran} of this name" in told
    view = json.loads(well(network, "check", "--json", "--cpu", "0.5", *like, "--name", "nap", "--", "true"))
    assert view["verdict"] == "now" and view["probe"]["answered"] and view["estimate"]["runs"] == ran
    assert len(client.jobs.list().jobs) == before + ran


@pytest.mark.spec("H5", "J3")
def test_a_line_of_run_is_asked_about_as_it_stands(network: LocalNetwork, tmp_path: Path) -> None:
    # given every flag of `run` that is about sending, naming what is not there
    sending = ["--folder", "none", "--input", "a=none", "--array", "none", "--key", "k", "--detach", "--no-results"]
    small = ["--cpu", "0.5", "--memory", "64MiB", "--disk", "16MiB"]
    # then it changes nothing, and nothing is sent
    idle(network)
    before = len(network.client().jobs.list().jobs)
    assert "would run now" in well(network, "check", *sending, *small, "--", "true", cwd=tmp_path)
    assert "would run now" in well(network, "check", "--no-folder", *small, "--", "true", cwd=tmp_path)
    assert len(network.client().jobs.list().jobs) == before
    # also not from a job file
    (tmp_path / "holdfast.toml").write_text(
        'command = ["true"]\nfolder = "none"\narray = "none"\ncpu = "0.5"\nmemory = "64MiB"\ndisk = "16MiB"\n'
        '[input]\na = "none"\n'
    )
    assert "would run now" in well(network, "check", cwd=tmp_path)
    # and no flag of `run` is unknown to `check`
    both = {name: _flags(name) for name in ("run", "check")}
    assert both["run"] - both["check"] == set()


def _flags(command: str) -> set[str]:
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {spelling for parameter in found.params for spelling in parameter.opts}


@pytest.mark.spec("H5", "J13")
def test_what_would_wait_and_what_never_fits_have_their_own_exit_codes(network: LocalNetwork) -> None:
    client = network.client()
    never = network.cli("check", "--cpu", "64", "--", "true")
    assert never.returncode == 65 and "can never run here" in never.stdout and "cpu 1000 of 64000" in never.stdout
    assert (
        network.cli("check", "--gpu", "1", "--gpu-model", "H200", "--gpu-memory", "80GiB", "--", "x").returncode == 65
    )
    holder = client.jobs.submit(["sleep", "600"], cpu_milli=1_000, memory_mib=64, disk_mib=16)
    network.node_running(holder.id)
    waits = network.cli("check", "--memory", "64MiB", "--priority", "9", "--", "true")
    assert waits.returncode == WOULD_WAIT and "would wait" in waits.stdout
    assert "cpu: 0 free of 1000 wanted" in waits.stdout
    client.jobs.stop(holder.id)
    idle(network)


@pytest.mark.spec("H5")
def test_every_flag_of_run_that_a_machine_could_mind_is_taken(network: LocalNetwork, tmp_path: Path) -> None:
    assert network.orchestrator is not None
    url, token = network.orchestrator.url, str(network.home / "orchestrator" / "admin.token")
    well(
        network, "check", "--network", "--time-limit", "5m", "--queue-limit", "1h", "--class", "resume",
        "--attempts", "2", "--checkpoint", "--checkpoint-every", "1m", "--env", "A=b", "--requirements",
        "requirements.txt", "--memory", "64MiB", "--disk", "16MiB", "--url", url, "--token-file", token, "--", "true",
    )  # fmt: skip
    # a machine without containers never serves an image, whether it is named or built
    assert network.cli("check", "--image", "busybox", "--", "true").returncode == 65
    assert network.cli("check", "--dockerfile", "Dockerfile", "--", "true").returncode == 65
    # and where there is a job file, it says what is asked about
    (tmp_path / "holdfast.toml").write_text('command = ["true"]\nmemory = "64MiB"\n')
    well(network, "check", cwd=tmp_path)
    assert network.cli("check", "--memory", "2TiB", cwd=tmp_path).returncode == 65


@pytest.mark.spec("H5")
def test_one_machine_can_be_asked_about_and_an_unknown_one_is_named(network: LocalNetwork) -> None:
    assert "ant" in well(network, "check", "--node", "ant", "--memory", "64MiB", "--", "true")
    unknown = network.cli("check", "--node", "cow", "--", "true")
    assert unknown.returncode == 66 and "there is no node 'cow'" in unknown.stderr


@pytest.mark.spec("H5", "H1")
def test_a_frozen_machine_is_found_out_and_a_watch_says_when_it_is_well_again(
    network: LocalNetwork, tmp_path: Path
) -> None:
    # given somebody who watches an idle machine
    idle(network)
    log = tmp_path / "watch.txt"
    words = ("check", "--watch", "--node", "ant", "--memory", "64MiB", "--", "true")
    watch = network.start_cli(*words, log=log)
    wait_for(lambda: "would run now" in watch.output(), "the first line of the watch")
    # when the machine freezes
    ant = network.nodes["ant"]
    ant.freeze_tree()
    try:
        began = time.monotonic()
        frozen = network.client().check(["true"], memory="64MiB")
        took = time.monotonic() - began
        # then a check says so within seconds, instead of trusting what was heard before
        assert frozen.verdict == "unhealthy" and frozen.probe is not None and not frozen.probe.answered, frozen
        assert took < 20
        shown = network.cli("check", "--memory", "64MiB", "--", "true")
        assert shown.returncode in (DOES_NOT_ANSWER, WOULD_WAIT), shown.stdout
        assert "does not answer" in shown.stdout or "suspect" in shown.stdout
        wait_for(lambda: "not in time" in watch.output(), "the watch to say that it does not answer")
    finally:
        ant.thaw_tree()
    # and when it goes on, the watch says that as well
    wait_for(lambda: "would run now" in watch.output().rpartition("would wait")[2].rpartition("not in time")[2],
             "the watch to say that it is well again")  # fmt: skip
    assert "last heard" in watch.output()
    watch.signal(signal.SIGINT)
    wait_for(lambda: not watch.running(), "the watch to end")
    assert watch.terminate() == 0
    network.wait_node("ant", "ready")


@pytest.mark.spec("H5", "J15")
def test_a_watch_for_programs_is_one_json_value_a_line(network: LocalNetwork, tmp_path: Path) -> None:
    watch = network.start_cli("check", "--watch", "--json", "--", "true", log=tmp_path / "watch.json")
    wait_for(lambda: watch.output().count("\n") >= 2, "two beats")
    watch.kill()
    lines = [json.loads(line) for line in watch.output().splitlines()[:2]]
    assert all(line["verdict"] for line in lines) and lines[0]["at_ms"] < lines[1]["at_ms"]


@pytest.mark.spec("J15")
def test_estimates_stand_in_the_lists_and_stories_of_jobs(network: LocalNetwork) -> None:
    # given jobs of a name that were over at once
    client = network.client()
    client.jobs.run(["true"], name="dozing", **SMALL, timeout_s=100)
    # when one of that name runs on and on, and a second waits behind it
    long = client.jobs.submit(["sleep", "600"], name="dozing", cpu_milli=1_000, memory_mib=64, disk_mib=16)
    network.node_running(long.id)
    behind = client.jobs.submit(["true"], name="dozing", **SMALL)
    # then it is said that nobody knows when the first ends, and when the second should start
    wait_for(lambda: "longer than all" in network.cli("job", "explain", long.id).stdout, "it to outlast all before it")
    assert "longer than all" in network.cli("job", "show", long.id, check=0).stdout

    def row() -> str:
        return next(line for line in network.cli("jobs", check=0).stdout.splitlines() if behind.id in line)

    # (a start that was foretold for a moment which is over when it is shown is not shown)
    wait_for(lambda: "a machine with room; starts in" in row(), lambda: f"a start to be foretold: {row()}")
    for job in (long, behind):
        client.jobs.stop(job.id)
