"""What happens to a job in a container when its engine, its keeper, its shim or the operator fails it: it goes
on without a byte lost, or its end is the provider's. Never the user's."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import Failure, FailureCode, Result
from holdfast.node import linux
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes.container import sweep
from holdfast.node.runtimes.container_request import LABEL_FOLDER, name_of
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.testing.attempts import Attempts, RealAttempt, now
from holdfast.testing.engines import Docker, EngineService, Podman
from holdfast.testing.processes import wait_for

pytestmark = [pytest.mark.xdist_group("engines"), pytest.mark.timeout(300)]

COUNT = "n=0; while [ ! -e finish ]; do n=$((n+1)); echo $n; echo e$n >&2; done; exit 3"
"""Prints as fast as it can until it is told to end."""
LONG_S = 90.0


class Bench:
    """Starts attempts on one engine."""

    def __init__(self, folder: Path, launcher: Launcher, engine: EngineService, image: bytes) -> None:
        defaults = {"runtime": "container", "engine": engine.socket, "image": engine.add_image(image)}
        self.engine = engine
        self.attempts = Attempts(folder, launcher, **defaults)

    def start(self, *argv: str, **changes: Any) -> RealAttempt:
        return self.attempts.start(*argv, **({"log_bytes_max": 256 << 20} | changes))

    def script(self, text: str, **changes: Any) -> RealAttempt:
        return self.start("sh", "-c", text, **changes)

    def containers(self, attempt: RealAttempt) -> list[str]:
        return [name for name in self.engine.containers() if name == name_of(str(attempt.home))]


@pytest.fixture
def surviving(tmp_path: Path, launcher: Launcher, docker: Docker, busybox: bytes) -> Iterator[Bench]:
    """On a Docker that leaves its containers running when it goes."""
    yield from _bench(tmp_path, launcher, docker, busybox)


@pytest.fixture(scope="module")
def mortal_docker() -> Iterator[Docker]:
    with Docker(live_restore=False) as engine:
        yield engine


@pytest.fixture
def mortal(tmp_path: Path, launcher: Launcher, mortal_docker: Docker, busybox: bytes) -> Iterator[Bench]:
    """On a Docker whose containers end with it."""
    yield from _bench(tmp_path, launcher, mortal_docker, busybox)


@pytest.fixture
def on_podman(tmp_path: Path, launcher: Launcher, podman: Podman, busybox: bytes) -> Iterator[Bench]:
    yield from _bench(tmp_path, launcher, podman, busybox)


@pytest.fixture(params=["surviving", "on_podman"])
def either(request: pytest.FixtureRequest) -> Bench:
    """On Docker and on Podman: containers go on without the service that made them."""
    return request.getfixturevalue(request.param)


def _bench(folder: Path, launcher: Launcher, engine: EngineService, image: bytes) -> Iterator[Bench]:
    if not engine.running():
        engine.start()
    bench = Bench(folder, launcher, engine, image)
    yield bench
    engine.signal(signal.SIGCONT)
    if not engine.running():
        engine.start()
    bench.attempts.clean_up()


def finish(attempt: RealAttempt) -> None:
    (attempt.home / "work" / "finish").touch()


def failed(attempt: RealAttempt, patience_s: float = LONG_S) -> Failure:
    found = attempt.verdict(patience_s)
    assert isinstance(found, Failure), found
    return found


def printed_bytes(attempt: RealAttempt) -> int:
    return (attempt.home / "stdout.log").stat().st_size


def assert_counted_without_a_gap(attempt: RealAttempt) -> int:
    """Every number once and in order, on both streams. How many there were."""
    numbers = attempt.log("stdout").split()
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    assert attempt.log("stderr").split() == [f"e{n}" for n in numbers]
    return len(numbers)


# --- the engine goes and comes back ---


@pytest.mark.spec("J4", "J5", "J7")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_job_outlives_its_engine_and_not_a_byte_is_lost_or_doubled(either: Bench, how: str) -> None:
    # given a job that prints all the time
    attempt = either.script(COUNT)
    attempt.printed("\n100\n")
    # when its engine is stopped, or killed
    getattr(either.engine, how)()
    seen = printed_bytes(attempt)
    # then the job goes on without it, and is heard
    wait_for(lambda: printed_bytes(attempt) > seen + 10_000, "the job to go on printing", LONG_S)
    # and with it when it is back, to its own end
    either.engine.start()
    seen = printed_bytes(attempt)
    wait_for(lambda: printed_bytes(attempt) > seen + 10_000, "the job to go on printing", LONG_S)
    finish(attempt)
    found = failed(attempt)
    assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 3)
    assert assert_counted_without_a_gap(attempt) > 100


@pytest.mark.spec("J5", "J7")
def test_a_job_that_ends_while_its_engine_is_away_is_judged_by_its_own_exit_code(either: Bench) -> None:
    # given a job that ran for a while, long enough to know its engine
    attempt = either.script("sleep 5; echo here; while [ ! -e finish ]; do sleep 0.05; done; echo last; exit 9")
    attempt.printed("here")
    # and an engine that goes away, and a job that ends meanwhile
    either.engine.kill()
    finish(attempt)
    attempt.printed("last")
    # when the engine is back, then it says how the job ended
    either.engine.start()
    found = failed(attempt)
    assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 9)


@pytest.mark.spec("J5", "J7")
@pytest.mark.parametrize("body", ["sleep 1000", "trap 'exit 0' TERM; while :; do sleep 0.05; done"])
def test_a_job_that_its_engine_takes_along_is_the_providers_failure(mortal: Bench, body: str) -> None:
    """Also where the job tidies up on SIGTERM and ends with 0: it did not finish."""
    attempt = mortal.script(f"echo here; {body}")
    attempt.printed("here")
    mortal.engine.stop()
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT, found
    assert found.meaning.retryable and not found.meaning.billable
    assert "engine" in found.detail


@pytest.mark.spec("J5", "J7")
def test_a_job_whose_engine_is_restarted_under_it_is_the_providers_failure(mortal: Bench) -> None:
    # given a job, long enough for the keeper to know the engine, that outlives the engine's kill -9
    attempt = mortal.script("echo here; sleep 1000")
    attempt.printed("here")
    mortal.engine.kill()
    # when the engine comes back, it ends what it finds
    mortal.engine.start()
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT, found


@pytest.mark.spec("J5", "J7")
def test_an_engine_that_is_back_before_anybody_noticed_is_no_excuse(mortal: Bench) -> None:
    """The keeper is held while the engine stops, taking the container along, and starts again: all it can see is a
    container that ended with a signal, in an engine that does not remember why."""
    attempt = mortal.script("echo here; sleep 1000")
    attempt.printed("here")
    (keeper,) = [pid for pid, _ in attempt.family()]
    os.kill(keeper, signal.SIGSTOP)
    mortal.engine.stop()
    mortal.engine.start()
    os.kill(keeper, signal.SIGCONT)
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT, found


@pytest.mark.spec("N4", "J7")
def test_a_job_is_stopped_though_its_engine_hangs(either: Bench) -> None:
    # given a job whose engine does not answer any more
    attempt = either.script(
        "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done", stop_grace_ms=2_500
    )
    attempt.printed("here")
    either.engine.signal(signal.SIGSTOP)
    # when it is told to stop, then it hears it, and is dead after the grace, long before anybody gives up the engine
    began = now()
    attempt.say("stop", reason="enough")
    attempt.printed("bye")
    outcome = attempt.outcome()
    assert outcome["kind"] == "stopped"
    assert now() - began < 40_000
    assert [p for p in folders.processes_of(attempt.home) if p != attempt.pid] == []


@pytest.mark.spec("N4", "H6")
def test_a_start_that_hangs_can_be_given_up(surviving: Bench) -> None:
    # given an engine that takes a request and does not answer
    surviving.engine.signal(signal.SIGSTOP)
    attempt = surviving.script("echo ran")
    attempt.running()
    # when the job is stopped, then at once, and nothing of it ran or will
    attempt.say("stop", reason="superseded")
    assert attempt.outcome(40.0)["kind"] == "stopped"
    surviving.engine.signal(signal.SIGCONT)
    folders.clean(attempt.home)
    assert surviving.containers(attempt) == []
    assert attempt.log("stdout") == ""


# --- somebody kills something ---


@pytest.mark.spec("J5", "J7")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_container_that_somebody_ends_by_the_engine_is_the_providers_failure(either: Bench, number: int) -> None:
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    either.engine.api.kill(name_of(str(attempt.home)), number)
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT, found
    assert "kill" in found.detail


@pytest.mark.spec("J5", "J7")
def test_a_container_that_somebody_removes_is_the_providers_failure(either: Bench) -> None:
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    either.engine.api.remove(name_of(str(attempt.home)))
    assert failed(attempt).code is FailureCode.RUNTIME_FAULT


@pytest.mark.spec("N9", "J5")
def test_a_job_does_not_outlive_its_keeper(either: Bench) -> None:
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    (keeper,) = [pid for pid, _ in attempt.family()]
    os.kill(keeper, signal.SIGKILL)
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT, found
    assert folders.processes_of(attempt.home) == [attempt.pid]


@pytest.mark.spec("N9", "J5")
def test_a_job_does_not_outlive_its_shim(either: Bench) -> None:
    """Nobody cleans up here: the keeper sees to it by itself."""
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    attempt.signal(signal.SIGKILL)
    wait_for(lambda: folders.processes_of(attempt.home) == [], "every process of the job to end")


@pytest.mark.spec("N9")
def test_what_a_killed_node_left_in_its_engine_is_cleaned_up_when_the_engine_can_be_asked(either: Bench) -> None:
    # given a node whose shim and keeper were killed in the same moment
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    tree = [attempt.pid, *(pid for pid, _ in attempt.family())]
    linux.signal_all(tree, signal.SIGSTOP)
    linux.signal_all(tree, signal.SIGKILL)
    wait_for(lambda: not attempt.shim_lives(), "the shim to die")
    assert either.containers(attempt)
    # when the engine is away, then nobody can say that nothing is left
    either.engine.kill()
    with pytest.raises(OSError):
        runtime_named("container").clean(str(attempt.home))
    # and when it is back, what was left goes
    either.engine.start()
    runtime_named("container").clean(str(attempt.home))
    assert either.containers(attempt) == []
    assert folders.processes_of(attempt.home) == []
    runtime_named("container").clean(str(attempt.home))


@pytest.mark.spec("N9")
def test_a_container_that_came_after_everything_was_cleaned_up_is_swept_away(either: Bench, tmp_path: Path) -> None:
    # given a container whose attempt's folder is gone, one whose folder is there, and one of another node
    attempt = either.script("echo here; sleep 1000")
    attempt.printed("here")
    for name, folder in (("late", tmp_path / "gone"), ("foreign", Path("/elsewhere/attempts/att"))):
        labels = {LABEL_FOLDER: str(folder)}
        wanted = {"Image": attempt.order.image, "Cmd": ["true"], "Labels": labels}
        either.engine.api.create(f"holdfast-test-{name}", wanted | {"HostConfig": {"NetworkMode": "none"}})
    # then only the first goes
    assert sweep(either.engine.socket, str(tmp_path)) == ["holdfast-test-late"]
    assert either.containers(attempt)
    assert "holdfast-test-foreign" in either.engine.containers()
    either.engine.api.remove("holdfast-test-foreign")


# --- output without end ---


def kept_bytes(folder: Path) -> Iterator[int]:
    """Sizes of the logs of an engine's containers. It may be clearing up just now."""
    for top, _, names in os.walk(folder):
        for name in names:
            if "containers" in top and name.endswith(".log"):
                with contextlib.suppress(FileNotFoundError):
                    yield os.path.getsize(os.path.join(top, name))


