"""Every reading command against a real network: for people as a table, for programs as JSON."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.xdist_group("cli-reading")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("reading")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant")
        yield network


@pytest.fixture(scope="module")
def greeting(network: LocalNetwork) -> str:
    """A job that ended well, with output on both streams."""
    command = ["sh", "-c", "echo hello; echo oops >&2"]
    return network.client().jobs.run(command, name="greeting", memory_mib=64, disk_mib=16, timeout_s=100).id


def parsed(network: LocalNetwork, *words: str) -> Any:
    return json.loads(network.cli(*words, check=0).stdout)


@pytest.mark.spec("J3")
def test_jobs_lists_what_was_sent(network: LocalNetwork, greeting: str) -> None:
    # given a job that ended and another owner who never sent one
    # when jobs are listed
    table = network.cli("jobs", check=0).stdout
    page = parsed(network, "jobs", "--json", "--phase", "ended", "--limit", "200", "--owner", "admin")

    # then the job stands there under its name and verdict, without colours in a pipe
    row = next(line for line in table.splitlines() if greeting in line)
    assert "greeting" in row
    assert "succeeded" in row
    assert "\x1b" not in table
    assert greeting in [job["id"] for job in page["jobs"]]
    assert parsed(network, "jobs", "--json", "--owner", "nobody")["jobs"] == []


@pytest.mark.spec("J3")
def test_jobs_come_in_pages(network: LocalNetwork, greeting: str) -> None:
    # given at least two jobs
    network.client().jobs.run(["true"], memory_mib=64, disk_mib=16, timeout_s=100)

    # when they are listed one at a time
    first = parsed(network, "jobs", "--json", "--limit", "1")
    second = parsed(network, "jobs", "--json", "--limit", "1", "--after", first["next"])

    # then the second page goes on where the first ended
    assert first["jobs"][0]["id"] != second["jobs"][0]["id"]


@pytest.mark.spec("J3", "J7")
def test_job_show_tells_its_story(network: LocalNetwork, greeting: str) -> None:
    shown = network.cli("job", "show", greeting, check=0).stdout
    view = parsed(network, "job", "show", greeting, "--json")

    assert "succeeded" in shown
    assert "job.ended" in shown
    assert view["verdict"] == "succeeded"
    assert len(view["attempts"]) == 1
    assert view["result_sha256"] in shown


@pytest.mark.spec("H6")
def test_job_explain_says_what_it_waits_for(network: LocalNetwork) -> None:
    # given a node whose one core is taken, and a job that needs it
    client = network.client()
    cores = client.nodes.list()[0].total["cpu_milli"]
    holder = client.jobs.submit(["sleep", "600"], cpu_milli=cores, memory_mib=64, disk_mib=16)
    network.node_running(holder.id)
    waiting = client.jobs.submit(["true"], cpu_milli=cores, memory_mib=64, disk_mib=16)

    # when it is explained
    told = network.cli("job", "explain", waiting.id, check=0).stdout
    view = parsed(network, "job", "explain", waiting.id, "--json")

    # then it says the phase, what holds it back, and until when at most
    assert "queued" in told
    assert view["phase"] == "queued"
    assert view["gates"]
    assert view["until_ms"] > 0

    # when the holder is stopped, then the waiting one ends
    stopped = network.cli("stop", holder.id, check=0).stdout
    assert holder.id in stopped
    assert client.jobs.wait(holder.id, timeout_s=100, check=False).verdict == "cancelled"
    assert client.jobs.wait(waiting.id, timeout_s=100).verdict == "succeeded"


@pytest.mark.spec("J7")
def test_stopping_what_has_ended_changes_nothing(network: LocalNetwork, greeting: str) -> None:
    view = parsed(network, "stop", greeting, "--json")
    assert view["verdict"] == "succeeded"


@pytest.mark.spec("J4")
def test_logs_keep_the_streams_apart(network: LocalNetwork, greeting: str) -> None:
    both = network.cli("logs", greeting, check=0)
    only_out = network.cli("logs", greeting, "--stream", "stdout", check=0)
    only_err = network.cli("logs", greeting, "--stream", "stderr", check=0)
    lines = [json.loads(line) for line in network.cli("logs", greeting, "--json", check=0).stdout.splitlines()]

    assert both.stdout == "hello\n"
    assert "oops\n" in both.stderr
    assert only_out.stdout == "hello\n"
    assert "oops" not in only_out.stderr
    assert only_err.stdout == ""
    assert "oops\n" in only_err.stderr
    assert {line["stream"] for line in lines} == {"stdout", "stderr", "platform"}


@pytest.mark.spec("J4")
def test_logs_follow_until_the_job_ends(network: LocalNetwork) -> None:
    # given a job that prints for a while
    script = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
    job = network.client().jobs.submit(["sh", "-c", script], memory_mib=64, disk_mib=16)

    # when its log is followed from the start, twice over
    long = network.cli("logs", "--follow", job.id, check=0)
    short = network.cli("logs", "-f", job.id, check=0)

    # then both end by themselves with every line once
    assert long.stdout == short.stdout == "".join(f"line {i}\n" for i in range(1, 6))


@pytest.mark.spec("J4")
def test_a_stream_that_does_not_exist_is_named(network: LocalNetwork, greeting: str) -> None:
    done = network.cli("logs", greeting, "--stream", "stdin", check=2)
    assert "[usage]" in done.stderr


@pytest.mark.spec("H1", "N1")
def test_nodes_lists_machines_and_node_show_one_of_them(network: LocalNetwork) -> None:
    table = network.cli("nodes", check=0).stdout
    listed = parsed(network, "nodes", "--json")
    shown = network.cli("node", "show", listed[0]["id"], check=0).stdout
    view = parsed(network, "node", "show", listed[0]["id"], "--json")

    assert "ant" in table
    assert listed[0]["name"] == view["name"] == "ant"
    assert view["total"]["cpu_milli"] > 0
    assert view["version"] in shown
    assert "node." in shown, "the node's journal is part of its picture"


@pytest.mark.spec("H4", "J3")
def test_events_tell_what_happened(network: LocalNetwork, greeting: str) -> None:
    node = network.client().nodes.list()[0].id
    everything = network.cli("events", check=0).stdout
    of_job = [json.loads(e) for e in network.cli("events", "--json", "--job", greeting, check=0).stdout.splitlines()]
    of_node = [json.loads(e) for e in network.cli("events", "--json", "--node", node, check=0).stdout.splitlines()]
    last = of_job[-1]["seq"]
    later = network.cli("events", "--json", "--after", str(last), "--job", greeting, check=0).stdout

    assert "job.ended" in everything
    assert {e["job"] for e in of_job} == {greeting}
    assert {e["node"] for e in of_node} == {node}
    assert [e["seq"] for e in of_job] == sorted(e["seq"] for e in of_job)
    assert later == ""


@pytest.mark.spec("H4")
def test_events_can_be_followed(network: LocalNetwork, tmp_path: Path) -> None:
    # given a follower of the journal, by the long and by the short flag
    seen = max(event.seq for event in network.client().events())
    long = network.start_cli("events", "--follow", "--json", "--after", str(seen), log=tmp_path / "long")
    short = network.start_cli("events", "-f", "--json", "--after", str(seen), log=tmp_path / "short")

    # when a job runs
    job = network.client().jobs.run(["true"], memory_mib=64, disk_mib=16, timeout_s=100).id

    # then both show its end as it happens, and go on until they are stopped
    for follower in (long, short):
        network.wait_for(lambda f=follower: '"job.ended"' in f.output() and job in f.output(), "the job's end")
        assert follower.running()
        follower.kill()


@pytest.mark.spec("N6")
def test_a_token_is_made_used_and_revoked(network: LocalNetwork) -> None:
    # given a token for one node
    made = parsed(network, "token", "new", "--json", "--uses", "1", "--ttl", "5m", "--note", "one more")
    told = network.cli("token", "new", check=0)
    plain = told.stdout.strip()
    assert made["uses_left"] == 1
    assert plain.startswith("hf1_")
    assert re.search(r"holdfast node --orchestrator \S+:\S+ --token TOKEN\n", told.stderr), "no secret in a journal"

    # then it is listed with what it is for, and without what lets anyone in
    listed = network.cli("token", "list", check=0).stdout
    row = next(line for line in listed.splitlines() if made["id"] in line)
    assert row.split()[1:3] == ["good", "1"] and "one more" in row
    assert "hf1_" not in listed and "hf1_" not in network.cli("token", "list", "--json", check=0).stdout  # the text
    line = f"holdfast token revoke {made['id'][:-2]}"
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    network.wait_for(lambda: network.cli(env=asked).stdout.split() == [made["id"]], "a shell to complete its id", 60)

    # when it is revoked, then nobody joins with it
    revoked = network.cli("token", "revoke", made["id"], "--json", check=0).stdout
    assert json.loads(revoked) == {"id": made["id"], "revoked": True}
    everyone = network.cli("token", "list", "--all", check=0).stdout
    assert next(line for line in everyone.splitlines() if made["id"] in line).split()[1] == "revoked"
    late = network.start_node("late", token=made["token"], wait=False)
    assert late.process.wait(60) != 0
    assert "revoked" in late.output()
    assert "late" not in [node.name for node in network.client().nodes.list()]
    assert made["token"] not in late.output()


@pytest.mark.spec("J14")
def test_doctor_finds_memory_equal_to_the_store(network: LocalNetwork) -> None:
    told = network.cli("doctor", check=0).stdout
    view = parsed(network, "doctor", "--json")

    assert view["ok"]
    assert len(view["findings"]) >= 2
    assert "FAIL" not in told


@pytest.mark.spec("N3")
def test_the_network_is_found_by_flag_by_environment_and_by_itself(network: LocalNetwork, tmp_path: Path) -> None:
    # given a home without an endpoint, and the address and token from elsewhere
    url = network.client().url
    token_file = network.home / "orchestrator" / "admin.token"
    away = {"HOLDFAST_HOME": str(tmp_path)}

    # then flags are enough, the environment is enough, and without either it says what to do
    network.cli("jobs", "--url", url, "--token-file", str(token_file), env=away, check=0)
    network.cli("jobs", env={**away, "HOLDFAST_URL": url, "HOLDFAST_ADMIN_TOKEN_FILE": str(token_file)}, check=0)
    lost = network.cli("jobs", env=away, check=78)
    assert "holdfast up" in lost.stderr


@pytest.mark.spec("N3")
def test_flags_of_place_work_on_every_command(network: LocalNetwork, greeting: str, tmp_path: Path) -> None:
    url, token = network.client().url, str(network.home / "orchestrator" / "admin.token")
    env = {"HOLDFAST_HOME": str(tmp_path)}
    node = network.client().nodes.list()[0].id
    made = json.loads(network.cli("token", "new", "--json", "--url", url, "--token-file", token, env=env).stdout)

    network.cli("token", "revoke", made["id"], "--url", url, "--token-file", token, env=env, check=0)
    network.cli("token", "list", "--url", url, "--token-file", token, env=env, check=0)
    network.cli("nodes", "--url", url, "--token-file", token, env=env, check=0)
    network.cli("events", "--url", url, "--token-file", token, env=env, check=0)
    network.cli("doctor", "--url", url, "--token-file", token, env=env, check=0)
    network.cli("job", "show", greeting, "--url", url, "--token-file", token, env=env, check=0)
    network.cli("job", "explain", greeting, "--url", url, "--token-file", token, env=env, check=0)
    network.cli("logs", greeting, "--url", url, "--token-file", token, env=env, check=0)
    network.cli("stop", greeting, "--url", url, "--token-file", token, env=env, check=0)
    network.cli("node", "show", node, "--url", url, "--token-file", token, env=env, check=0)
    network.cli("node", "drain", node, "--off", "--url", url, "--token-file", token, env=env, check=0)
    network.cli("run", "--detach", "--url", url, "--token-file", token, "--", "true", env=env, check=0)


@pytest.mark.spec("J7")
def test_what_does_not_exist_or_is_not_allowed_is_said_without_a_trace(network: LocalNetwork, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("hfa_this-is-not-the-token-of-this-network\n")

    unknown = network.cli("job", "show", "job_00000000000000", check=66)
    refused = network.cli("jobs", "--token-file", str(wrong), check=77)
    nobody = network.cli("jobs", "--url", "http://127.0.0.1:1", check=69, timeout_s=100)

    for done, code in ((unknown, "[not_found]"), (refused, "["), (nobody, "[unreachable]")):
        assert "error: " in done.stderr
        assert code in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
