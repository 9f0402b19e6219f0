"""Tables in a small window: nothing is broken over lines, and what matters is still said."""

import io

import pytest
from rich.console import Console

from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render import nodes as render_nodes
from holdfast.wire.http import JobView, NodeView

NODE = NodeView(
    id="node_a34255b98ae84f5480fcc7d94d7a8c59", name="attic", state="ready", cause="it joined", draining=False,
    connected=True, isolation="bubblewrap", version="1", arch="x86_64", cpu_model="", hostname="attic.example", site="",
    total={"cpu_milli": 64_000, "memory_mib": 524_288, "gpus": 8}, free={"cpu_milli": 63_500, "memory_mib": 523_000},
    gpus=[], attempts=["att_1.1"], load={}, joined_ms=0, state_since_ms=0,
)  # fmt: skip


@pytest.mark.spec("J3", "N4")
def test_nodes_fit_80_columns_and_trouble_is_named_below(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a terminal of 80 columns, and nodes of which one is in trouble and one is not isolated
    screen = io.StringIO()
    monkeypatch.setattr(render_jobs, "console", lambda **_: Console(file=screen, width=80))
    fields = {name: getattr(NODE, name) for name in NODE.__struct_fields__}
    sick = NodeView(
        **{**fields, "name": "a-name-of-sixteen-letters-and-more", "state": "quarantined", "cause": "bad disk"}
    )
    bare = NodeView(**{**fields, "name": "bare", "isolation": "none", "draining": True})

    # when they are listed
    render_nodes.nodes([NODE, sick, bare])
    lines = screen.getvalue().splitlines()

    # then each has one line that fits, with as much of its id as commands take
    assert max(len(line.rstrip()) for line in lines) <= 80
    rows = [line for line in lines if "node_" in line]
    assert len(rows) == 3
    assert all("node_a34255b9 " in row for row in rows)
    # and what is wrong is said
    assert any("quarantined for" in line and "bad disk" in line for line in lines)
    assert f"bare: {render_nodes.UNSAFE}" in screen.getvalue()


@pytest.mark.spec("J3", "J16")
def test_jobs_have_a_line_each_however_small_the_window_and_items_say_which_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a terminal of 40 columns, and an item of an array with a long name
    screen = io.StringIO()
    monkeypatch.setattr(render_jobs, "console", lambda **_: Console(file=screen, width=40))
    item = JobView(
        id="job_kfs479yx72f5dt", name="a name that is longer than the window", owner="me", argv=["true"], waiting="",
        phase="ended", recovery="restart", priority=5, submitted_ms=0, ended_ms=1, verdict="succeeded", failure=None,
        result_sha256=None, result_bytes=None, exit_code=0, attempts_made=1, array="arr_1", item=12,
    )  # fmt: skip

    # when they are listed, then each has one line, with as much of its id as commands take
    render_jobs.jobs([item, item])
    lines = screen.getvalue().splitlines()
    assert len(lines) == 2 and all(line.startswith("job_kfs479yx7 succeeded") for line in lines)

    # and where there is room, which item it is
    monkeypatch.setattr(render_jobs, "console", lambda **_: Console(file=screen, width=100))
    render_jobs.jobs([item])
    assert "a name that is longer than t[12]" in screen.getvalue()