@pytest.mark.spec("J4")
def test_endless_output_is_cut_and_blocks_nobody(either: Bench) -> None:
    attempt = either.script("yes | head -c 60000000; echo done >&2", log_bytes_max=1 << 20)
    status = attempt.ended(LONG_S)
    assert status["outcome"]["exit_code"] == 0
    assert "done" in attempt.log("stderr")
    assert status["stdout_bytes"] <= 1 << 20
    assert status["stdout_bytes"] + status["stdout_cut"] >= 60_000_000
    # and the engine's own disk holds none of it
    assert sum(kept_bytes(either.engine.folder)) < 1 << 20


@pytest.mark.spec("J7")
def test_a_job_without_an_engine_is_the_providers_failure(surviving: Bench) -> None:
    attempt = surviving.script("true", engine="/nonexistent/socket")
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT
    assert "/nonexistent/socket" in found.detail


@pytest.mark.spec("J7")
def test_an_image_that_vanished_is_the_providers_failure(surviving: Bench) -> None:
    attempt = surviving.script("true", image="sha256:" + "0" * 64)
    found = failed(attempt)
    assert found.code is FailureCode.RUNTIME_FAULT
    assert "image" in found.detail


@pytest.mark.spec("J2")
def test_a_job_that_succeeds_leaves_a_result(either: Bench) -> None:
    assert isinstance(either.script("echo fine").verdict(LONG_S), Result)
