"""What reaches a person's screen: cleaned, marked, and with the right exit code for a shell."""

import msgspec
import pytest

from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render import nodes as render_nodes
from holdfast.client.objects import Node, bound
from holdfast.errors import JobCancelled, JobFailed, exit_code_of, verdict_error
from holdfast.wire.errors import FailureView
from holdfast.wire.http import JobView, NodeView

NODE = NodeView(
    id="node_1", name="ant", state="ready", cause="", draining=False, connected=True, isolation="bubblewrap",
    version="0.1.0", arch="x86_64", cpu_model="", hostname="h", site="", total={"cpu_milli": 2000}, free={}, gpus=[],
    attempts=[], load={}, joined_ms=0, state_since_ms=0,
)  # fmt: skip
JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="ended", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=8_200, verdict="failed", failure=None, result_sha256=None, result_bytes=None,
    exit_code=None, attempts_made=2,
)  # fmt: skip


def failure(code: str, blame: str = "user", retryable: bool = False, **rest: int) -> FailureView:
    return FailureView(code, "it went so", "", blame, retryable, False, **rest)


@pytest.mark.spec("J2", "N4")
def test_a_node_without_isolation_says_so_in_every_listing(capsys: pytest.CaptureFixture[str]) -> None:
    # given one node that isolates its jobs and one that does not
    bare = msgspec.structs.replace(NODE, id="node_2", isolation="none")

    # when they are listed and shown
    render_nodes.nodes([NODE, bare])
    listing = capsys.readouterr().out.splitlines()
    render_nodes.node(bare)
    alone = capsys.readouterr().out

    # then only the bare one carries the mark, in both
    assert "UNSAFE: no isolation" not in listing[1]
    assert "UNSAFE: no isolation" in listing[2]
    assert "UNSAFE: no isolation" in alone


@pytest.mark.spec("N5")
def test_what_a_node_says_of_itself_cannot_draw_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    evil = msgspec.structs.replace(NODE, name="ant\x1b[2J\x1b]0;title\x07\nnode_9 ready", cause="\x9b31m\r\b")

    render_nodes.nodes([evil])
    printed = capsys.readouterr().out

    assert len(printed.splitlines()) == 4  # a head, the node, and all of them in two lines
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\b", "\r"}


@pytest.mark.spec("N5")
def test_what_a_node_says_of_itself_is_shown_in_the_order_it_stands_in(capsys: pytest.CaptureFixture[str]) -> None:
    # given a node whose name turns the letters around, hides some, and breaks the line where no newline is
    evil = msgspec.structs.replace(NODE, name="ant\u202eydaer\u2066\u200b\u2028tail", attempts=["a"])

    render_nodes.nodes([evil])
    printed = capsys.readouterr().out

    # then none of that reaches a screen, in a table or in a notebook
    assert len(printed.splitlines()) == 4  # a head, the node, and all of them in two lines
    for shown in (printed.replace("\n", ""), repr(bound(Node, evil, None)), bound(Node, evil, None)._repr_html_()):
        assert "antydaer tail" in shown
        assert shown.isprintable(), repr(shown)
    assert render_jobs.clean("a\u202eb\xa0c\n") == "ab c "


@pytest.mark.spec("J4")
def test_colours_and_other_control_sequences_go() -> None:
    text = "\x1b[31mred\x1b[0m\x1b[2Jgone\ttab\n"
    assert render_jobs.clean(text) == "red[2Jgone\ttab "


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("view", "code"),
    [
        (failure("exit_code", exit_code=3), 3),
        (failure("exit_code", signal=9), 137),
        (failure("oom_job"), 137),
        (failure("time_limit"), 124),
        (failure("node_lost", "provider", retryable=True), 75),
        (failure("poison"), 1),
        (failure("queue_expired", "platform"), 1),
    ],
)
def test_the_exit_code_tells_a_shell_whose_fault_it_was(view: FailureView, code: int) -> None:
    error = verdict_error(msgspec.structs.replace(JOB, failure=view))
    assert isinstance(error, JobFailed)
    assert error.exit_code == exit_code_of(view) == code
    assert error.code == view.code


@pytest.mark.spec("J7")
def test_a_job_that_succeeded_is_no_error_and_a_stopped_one_is_told_apart() -> None:
    assert verdict_error(msgspec.structs.replace(JOB, verdict="succeeded")) is None
    assert isinstance(verdict_error(msgspec.structs.replace(JOB, verdict="cancelled")), JobCancelled)


@pytest.mark.spec("J7")
def test_the_verdict_names_blame_and_bill() -> None:
    line = render_jobs.verdict_line(
        msgspec.structs.replace(JOB, failure=failure("node_lost", "provider", retryable=True))
    )
    assert line == "job_1 failed after 8.2 s, 2 attempts: node_lost: it went so [provider's, not billed]"
