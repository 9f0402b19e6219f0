"""What can be said of image, compose file, pod and chart without running them; `make release-check` runs them."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from shipped import DEPLOY, ROOT

import holdfast
from holdfast.node.config import SETTINGS
from holdfast.testing.processes import LocalNetwork, free_port, wait_for

pytestmark = pytest.mark.spec("N1", "N12")

CHART = DEPLOY / "helm" / "holdfast"


def test_everything_names_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == holdfast.__version__
    pod = yaml.safe_load((DEPLOY / "kubernetes" / "node-pod.yaml").read_text())
    assert pod["spec"]["containers"][0]["image"] == f"holdfast:{holdfast.__version__}"


def test_what_the_image_copies_is_there_and_is_sent_to_the_engine() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    named = {name for names in copied for name in names}
    assert named >= {"src", "pyproject.toml", "deploy/health.py"}
    assert named <= sent and all((ROOT / name).exists() for name in named)


def test_the_image_runs_without_rights_and_can_be_asked_how_it_is() -> None:
    last = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"(?m)^USER holdfast$", last) and "HEALTHCHECK" in last and "ARG BASE" not in last


def test_compose_keeps_secrets_out_of_arguments_and_gives_rights_to_nodes_only() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"database", "orchestrator", "node"}
    for name, service in services.items():
        words = " ".join(service.get("command", []))
        assert not re.search(r"password|token|\$\{", words, re.IGNORECASE), name
        assert ("privileged" in service) == (name == "node")
    assert services["orchestrator"]["cap_drop"] == ["ALL"]
    # Longer than the grace of a node, or the engine would end what the node still lets finish.
    assert int(services["node"]["stop_grace_period"].removesuffix("s")) > 60


@pytest.mark.parametrize("path", [CHART / "templates" / "node.yaml", DEPLOY / "kubernetes" / "node-pod.yaml"])
def test_the_variables_of_pods_are_ones_that_a_node_reads(path: Path) -> None:
    known = {setting.variable for setting in SETTINGS.values()}
    named = set(re.findall(r"- name: ([A-Z_]{4,})", path.read_text()))
    assert {"ORCHESTRATOR_ADDRESS", "HOLDFAST_TOKEN"} <= named <= known


def test_every_value_of_the_chart_can_be_set_and_is_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    used = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for part in ("image", "orchestrator", "node"):
        assert set(values[part]) == set(schema[part]["properties"])
        for name in values[part]:
            assert f".Values.{part}.{name}" in used, f"{part}.{name} does nothing"


# --- the health check ---


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def health(home: Path, port: int) -> tuple[int, str]:
    env = {"HOLDFAST_HOME": str(home), "PNODE_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-S", DEPLOY / "health.py"], env=env, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_a_node_that_answers_is_well_and_a_silent_one_is_not(tmp_path: Path) -> None:
    # Given a node with a job
    port = free_port()
    with LocalNetwork(tmp_path / "network") as network:
        orchestrator = network.start_orchestrator()
        network.start_node("ant", flags=("--port", str(port)))
        # it hears that it is welcome after others can see that it is
        well = (0, "the node answers; it is connected and holds 0 attempt(s)\n")
        wait_for(lambda: health(tmp_path, port) == well, "the node to be connected")
        job = network.client().jobs.submit(["sleep", "60"], cpu_milli=100, memory_mib=64, disk_mib=16)
        network.node_running(job.id)

        # Then it is well and says what it holds, also while the orchestrator is away
        holds = (0, "the node answers; it is connected and holds 1 attempt(s)\n")
        wait_for(lambda: health(tmp_path, port) == holds, "the node to say what it holds")
        orchestrator.kill()
        alone = (0, "the node answers; it is not connected to its orchestrator and holds 1 attempt(s)\n")
        wait_for(lambda: health(tmp_path, port) == alone, "the node to notice")

    # And one that is gone is not well
    code, said = health(tmp_path, port)
    assert code == 1 and said.startswith("not well: ")


def test_an_orchestrator_is_asked_where_it_says_it_serves(port: int, tmp_path: Path) -> None:
    place = tmp_path / "orchestrator" / "endpoint.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "certificate": ""}))
    assert health(tmp_path, free_port())[0] == 0
    place.write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}", "certificate": ""}))
    assert health(tmp_path, port)[0] == 1
    place.write_text("{half a fi")
    assert health(tmp_path, port)[0] == 1
