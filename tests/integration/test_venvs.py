"""Python requirements become an environment: once, whole, shared read-only, and never half of one (SPEC J1, J7)."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from package_index import Node, failed, node_fixture

from holdfast.model import FailureCode, Result
from holdfast.node.attempt import venvs
from holdfast.node.attempt.pip_settings import PipSettings
from holdfast.node.attempt.venv_builder import BuildReport, BuildRequest
from holdfast.node.attempt.venvs import Venvs
from holdfast.node.core.order import Order
from holdfast.testing.attempts import Attempts
from holdfast.testing.processes import free_port, wait_for

pytestmark = pytest.mark.spec("J1")

__all__ = ["node_fixture"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that takes no time, and makes environments of three mebibytes."""

    def run(_: Venvs, request: BuildRequest) -> BuildReport:
        tree = Path(request.folder) / "venv" / "tree"
        tree.mkdir()
        (tree / "pear.py").write_text("x")
        (tree / "data").write_bytes(os.urandom(3 << 20))
        return BuildReport(exit_code=0)

    monkeypatch.setattr(Venvs, "_run", run)
    monkeypatch.setattr(venvs, "read_settings", lambda *_: PipSettings())


# --- what a job finds ---


@pytest.mark.spec("J2")
def test_a_job_finds_its_packages_and_their_commands_and_cannot_change_them(node: Node, attempts: Attempts) -> None:
    # given an environment for `apple`, which needs `pear`
    tree = node.take("att_a", "apple==1.0  # a comment\n\n")
    script = """
which python apple; apple; pear; python -c 'import apple, sys; print(sys.prefix, apple.VERSION)'
touch /venv/mark || echo refused; pip --version || echo no pip
"""
    # when a job runs in it
    attempt = attempts.start("sh", "-c", script, venv=str(tree))
    assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
    # then commands and modules are those of the environment
    lines = attempt.log("stdout").splitlines()
    assert lines[:2] == ["/venv/bin/python", "/venv/bin/apple"]
    assert lines[2:5] == ["apple 1.0", "pear 2.0", "/venv 1.0"]
    assert "refused" in lines
    assert not (tree / "mark").exists()


@pytest.mark.spec("J2")
def test_a_node_without_a_sandbox_builds_it_for_the_place_where_it_lies(
    node: Node, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine on which there is no bubblewrap
    empty = node.folder / "bin"
    empty.mkdir()
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(empty))
        tree = node.take("att_a", "apple==1.0\n", in_place=True)
    # when a job runs in it that is not boxed in
    attempt = attempts.start("sh", "-c", "which python apple; apple; pear", venv=str(tree), runtime="process")
    assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
    # then it finds the commands, and they find their Python
    lines = attempt.log("stdout").splitlines()
    assert lines == [f"{tree}/bin/python", f"{tree}/bin/apple", "apple 1.0", "pear 2.0"]
    # and one for boxed jobs is another
    assert node.take("att_b", "apple==1.0\n") != tree


def test_modules_were_compiled_when_it_was_built(node: Node) -> None:
    tree = node.take("att_a", "pear")
    assert list(tree.glob("lib/python3*/site-packages/__pycache__/pear.*.pyc"))


# --- once, and shared ---


