"""The worked example of CONTRIBUTING: a new endpoint, with nothing changed beside it."""

from pathlib import Path

from worked_examples import blocks, run_in, with_example

TITLE = "A new endpoint"

ASKS = """
import sys
from pathlib import Path
import httpx
from docs_reference import http_page
from holdfast.testing import Network
from holdfast.testing.processes import LocalNetwork

ASKED = (("GET", ""), ("GET", "?draining=true"), ("GET", "?draining=maybe"), ("POST", ""))

def answers(http):
    said = [http.request(method, f"/v1/fleet{query}") for method, query in ASKED]
    return [(answer.status_code, answer.json()) for answer in said]

# given an orchestrator with a node, and a virtual network with one, when both are asked
with LocalNetwork(Path(sys.argv[1])) as real:
    up = real.start_orchestrator()
    real.start_node("ant")
    token = (real.home / "orchestrator" / "admin.token").read_text().strip()
    with httpx.Client(base_url=up.url) as http:
        turned_away = http.get("/v1/fleet")
        http.headers["Authorization"] = f"Bearer {token}"
        served = answers(http)
        schema = http.get("/schema/openapi.json").json()
with Network(nodes=1) as network:
    network.until(lambda: network.nodes[0].ready)
    with httpx.Client(transport=network.door, base_url="http://127.0.0.1") as http:
        nobody = http.get("/v1/fleet")
        http.headers["Authorization"] = f"Bearer {network.token}"
        virtual = answers(http)

# then both count, read the query alike, and refuse alike
assert served[:2] == [(200, {"states": {"ready": 1}}), (200, {"states": {}})], served
codes = [(status, body["code"]) for status, body in served[2:]]
assert codes == [(400, "bad_request"), (405, "method_not_allowed")], codes
assert virtual == served, virtual
# and nobody is answered without the right to it
assert (turned_away.status_code, turned_away.json()) == (nobody.status_code, nobody.json())
assert (nobody.status_code, nobody.json()["code"]) == (401, "not_allowed")
# and the description and the reference name it
described = schema["paths"]["/v1/fleet"]["get"]
assert [one["name"] for one in described["parameters"]] == ["draining"]
assert "FleetView" in schema["components"]["schemas"]
page = http_page()
assert "### GET /v1/fleet" in page and "Number of machines by state. Answers 200 with [FleetView](#fleetview)." in page
"""


def test_the_worked_example_is_served_by_an_orchestrator_and_by_a_virtual_network(tmp_path: Path) -> None:
    tree = with_example(tmp_path, TITLE)
    done = run_in(tree, ASKS, str(tmp_path / "network"))
    assert done.returncode == 0, done.stderr


def test_the_worked_example_is_a_dozen_lines_in_few_files() -> None:
    added = blocks(TITLE)
    lines = [line for _, block in added for line in block.splitlines() if line.strip()]
    assert len({path for path, _ in added}) <= 4
    assert len(lines) <= 13, lines
