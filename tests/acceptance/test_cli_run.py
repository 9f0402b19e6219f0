"""`holdfast run` against a real network: output, exit code, limits, and a machine that dies under the job."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.xdist_group("cli-run")

SMALL = ("--memory", "64MiB", "--disk", "16MiB")
UNTIL_KILLED = 'echo begin; case "$HOLDFAST_ATTEMPT" in *.1) sleep 600;; esac; echo done'
"""Its first attempt goes on until its machine dies, however late that is; the next one is soon done."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("run")) as network:
        network.start_orchestrator(preset="lan")
        for name in ("ant", "bee"):
            network.start_node(name)
        yield network


@pytest.mark.spec("J3", "J4")
def test_run_shows_the_output_and_the_verdict(network: LocalNetwork) -> None:
    done = network.cli("run", *SMALL, "--", "sh", "-c", "echo out; echo err >&2", check=0)

    assert done.stdout == "out\n"
    assert "err\n" in done.stderr
    assert "succeeded" in done.stderr.splitlines()[-1]
    assert "\x1b" not in done.stderr


@pytest.mark.spec("J3")
def test_whoever_waits_is_told_what_for(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        network.start_orchestrator(preset="lan")
        # given no machine, when somebody waits without a terminal, then it is said that there is none
        waiting = network.start_cli("run", *SMALL, "--no-folder", "--", "echo", "done", log=tmp_path / "said")
        network.wait_for(
            lambda: "-- waiting: no machine has joined yet; `holdfast token new`" in waiting.output(), "a word"
        )
        # and when one joins, the job runs
        network.start_node("ant")
        network.wait_for(lambda: "succeeded" in waiting.output(), "its end")


@pytest.mark.spec("J7")
@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143)])
def test_run_ends_with_the_jobs_own_exit_code(network: LocalNetwork, script: str, code: int) -> None:
    done = network.cli("run", *SMALL, "--", "sh", "-c", script, check=code)
    assert "exit_code" in done.stderr.splitlines()[-2]
    assert "holdfast logs job_" in done.stderr.splitlines()[-1], "what to do about it"


@pytest.mark.spec("J2", "J3")
def test_what_is_asked_for_reaches_the_job(network: LocalNetwork) -> None:
    # given every flag that describes a job
    done = network.cli(
        "run", "--detach", "--name", "described", "--cpu", "250m", "--memory", "48MiB", "--disk", "32MiB", "--gpu", "0",
        "--class", "resume", "--priority", "7", "--time-limit", "1m", "--queue-limit", "2m", "--attempts", "2",
        "--env", "A=1", "--env", "B=two words", "--", "sh", "-c", 'echo "$A $B"',
        check=0,
    )  # fmt: skip

    # when it has run
    job = network.client().jobs.wait(done.stdout.strip(), timeout_s=100)

    # then it was as described, and saw its variables
    assert (job.name, job.recovery, job.priority) == ("described", "resume", 7)
    assert network.cli("logs", "--stream", "stdout", job.id).stdout == "1 two words\n"


@pytest.mark.spec("J7")
def test_a_time_limit_ends_a_job_with_124(network: LocalNetwork) -> None:
    done = network.cli("run", *SMALL, "--time-limit", "500ms", "--", "sleep", "600", check=124)
    assert "time_limit" in done.stderr


@pytest.mark.spec("J13")
def test_what_can_never_fit_is_refused_at_once_with_the_nearest_miss(network: LocalNetwork) -> None:
    done = network.cli("run", "--gpu", "64", "--", "true", check=65)

    assert "[no_fit]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("J14")
def test_the_same_key_is_the_same_job(network: LocalNetwork) -> None:
    first = network.cli("run", *SMALL, "--detach", "--key", "nightly", "--", "true", check=0)
    second = network.cli("run", *SMALL, "--detach", "--key", "nightly", "--", "true", check=0)
    other = network.cli("run", *SMALL, "--detach", "--key", "nightly", "--", "false")

    assert first.stdout == second.stdout
    assert other.returncode == 65, "one key cannot stand for two different jobs"


@pytest.mark.spec("J2")
@pytest.mark.parametrize(
    "words",
    [("--memory", "lots"), ("--cpu", "x"), ("--env", "=1"), ("--time-limit", "soon"), ("--priority", "10"),
     ("--attempts", "0"), ("--gpu", "-1")],
)  # fmt: skip
def test_nonsense_is_named_before_anything_is_sent(network: LocalNetwork, words: tuple[str, str]) -> None:
    done = network.cli("run", *words, "--", "true", check=2)
    assert words[0] in done.stderr or words[1] in done.stderr
    assert done.stdout == ""


@pytest.mark.spec("J8")
def test_a_class_that_does_not_exist_is_refused(network: LocalNetwork) -> None:
    done = network.cli("run", "--class", "sometimes", "--", "true", check=65)
    assert "sometimes" in done.stderr


