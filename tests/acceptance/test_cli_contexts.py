"""Several networks by name, what a shell completes from them, jobs by name and prefix, and a job from its file.

One network is started for all of it.
"""

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.testing.processes import LocalNetwork, free_port

pytestmark = pytest.mark.xdist_group("cli-contexts")

SMALL = ["--memory", "64MiB", "--disk", "16MiB"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("contexts")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant")
        yield network


@pytest.fixture
def elsewhere(network: LocalNetwork, tmp_path: Path) -> dict[str, str]:
    """The home of somebody for whom this network is not the one of their machine."""
    return {"HOLDFAST_HOME": str(tmp_path / "home")}


def holdfast(network: LocalNetwork, *words: str, env: dict[str, str] | None = None, check: int = 0) -> str:
    """What a command says, told and shown, run in this process: a start of Python for each would take minutes."""
    with patch.dict(os.environ, network.environment(env), clear=True):
        done = CliRunner().invoke(app, list(words))
    code = getattr(done.exception, "exit_code", done.exit_code)
    said = f"{done.output}{done.exception or ''}"
    assert code == check, f"`holdfast {' '.join(words)}`: {code}, not {check}:\n{said}"
    return said


def address(network: LocalNetwork) -> str:
    assert network.orchestrator is not None
    return network.orchestrator.url


def token_file(network: LocalNetwork) -> str:
    return str(network.home / "orchestrator" / "admin.token")


def add_lab(network: LocalNetwork, env: dict[str, str]) -> None:
    url, token = address(network), token_file(network)
    holdfast(network, "context", "add", "lab", "--url", url, "--token-file", token, "--use", env=env)


@pytest.mark.spec("J3", "N6")
def test_a_network_is_added_used_shown_and_forgotten_and_its_token_is_never_shown(
    network: LocalNetwork, elsewhere: dict[str, str]
) -> None:
    token = Path(token_file(network)).read_text().strip()
    file = Path(elsewhere["HOLDFAST_HOME"]) / "contexts.json"

    # given a network that was added by its name, and a second one where nobody answers
    add_lab(network, elsewhere)
    nobody = f"http://127.0.0.1:{free_port()}"
    holdfast(network, "context", "add", "attic", "--url", nobody, env=elsewhere)

    # then the file is private, and commands go to the one in use, or to the one that is named
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "ant" in holdfast(network, "nodes", env=elsewhere)
    assert "ant" in holdfast(network, "nodes", env={**elsewhere, "HOLDFAST_CONTEXT": "lab"})
    lost = network.cli("nodes", "--context", "attic", env=elsewhere, check=69).stderr
    assert f"attic ({nobody})" in lost, "it says which network does not answer"

    # and what is shown is everything but the token
    listed = holdfast(network, "context", "list", env=elsewhere)
    views = json.loads(holdfast(network, "context", "list", "--json", env=elsewhere))
    shown = holdfast(network, "context", "show", "lab", env=elsewhere)
    view = json.loads(holdfast(network, "context", "show", "--json", env=elsewhere))
    assert "* lab" in listed
    assert {one["name"]: one["used"] for one in views} == {"attic": False, "lab": True, "local": False}
    assert (view["name"], view["url"], view["token"]) == ("lab", address(network), True)
    assert token not in listed + shown + lost + json.dumps([views, view])

    # when it is added once more, then --force is asked for
    again = holdfast(network, "context", "add", "lab", "--url", nobody, env=elsewhere, check=2)
    assert "[context_exists]" in again
    holdfast(network, "context", "add", "attic", "--url", address(network), "--force", env=elsewhere)

    # when another is used and it is forgotten, then it is gone with its token
    holdfast(network, "context", "use", "attic", env=elsewhere)
    holdfast(network, "context", "remove", "lab", env=elsewhere)
    assert token not in file.read_text()
    gone = holdfast(network, "nodes", "--context", "lab", env=elsewhere, check=78)
    assert "[no_context]" in gone
    assert "attic" in gone, "it lists those that there are"

    # and two words about where the network is are one too many
    twice = holdfast(network, "nodes", "--context", "attic", "--url", nobody, env=elsewhere, check=2)
    assert "--url and --context" in twice


@pytest.mark.spec("N6")
def test_a_context_takes_a_certificate_and_refuses_what_cannot_be_one(
    network: LocalNetwork, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    pem = tmp_path / "lab.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    holdfast(network, "context", "add", "lab", "--url", "https://lab.example", "--certificate", str(pem), env=elsewhere)
    assert "pinned" in holdfast(network, "context", "show", "lab", env=elsewhere)

    (tmp_path / "empty").touch()
    for words in (
        ["../lab", "--url", "https://lab.example"],
        ["local", "--url", "https://lab.example"],
        ["attic", "--url", "lab:7420"],
        ["attic", "--url", "https://lab.example", "--token-file", str(tmp_path / "none")],
        ["attic", "--url", "https://lab.example", "--token-file", str(tmp_path / "empty")],
    ):
        holdfast(network, "context", "add", *words, env=elsewhere, check=2)


@pytest.mark.spec("J3")
def test_a_shell_completes_jobs_nodes_and_contexts_quickly_and_never_complains(
    network: LocalNetwork, elsewhere: dict[str, str]
) -> None:
    client = network.client()
    job = client.jobs.submit(["true"], name="dragonfly", memory_mib=64, disk_mib=16)
    add_lab(network, elsewhere)

    def completed(line: str, **more: str) -> list[str]:
        words = line.split(" ")
        env = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = network.cli(env={**elsewhere, **env, **more})
        assert done.stderr == ""
        return done.stdout.split()

    # then a job is completed by its name and by its id, a node by its name, a context by its own
    # (asked again where a busy machine took longer than a person at the prompt would wait)
    network.wait_for(lambda: completed("holdfast logs dragon") == ["dragonfly"], "the job's name", 60)
    network.wait_for(lambda: job.id in completed("holdfast stop job_"), "the job's id", 60)
    network.wait_for(lambda: completed("holdfast node show an") == ["ant"], "the node's name", 60)
    network.wait_for(lambda: completed("holdfast nodes --context l") == ["lab", "local"], "the contexts", 60)

    # and by the other shells
    for shell in ("zsh", "fish"):
        env = {"_HOLDFAST_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "holdfast logs dragon"}
        env |= {**elsewhere, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        network.wait_for(lambda env=env: "dragonfly" in network.cli(env=env).stdout, f"the name in {shell}", 60)

    # and where nobody answers, it is silent and soon back: hardly later than where nobody need be asked
    began = time.monotonic()
    assert completed("holdfast ini") == ["init"]
    asked = time.monotonic()
    assert completed("holdfast logs dragon", HOLDFAST_URL="http://127.0.0.1:9") == []
    assert time.monotonic() - asked < asked - began + 10


@pytest.mark.spec("J3")
def test_a_job_and_a_node_are_found_by_name_and_by_prefix_wherever_an_id_is_taken(network: LocalNetwork) -> None:
    # given a job with a name
    job = network.client().jobs.submit(["echo", "seen"], name="cicada", memory_mib=64, disk_mib=16)
    network.client().jobs.wait(job.id, timeout_s=100)
    prefix = job.id[:-1]

    # then every command that takes a job takes its name and its first letters
    for named in ("cicada", prefix):
        assert json.loads(holdfast(network, "job", "show", named, "--json"))["id"] == job.id
    assert json.loads(holdfast(network, "job", "explain", "cicada", "--json"))["job"] == job.id
    assert json.loads(holdfast(network, "stop", "cicada", "--json"))["id"] == job.id
    assert "\nseen\n" in holdfast(network, "logs", "cicada", "--stream", "stdout")
    assert job.id in holdfast(network, "events", "--job", "cicada", "--json")

    # and every command that takes a node, too
    node = network.nodes["ant"].id
    assert json.loads(holdfast(network, "node", "show", "ant", "--json"))["id"] == node
    assert json.loads(holdfast(network, "node", "show", node[:12], "--json"))["id"] == node

    # when letters fit several, then they are named
    ids = [job.id]
    while len({id[:5] for id in ids}) == len(ids):  # there are 36 letters
        ids.append(network.client().jobs.submit(["true"], memory_mib=64, disk_mib=16).id)
    both = {id for id in ids if id[:5] == ids[-1][:5]}
    several = holdfast(network, "job", "show", ids[-1][:5], check=65)
    assert "[ambiguous]" in several
    assert both <= set(several.replace(",", " ").split())


@pytest.mark.spec("J1", "J3")
def test_run_without_a_command_takes_the_job_file_and_flags_win_over_it(network: LocalNetwork, tmp_path: Path) -> None:
    # given a folder with a script, and a job file made from it
    (tmp_path / "main.py").write_text(
        "import os\nprint(os.environ['GREETING'], open('inputs/data/it').read().strip())\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "it").write_text("world\n")
    network.cli("init", cwd=tmp_path, check=0)
    file = tmp_path / "holdfast.toml"
    file.write_text(file.read_text() + '[env]\nGREETING = "hello"\n')

    # when it is run, with flags that say something else
    done = network.cli("run", *SMALL, "--env", "GREETING=good evening", "--name", "greeting", cwd=tmp_path, check=0)

    # then what the file says was done, but for what the flags said
    assert done.stdout == "good evening world\n"
    shown = json.loads(network.cli("job", "show", "greeting", "--json", check=0).stdout)
    assert shown["argv"] == ["python3", "main.py"]


@pytest.mark.spec("N1", "J3")
def test_up_in_another_folder_is_found_as_local_and_says_what_to_type(tmp_path: Path) -> None:
    # given a machine on which another network is in use
    with LocalNetwork(tmp_path) as network:
        network.cli("context", "add", "lab", "--url", "http://127.0.0.1:9", "--use", check=0)

        # when an orchestrator is started in a folder of its own
        up = network.start_cli(
            "up", "--data-dir", str(tmp_path / "data"), "--http", f"127.0.0.1:{free_port()}", "--listen",
            f"127.0.0.1:{free_port()}", "--files", f"127.0.0.1:{free_port()}", "--preset", "test",
            log=tmp_path / "up.log",
        )  # fmt: skip
        network.wait_for(lambda: "holdfast context use local" in up.output(), "it to say what to type", 60)
        times = psutil.Process(up.process.pid).cpu_times()

        # then it said how to reach it, and the commands of this machine find it by that name
        assert "holdfast run --context local" in up.output()
        assert network.cli("nodes", "--context", "local", "--json", check=0).stdout.strip() == "[]"
        network.cli("nodes", check=69)
        nodes = json.loads((tmp_path / "data" / "endpoint.json").read_text())["nodes"]
        made = network.cli("token", "new", "--context", "local", check=0)
        assert f"holdfast node --orchestrator {nodes} --token TOKEN" in made.stderr
        # and it took little: with a processor to itself it would have been ready in three seconds (bench/startup.py
        # measures it), but busy neighbours make every cycle dearer
        assert times.user + times.system < 2 * 3.0