def test_the_same_requirements_are_built_once_and_others_apart(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.take("att_a", "apple==1.0\n")
    # when the index is gone, then what is there is still given out
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert node.take("att_b", "# the same\napple==1.0") == first
    monkeypatch.setenv("PIP_FIND_LINKS", str(node.wheels))
    assert node.take("att_c", "apple==1.1") != first
    assert len(node.there()) == 2


def test_no_requirements_are_an_empty_environment(node: Node) -> None:
    tree = node.take("att_a", "# nothing\n")
    assert (tree / "bin" / "python").is_symlink()


def test_several_who_want_the_same_at_the_same_time_build_it_once(node: Node) -> None:
    built: list[str] = []
    whole = Venvs._build

    def counting(self: Venvs, order: Order, requirements: tuple[str, ...]) -> Path:
        built.append(order.attempt)
        return whole(self, order, requirements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Venvs, "_build", counting)
        found: list[Path] = []
        asking = [threading.Thread(target=lambda n=n: found.append(node.take(f"att_{n}", "pear"))) for n in range(4)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(150)
    assert len(built) == 1
    assert len(found) == 4 and len(set(found)) == 1


# --- never half ---

BUILDER = """
import os, signal, sys
from pathlib import Path
from holdfast.node.attempt import venvs
from holdfast.node.attempt.pip_settings import PipSettings
from holdfast.node.attempt.venv_builder import BuildReport
from holdfast.node.core.order import Order
at, seen = int(sys.argv[3]), set()
def trace(frame, event, _):
    if frame.f_code.co_filename != venvs.__file__:
        return None
    if event == "line":
        seen.add(frame.f_lineno)
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
made = venvs.Venvs(Path(sys.argv[1]), Path(sys.argv[2]))
order = Order("att_a", 7, "job_0a", ("true",), 150_000, 1, 0, 0, requirements=True)
def run(self, request):
    tree = Path(request.folder) / "venv" / "tree"
    tree.mkdir(parents=True)
    (tree / "pear.py").write_text("x")
    return BuildReport(exit_code=0)
if at:
    venvs.Venvs._run = run
    venvs.read_settings = lambda *_: PipSettings()
    sys.settrace(trace)
made.take(order, "pear")
sys.settrace(None)
print(len(seen))
"""


@pytest.mark.usefixtures("quick")
def test_a_builder_killed_at_any_line_leaves_nothing_that_could_be_taken_for_whole(node: Node, tmp_path: Path) -> None:
    def build(home: Path, at: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", BUILDER, str(home), str(tmp_path / f"attempts{at}"), str(at)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    lines = int(build(tmp_path / "whole", -1).stdout)
    assert lines > 50
    # when a builder is killed
    for at in range(2, lines, 4):
        home = tmp_path / f"killed{at}"
        assert build(home, at).returncode == -signal.SIGKILL
        # then what is there under its own name is whole
        for made in home.glob("*/made"):
            assert (made.parent / "tree" / "pear.py").read_text() == "x"
        # and the next one who wants it gets it, and what was half is gone
        later = Venvs(home, node.attempts)
        assert (later.take(node.prepared(f"att_{at}"), "pear") / "pear.py").read_text() == "x"
        later.sweep()
        names = {name.partition("-")[0].partition(".")[0] for name in os.listdir(home)}
        assert names == {"lock", venvs.key_of(("pear",))}, f"killed at line {at}"


@pytest.mark.spec("N9")
def test_the_build_ends_with_its_builder(node: Node) -> None:
    # given a builder whose pip waits for an index that never answers
    node.prepared("att_a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = os.environ | {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/", "PIP_NO_INDEX": "0"}
        words = [sys.executable, "-c", BUILDER, str(node.home), str(node.attempts), "0"]
        builder = subprocess.Popen(words, env=env | {"PIP_FIND_LINKS": ""})
        silent.settimeout(120)
        asked, _ = silent.accept()
        # when it is killed
        builder.kill()
        builder.wait()
        # then nobody waits any more
        asked.settimeout(1)
        wait_for(lambda: _is_closed(asked), "pip to end")
        asked.close()


def _is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(4096) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


# --- bounded ---


@pytest.mark.usefixtures("quick")
def test_those_not_in_use_are_dropped_when_there_are_too_many_the_oldest_first(node: Node) -> None:
    # given two environments, of which the first is in use
    used = node.take("att_a", "plum", mib_max=10)
    idle = node.take("att_b", "fig", mib_max=10)
    node.end("att_b")
    # when more come than there is room for
    third = node.take("att_c", "kiwi", mib_max=10)
    # then the one that nobody uses went
    assert used.exists() and third.exists() and not idle.exists()
    # and where all are in use, none goes, and the next one stays on the disk of its own attempt
    fourth = node.take("att_d", "lime", mib_max=10)
    assert used.exists() and third.exists()
    assert fourth == node.attempts / "att_d" / "venv" / "tree"
    assert not [name for name in os.listdir(node.home) if name.startswith("dropped")]


@pytest.mark.usefixtures("quick")
def test_one_that_is_wanted_again_counts_as_new(node: Node) -> None:
    first, second = node.take("att_a", "plum"), node.take("att_b", "fig")
    node.take("att_c", "plum")
    node.end("att_a", "att_b", "att_c")
    node.take("att_d", "kiwi", mib_max=10)
    assert first.exists() and not second.exists()


# --- what goes wrong ---


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quince==1.0", "No matching distribution found for quince"),
        ("apple==1.0\npear<2", "conflict"),
        ("apple==7.0", "No matching distribution found for apple==7.0"),
    ],
)
def test_requirements_that_cannot_be_met_are_the_users_fault_in_pips_words(node: Node, text: str, words: str) -> None:
    wrong = failed(node, text)
    assert wrong.failure.code is FailureCode.BUILD
    assert words in wrong.failure.detail


@pytest.mark.spec("J7")
def test_a_package_that_would_have_to_be_built_is_refused_and_none_of_its_code_is_run(node: Node) -> None:
    import tarfile

    mark = node.folder / "ran"
    source = node.folder / "setup.py"
    source.write_text(f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(name='sly', version='1.0')\n")
    with tarfile.open(node.wheels / "sly-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "sly-1.0/setup.py")
    wrong = failed(node, "sly")
    assert wrong.failure.code is FailureCode.BUILD
    assert not mark.exists()


@pytest.mark.spec("J7")
def test_an_index_that_cannot_be_reached_is_the_networks_fault(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    wrong = failed(node, "quince")
    assert wrong.failure.code is FailureCode.NETWORK, wrong.failure
    assert "could not be reached" in wrong.failure.detail