@pytest.mark.spec("J5")
def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job that is being watched
    watch = network.start_cli("run", *SMALL, "--name", "left-alone", "--", "sleep", "600", log=tmp_path / "watch")
    job = network.wait_for(
        lambda: next((j.id for j in network.client().jobs.list().jobs if j.name == "left-alone"), None), "the job"
    )
    network.wait_for(
        lambda: network.client().jobs.get(job).phase == "running" and "running" in watch.output(), "it to run"
    )

    # when the watcher presses Ctrl-C
    watch.signal(signal.SIGINT)

    # then the watcher is told how to go on, and the job runs
    assert watch.process.wait(60) == 130
    assert f"holdfast logs -f {job}" in watch.output()
    assert f"holdfast stop {job}" in watch.output()
    assert "Traceback" not in watch.output()
    assert network.client().jobs.get(job).phase == "running"
    network.client().jobs.stop(job)


@pytest.mark.spec("J5", "J4")
def test_run_shows_a_takeover_as_it_happens_and_ends_well(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job that is being watched, on one of two machines
    watch = network.start_cli(
        "run", *SMALL, "--name", "survivor", "--", "sh", "-c", UNTIL_KILLED, log=tmp_path / "watch"
    )
    job = network.wait_for(
        lambda: next((j.id for j in network.client().jobs.list().jobs if j.name == "survivor"), None), "the job"
    )
    node = network.node_running(job)
    network.wait_for(lambda: "begin" in watch.output(), "its first line")

    # when its machine loses power
    node.kill_tree()

    # then the watcher sees the other machine take over, and the job ends well
    assert watch.process.wait(60) == 0
    shown = watch.output()
    assert "another machine takes over" in shown
    assert "succeeded" in shown
    assert shown.count("done\n") == 1
    view = network.client().jobs.get(job)
    assert len(view.attempts) == 2
    network.start_node(node.name)


@pytest.mark.spec("J14")
def test_run_outlasts_a_restart_of_the_orchestrator(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job that is being watched
    script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done"
    watch = network.start_cli("run", *SMALL, "--", "sh", "-c", script, log=tmp_path / "watch")
    network.wait_for(lambda: "line 1" in watch.output(), "its first line")

    # when the orchestrator is killed and started again
    network.restart_orchestrator()

    # then the watcher goes on, and every line is there once
    assert watch.process.wait(60) == 0
    lines = [line for line in watch.output().splitlines() if line.startswith("line ")]
    assert lines == [f"line {i}" for i in range(1, 7)]


@pytest.mark.spec("J13")
def test_a_queue_limit_ends_a_job_that_finds_no_machine(network: LocalNetwork) -> None:
    # given machines whose cores are all taken
    client = network.client()
    for name in network.nodes:  # all of them: one that comes back only now would take the job
        network.wait_node(name)
    nodes = client.nodes.list()
    most = max(n.total["cpu_milli"] for n in nodes)
    holders = [client.jobs.submit(["sleep", "600"], cpu_milli=most, memory_mib=64, disk_mib=16) for _ in nodes]
    for holder in holders:
        network.node_running(holder.id)

    # when another one waits for no more than half a second
    words = ["--cpu", f"{most}m", *SMALL, "--name", "hasty", "--queue-limit", "500ms", "--", "true"]
    done = network.cli("run", *words, check=1)

    # then it ends in time, with its name
    assert "queue_expired" in done.stderr
    hasty = client.jobs.get("hasty")
    assert hasty.ended_ms is not None and 500 <= hasty.ended_ms - hasty.submitted_ms < 15_000
    for holder in holders:
        client.jobs.stop(holder.id)


@pytest.mark.spec("A12", "J7")
def test_a_failure_is_confirmed_on_the_other_machine_and_shown_once(network: LocalNetwork) -> None:
    script = 'echo "$HOLDFAST_ATTEMPT"; exit 3'
    done = network.cli("run", *SMALL, "--name", "confirmed", "--", "sh", "-c", script, check=3)

    # what happens is said as it happens
    assert "another machine confirms that; Ctrl-C takes this verdict" in done.stderr
    assert "confirming on " in done.stderr
    job = next(j for j in network.client().jobs.list().jobs if j.name == "confirmed")
    nodes = {attempt.node for attempt in network.client().jobs.get(job.id).attempts}
    assert (job.confirmation, job.attempts_made, len(nodes)) == ("confirmed", 2, 2)
    # afterwards the output is that of the run that confirmed it
    logs = network.cli("logs", "--stream", "stdout", job.id, check=0)
    assert logs.stdout.split() == [f"{job.id.replace('job_', 'att_')}.2"]


@pytest.mark.spec("A12", "J12")
def test_ctrl_c_takes_the_verdict_that_is_being_confirmed(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job that failed, and that another machine tries for long
    script = 'case "$HOLDFAST_ATTEMPT" in *.1) exit 5;; esac; sleep 600'
    watch = network.start_cli("run", *SMALL, "--name", "taken", "--", "sh", "-c", script, log=tmp_path / "watch")
    network.wait_for(lambda: "confirming on" in watch.output(), "the other machine to try it")

    # when the watcher presses Ctrl-C
    watch.signal(signal.SIGINT)

    # then the first verdict counts, and the exit code is that of the program
    assert watch.process.wait(60) == 5
    job = next(j for j in network.client().jobs.list().jobs if j.name == "taken")
    assert (job.verdict, job.confirmation) == ("failed", "taken")
    assert "unconfirmed" in watch.output()
    assert "Traceback" not in watch.output()
