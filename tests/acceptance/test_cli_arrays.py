"""Arrays from the command line, against a real network: one command over many items, one bar, one folder of results."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = [pytest.mark.xdist_group("cli-arrays"), pytest.mark.spec("J16")]

SMALL = ("--memory", "32MiB", "--disk", "16MiB", "--cpu", "100m")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("cli-arrays")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant")
        yield network


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    return tmp_path


def written(desk: Path, *lines: str) -> str:
    (desk / "items.txt").write_text("".join(f"{line}\n" for line in lines))
    return "items.txt"


def sent(network: LocalNetwork, desk: Path, *words: str) -> str:
    """The id of an array that was sent and left alone."""
    done = network.cli("run", *SMALL, "--no-folder", "--detach", *words, cwd=desk, check=0)
    return done.stdout.strip()


@pytest.mark.spec("J3", "J10")
def test_a_command_runs_once_for_each_line_and_the_results_lie_side_by_side(network: LocalNetwork, desk: Path) -> None:
    # given a file with three items, one of them with parameters, and a blank line that is none
    items = written(desk, "red sky", "", '{"lr": 0.1, "name": "b"}', "blue")
    script = 'echo "$HOLDFAST_INDEX/$HOLDFAST_ITEMS {index} {item} {lr} {name}"; echo "$HOLDFAST_ITEM" > made'

    # when a command runs over them
    done = network.cli(
        "run", *SMALL, "--array", items, "--no-folder", "--name", "my sky", "--", "sh", "-c", script, cwd=desk, check=0
    )

    # then each item's results lie under its index
    results = desk / "results" / "my-sky"
    printed = [(results / str(n) / "stdout.log").read_text() for n in range(3)]
    assert printed == [
        "0/3 0 red sky {lr} {name}\n",
        '1/3 1 {"lr": 0.1, "name": "b"} 0.1 b\n'.replace('"', ""),  # the shell took the quotes
        "2/3 2 blue {lr} {name}\n",
    ]
    assert (results / "1" / "made").read_text() == '{"lr": 0.1, "name": "b"}\n'

    # and one file tells of all of them
    index = json.loads((results / "index.json").read_text())
    assert index["complete"] is True and index["counts"] == {"succeeded": 3}
    assert [(item["index"], item["verdict"], item["folder"], item["files"]) for item in index["items"]] == [
        (0, "succeeded", "0", 1), (1, "succeeded", "1", 1), (2, "succeeded", "2", 1),
    ]  # fmt: skip

    # and the screen has a table, the outcome, and where the results are
    assert "red sky" in done.stdout and done.stdout.count("succeeded") == 3
    assert "3 items: 3 done" in done.stderr
    assert "-- results/my-sky/: 3 items, 3 files" in done.stderr


@pytest.mark.spec("J7")
def test_failures_are_named_and_only_those_run_again(network: LocalNetwork, desk: Path) -> None:
    # given an array of which one item fails
    items = written(desk, "good", "bad", "fine")
    words = ["run", *SMALL, "--array", items, "--no-folder", "--name", "mixed", "--", "sh", "-c"]
    done = network.cli(*words, "echo {item}; test {item} != bad", cwd=desk, check=1)

    # then it is named with its reason, and the others' results are there
    assert "-- item 1 (bad) failed: exit_code" in done.stderr
    assert "3 items: 2 done, 1 failed" in done.stderr
    results = desk / "results" / "mixed"
    first = json.loads((results / "index.json").read_text())
    assert [item["exit_code"] for item in first["items"]] == [0, 1, 0]
    array = first["array"]
    assert f"holdfast rerun {array}" in done.stderr

    # when it is run again, then that item alone has a new job
    again = network.cli("rerun", array, cwd=desk, check=1)
    second = json.loads((results / "index.json").read_text())
    assert [a["job"] == b["job"] for a, b in zip(first["items"], second["items"], strict=True)] == [True, False, True]
    assert "item 1 failed" in again.stderr

    # and what its first run left was moved aside, not written over
    aside = results / f"1-{first['items'][1]['job'].removeprefix('job_')}"
    assert (aside / "stdout.log").read_text() == (results / "1" / "stdout.log").read_text() == "bad\n"


@pytest.mark.spec("J12")
def test_an_array_is_watched_listed_and_stopped_by_its_id(network: LocalNetwork, desk: Path) -> None:
    # given an array that would go on for long
    items = written(desk, *"abcd")
    array = sent(network, desk, "--array", items, "--", "sleep", "600")
    assert array.startswith("arr_")
    wait_for(lambda: network.client().arrays.get(array).counts.get("running"), "an item to run")

    # then it can be looked at where a job can
    listed = network.cli("jobs", "--array", array, check=0).stdout
    shown = network.cli("job", "show", array, check=0).stdout
    view = json.loads(network.cli("jobs", "--array", array, "--json", check=0).stdout)
    assert all(item["job"] in listed and item["job"] in shown for item in view["jobs"])
    queued = network.cli("jobs", "--array", array, "--phase", "ended", "--limit", "2", check=0).stdout
    assert not any(item["job"] in queued for item in view["jobs"])

    # and what is of one job only says so, and results are not there yet
    assert "is an array of jobs" in network.cli("logs", "-f", array, check=2).stderr
    assert "is an array of jobs" in network.cli("job", "explain", array, check=2).stderr
    assert "[not_ended]" in network.cli("results", array, cwd=desk, check=75).stderr
    assert "whoever owns it" in network.cli("jobs", "--array", array, "--owner", "me", check=2).stderr

    # when it is stopped, then all of it is
    assert array in network.cli("stop", array, check=0).stdout
    wait_for(lambda: network.client().arrays.get(array).ended, "it to end")
    assert json.loads(network.cli("stop", array, "--json", check=0).stdout)["counts"] == {"cancelled": 4}
    assert "[not_found]" in network.cli("stop", "arr_nothing", check=66).stderr


@pytest.mark.spec("J10")
def test_results_of_an_array_come_later_and_go_on_where_they_were_cut(network: LocalNetwork, desk: Path) -> None:
    # given an array that ended while nobody watched
    items = written(desk, "one", "two")
    array = sent(network, desk, "--array", items, "--", "sh", "-c", "echo {item} > made")
    assert network.client().arrays.wait(array, timeout_s=100).counts == {"succeeded": 2}

    # when its results are asked for, into a folder that has something else in it
    (desk / "there").mkdir()
    (desk / "there" / "mine").touch()
    assert "not mixed" in network.cli("results", array, "--to", "there", cwd=desk, check=73).stderr

    # and into one of its own, of which one item is in the way
    (desk / "out" / "1").mkdir(parents=True)
    (desk / "out" / "index.json").write_text(
        json.dumps({"array": array, "complete": False, "name": "", "counts": {}, "submitted_ms": 0, "items": []})
    )
    (desk / "out" / "1" / "mine").touch()
    cut = network.cli("results", array, "--to", "out", cwd=desk, check=75)
    assert "item 1 did not arrive" in cut.stderr and "[incomplete]" in cut.stderr
    assert (desk / "out" / "0" / "made").read_text() == "one\n"

    # then the same command brings the rest once the way is free, and touches nothing that is here
    (desk / "out" / "1" / "mine").unlink()
    before = (desk / "out" / "0" / "result.json").stat().st_mtime_ns
    collected = json.loads(network.cli("results", array, "--to", "out", "--json", cwd=desk, check=0).stdout)
    assert collected["items"] == 2 and collected["missing"] == {}
    assert (desk / "out" / "1" / "made").read_text() == "two\n"
    assert (desk / "out" / "0" / "result.json").stat().st_mtime_ns == before


def test_json_and_stdin_are_for_programs(network: LocalNetwork, desk: Path) -> None:
    # given items that a program prints
    command = [sys.executable, "-m", "holdfast.cli", "run", *SMALL, "--array", "-", "--no-folder", "--no-results"]
    done = subprocess.run(
        [*command, "--json", "--", "echo", "{item}"],
        input="x\r\ny\n", env=network.environment(), cwd=desk, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    # then stdout is JSON and nothing else, and nothing was brought
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["array"]["counts"] == {"succeeded": 2} and found["results"] is None
    assert not (desk / "results").exists()

    # and the same key is the same array
    items = written(desk, "x", "y")
    once = sent(network, desk, "--array", items, "--key", "k1", "--", "true")
    assert sent(network, desk, "--array", items, "--key", "k1", "--", "true") == once


@pytest.mark.spec("J1")
def test_a_file_that_makes_no_array_is_refused_before_anything_is_sent(network: LocalNetwork, desk: Path) -> None:
    before = len(network.client().jobs.list(limit=1000).jobs)
    (desk / "long").write_text("ok\n" + "x" * 5_000 + "\n")

    done = network.cli("run", "--array", "long", "--no-folder", "--", "true", cwd=desk, check=2)

    assert "line 2 of long is longer than 4,096 bytes [usage]" in done.stderr
    assert len(network.client().jobs.list(limit=1000).jobs) == before


@pytest.mark.timeout(400)
@pytest.mark.spec("J12", "J13")
def test_ten_thousand_lines_are_one_array(network: LocalNetwork, desk: Path) -> None:
    # given as many lines as an array takes, for machines that cannot run any of them at once
    items = written(desk, *map(str, range(10_000)))
    array = sent(network, desk, "--array", items, "--", "sleep", "600")

    # then every line is an item of it, and nothing of it is left when it is stopped
    view = network.client().arrays.get(array)
    assert view.items == len(view.jobs) == 10_000 and not view.counts.get("unsent")
    network.cli("stop", array, timeout_s=120, check=0)
    wait_for(lambda: network.client().arrays.get(array).counts == {"cancelled": 10_000}, "all of it to end", 120)


@pytest.mark.spec("J3", "J5")
def test_a_terminal_shows_one_bar_and_takeovers_and_ctrl_c_leaves_it_running(network: LocalNetwork, desk: Path) -> None:
    # given an array on a second machine, watched on a terminal
    bee = network.start_node("bee")
    ant = next(view.id for view in network.client().nodes.list() if view.name == "ant")
    network.client().nodes.drain(ant)
    items = written(desk, "left", "right")
    words = ["run", *SMALL, "--array", items, "--no-folder", "--", "sleep", "600"]
    front, back = pty.openpty()
    watched = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words],
        env=network.environment({"TERM": "xterm", "COLUMNS": "140"}), cwd=desk,
        stdin=subprocess.DEVNULL, stdout=back, stderr=back, start_new_session=True,
    )  # fmt: skip
    os.close(back)
    os.set_blocking(front, False)
    seen = bytearray()

    def says(words: str) -> bool:
        with contextlib.suppress(OSError):  # nothing yet, or nothing more
            seen.extend(os.read(front, 1 << 16))
        return words in seen.decode(errors="replace")

    try:
        wait_for(lambda: says("2 running, 0 done"), lambda: f"both to run; the screen has {seen.decode()}")
        assert "━" in seen.decode()

        # when that machine loses its power
        network.client().nodes.drain(ant, on=False)
        bee.kill_tree()

        # then the takeover of each item is told as it happens
        wait_for(
            lambda: says("item 0 (left): another machine takes over") and says("item 1 (right): another machine"),
            lambda: f"both takeovers; the screen has {seen.decode()}",
        )

        # when the person leaves with Ctrl-C, then the array goes on
        watched.send_signal(signal.SIGINT)
        wait_for(lambda: says("goes on without you") and says("holdfast results arr_"), "a word about it")
        assert watched.wait(60) == 130
    finally:
        watched.kill()
        watched.wait(60)
        os.close(front)
    array = seen.decode().split("holdfast stop ")[1].split()[0]
    assert not network.client().arrays.get(array).ended
    network.cli("stop", array, check=0)


@pytest.mark.spec("J12")
def test_the_name_of_an_array_stands_for_all_of_it(network: LocalNetwork, desk: Path) -> None:
    # given an array with a name
    items = written(desk, "a", "b")
    array = sent(network, desk, "--array", items, "--name", "whole", "--", "sh", "-c", "echo {item}; sleep 600")
    client = network.client()
    jobs = [item.job for item in client.arrays.get(array).jobs]
    for job in jobs:
        network.node_running(job)
        network.wait_for(lambda job=job: any(line.stream == "stdout" for line in client.jobs.logs(job)), "its line")

    # then whatever takes a job takes the name, and means the array by it
    assert network.cli("job", "show", "whole", check=0).stdout.startswith(f"{array} (whole): 2 items")
    logs = network.cli("logs", "whole", check=0)
    assert logs.stdout == "a\nb\n" and all(f"-- item {n}: {job}" in logs.stderr for n, job in enumerate(jobs))

    # and whoever stops it means what has not ended, though a newer job has the name too
    client.jobs.run(["true"], name="whole", cpu_milli=100, memory_mib=32, disk_mib=16)
    assert network.cli("stop", "whole", check=0).stdout.startswith(f"{array} (whole): 2 items")
    assert client.arrays.wait(array, timeout_s=60).counts == {"cancelled": 2}


@pytest.mark.spec("J12")
def test_a_name_that_several_have_stops_none_of_them(network: LocalNetwork) -> None:
    client = network.client()
    jobs = [client.jobs.submit(["sleep", "600"], name="twin", cpu_milli=100, memory_mib=32, disk_mib=16) for _ in "12"]

    refused = network.cli("stop", "twin", check=65)

    assert "[ambiguous]" in refused.stderr and all(job.id in refused.stderr for job in jobs)
    assert [client.jobs.get(job.id).verdict for job in jobs] == [None, None]
    client.jobs.stop(jobs[1].id)
    client.jobs.wait(jobs[1].id, check=False, timeout_s=60)
    assert network.cli("stop", "twin", check=0).stdout.startswith(jobs[0].id)
    assert client.jobs.wait(jobs[0].id, check=False, timeout_s=60).verdict == "cancelled"
