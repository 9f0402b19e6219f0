"""`holdfast access`, and every other command with a token that is not the admin's."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.spec("A12", "J3")

SMALL = ("--memory", "64MiB", "--disk", "16MiB", "--no-folder")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("access")) as made:
        made.start_orchestrator()
        made.start_node("ant")
        yield made


def test_a_token_is_made_listed_completed_and_revoked(network: LocalNetwork) -> None:
    # given a token for a user
    said = network.cli(
        "access", "new", "--role", "user", "--owner", "ann", "--ttl", "5m", "--note", "her laptop", "--json", check=0
    )
    made = json.loads(said.stdout)
    assert (made["role"], made["owner"]) == ("user", "ann") and 0 < made["left_ms"] <= 300_000
    told = network.cli("access", "new", "--role", "network-operator", check=0)
    assert told.stdout.startswith("hfr_") and told.stdout.strip() not in told.stderr, "no secret in a journal"
    assert re.search(r"holdfast access revoke acc_\w+\n.*HOLDFAST_ACCESS_TOKEN=TOKEN\n", told.stderr)

    # then it is listed with whose it is, and without what lets anyone in
    listed = network.cli("access", "list", check=0).stdout
    row = next(line for line in listed.splitlines() if made["id"] in line)
    assert row.split()[1:4] == ["good", "user", "ann"] and "her laptop" in row and "admin" in row
    assert "hfr_" not in listed and "hfr_" not in network.cli("access", "list", "--json", check=0).stdout

    # and a shell completes ids and roles
    for line, at, word in (
        (f"holdfast access revoke {made['id'][:-2]}", "3", made["id"]),
        ("holdfast access new --role node", "4", "node-operator"),
    ):
        asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": at}
        network.wait_for(lambda e=asked, w=word: network.cli(env=e).stdout.split() == [w], f"{word} completed", 60)

    # when it is revoked, then it is accepted no more
    hers = {"HOLDFAST_ACCESS_TOKEN": made["token"]}
    network.cli("jobs", env=hers, check=0)
    revoked = network.cli("access", "revoke", made["id"][:-2], "--json", check=0).stdout
    assert json.loads(revoked) == {"id": made["id"][:-2], "revoked": True}
    refused = network.cli("jobs", env=hers, check=77)
    assert "[not_allowed]" in refused.stderr and made["token"] not in refused.stderr
    assert made["id"] not in network.cli("access", "list", check=0).stdout
    everyone = network.cli("access", "list", "--all", check=0).stdout
    assert next(line for line in everyone.splitlines() if made["id"] in line).split()[1] == "revoked"


def test_a_user_works_with_a_token_from_the_environment_a_file_or_a_context(
    network: LocalNetwork, tmp_path: Path
) -> None:
    made = network.client().access.create("user", owner="bob")
    (file := tmp_path / "token").write_text(made.token + "\n")
    file.chmod(0o600)
    theirs = network.client().jobs.run(["true"], memory="64MiB", disk="16MiB", timeout_s=100).id

    # given three ways to name the token, the job that one of them submits is found by the others
    ran = network.cli("run", *SMALL, "--json", "--", "echo", "mine", env={"HOLDFAST_ACCESS_TOKEN": made.token}, check=0)
    mine = re.search(r"job_\w{14}", ran.stdout + ran.stderr)
    assert mine is not None
    # (the admin token beside it does not count)
    both = {"HOLDFAST_ACCESS_TOKEN_FILE": str(file), "HOLDFAST_ADMIN_TOKEN": "not used"}
    home = {"HOLDFAST_HOME": str(tmp_path / "home")}
    url = network.client().url
    network.cli("context", "add", "lab", "--url", url, "--token-file", str(file), env=home, check=0)
    for env in (both, {**home, "HOLDFAST_CONTEXT": "lab"}):
        listed = network.cli("jobs", "--json", env=env, check=0).stdout
        assert mine[0] in listed and theirs not in listed
    shown = network.cli("job", "show", theirs, env=both, check=66)
    assert "[not_found]" in shown.stderr

    # and what is not for users says which role is needed
    for words in (("token", "new"), ("node", "drain", "ant"), ("access", "list")):
        refused = network.cli(*words, env=both, check=77)
        assert "[forbidden]" in refused.stderr and "network-operator" in refused.stderr, refused.stderr
    # and machines, the journal, the live view and the doctor show what a user may see
    assert "ant" in network.cli("nodes", env=both, check=0).stdout
    assert theirs not in network.cli("events", "--json", env=both, check=0).stdout
    top = network.cli("top", "--once", env=both, check=0).stdout
    assert "ant" in top and theirs not in top
    assert "need a network operator's token" in network.cli("doctor", env=both).stdout


def test_a_node_operator_looks_after_the_nodes_that_joined_with_its_tokens(network: LocalNetwork) -> None:
    made = network.client().access.create("node-operator", owner="lab")
    env = {"HOLDFAST_ACCESS_TOKEN": made.token}
    join = network.cli("token", "new", "--uses", "1", env=env, check=0).stdout.strip()
    network.start_node("bee", token=join)

    listed = network.cli("nodes", env=env, check=0).stdout
    assert "bee" in listed and "ant" not in listed
    assert "lab" in network.cli("node", "show", "bee", env=env, check=0).stdout
    network.cli("node", "drain", "bee", env=env, check=0)
    network.cli("node", "drain", "bee", "--off", env=env, check=0)
    for words in (("node", "show", "ant"), ("node", "drain", "ant")):
        assert "[not_found]" in network.cli(*words, env=env, check=66).stderr
    assert "[forbidden]" in network.cli("jobs", env=env, check=77).stderr


def test_a_network_operators_token_manages_tokens_from_another_machine(network: LocalNetwork, tmp_path: Path) -> None:
    # given a machine without an orchestrator, and a network operator's token in a file
    url, away = network.client().url, {"HOLDFAST_HOME": str(tmp_path / "home")}
    (file := tmp_path / "token").write_text(network.client().access.create("network-operator", owner="eve").token)
    chief = str(file)

    made = network.cli(
        "access", "new", "--role", "user", "--owner", "zoe", "--json", "--url", url, "--token-file", chief,
        env=away, check=0,
    )  # fmt: skip
    id = json.loads(made.stdout)["id"]
    listed = network.cli("access", "list", "--url", url, "--token-file", chief, env=away, check=0).stdout
    row = next(line for line in listed.splitlines() if id in line)
    assert "zoe" in row and "eve" in row
    said = network.cli("access", "revoke", id, "--url", url, "--token-file", chief, env=away, check=0).stdout
    assert f"{id} is revoked" in said
