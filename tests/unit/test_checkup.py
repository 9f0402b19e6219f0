"""What the doctor says of versions and of limits, and what it tells people to type."""

import msgspec
import pytest

import holdfast
from holdfast.checkup import machine, reach
from holdfast.wire.http import NodeView

pytestmark = pytest.mark.spec("N8")

NODE = NodeView(
    id="node_1", name="ant", state="ready", cause="", draining=False, connected=True, isolation="bubblewrap",
    version=holdfast.__version__, arch="x86_64", cpu_model="", hostname="ant", site="", total={}, free={}, gpus=[],
    attempts=[], load={}, joined_ms=0, state_since_ms=0,
)  # fmt: skip


def test_one_release_everywhere_is_well() -> None:
    found = reach._versions(holdfast.__version__, [NODE])
    assert (found.state, found.do) == ("ok", "")


@pytest.mark.parametrize(("orchestrator", "node"), [("0.0.9", ""), ("", "0.0.9")])
def test_another_release_is_named_with_who_has_it(orchestrator: str, node: str) -> None:
    found = reach._versions(orchestrator, [msgspec.structs.replace(NODE, version=node)])
    assert found.state == "warn" and "0.0.9" in found.says and ("ant" in found.says) == bool(node)
    assert f"holdfast=={holdfast.__version__}" in found.do


def test_a_network_without_nodes_cannot_run_anything() -> None:
    found = reach._nodes([])
    assert found.state == "warn" and "holdfast token new" in found.do


@pytest.mark.parametrize(
    ("limit", "says", "do"),
    [
        ("network", "slirp4netns is not installed (package slirp4netns)", "apt-get install slirp4netns"),
        ("disk", "the node is not root", "as root"),
        ("memory", "no control groups are mounted", "mount -t cgroup2"),
        ("disk", "there is no /dev/loop-control", "modprobe loop"),
        ("network", "there is no /dev/net/tun", "modprobe tun"),
    ],
)
def test_each_hindrance_of_a_node_has_its_cure(limit: str, says: str, do: str) -> None:
    assert do in machine._limit_cure(limit, says)
