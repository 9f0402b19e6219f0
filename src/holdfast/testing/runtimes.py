"""The conformance suite for runtimes: limits, failure codes, signals, and what is left on the machine.

Subclass `RuntimeSuite` in a test module and fill in the fixtures that are marked as hooks. Every test uses a real
launcher and a real shim and ends in the verdict a node would give, so that a runtime is judged by what a user would
read. Bodies need only a POSIX shell and busybox, so an image needs no more.
"""

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import checkpoint
from holdfast.model import Failure, FailureCode, Result
from holdfast.node import linux
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import scratch
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.testing.attempts import Attempts, RealAttempt, all_dead, now, under_limit
from holdfast.testing.processes import wait_for

GREEDY = "tail /dev/zero"
"""A command that takes memory until it is killed. It prints nothing."""
BUSY = "while :; do :; done"
LONG_S = 90.0
"""Limit for tests that move much data on a busy machine, in seconds."""


def failure(attempt: RealAttempt, patience_s: float = LONG_S) -> Failure:
    """The failure of an attempt; a result fails the test."""
    found = attempt.verdict(patience_s)
    assert isinstance(found, Failure), f"it succeeded: {attempt.log('stdout')[-500:]}"
    return found


class RuntimeSuite:
    # --- hooks: a subclass fills these in ---

    @pytest.fixture
    def runtime(self) -> str:
        """Hook: the name of the runtime under test."""
        raise LookupError("a subclass names its runtime")

    @pytest.fixture
    def order(self) -> dict[str, Any]:
        """Hook: fields that every order must have for this runtime (`image`, `engine` …)."""
        return {}

    @pytest.fixture
    def outside(self) -> str:
        """Hook: the URL of a server beyond the machine that answers `outside` to every body that may use the
        network."""
        raise LookupError("a subclass knows a server")

    @pytest.fixture
    def fetch(self) -> str:
        """Hook: a shell command that prints the content of the URL in $1, or fails within seconds."""
        return 'wget -q -T 5 -O - "$1"'

    @pytest.fixture
    def faketime(self) -> dict[str, str]:
        """Hook: the environment that loads libfaketime into a body of this runtime. The test sets FAKETIME."""
        return {"LD_PRELOAD": "libfaketime.so.1"}

    def remains(self, folder: Path) -> list[str]:
        """Hook: what the machine still holds of the attempt in this folder, apart from processes and mounts."""
        return []

    # --- fixtures of the suite ---

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls) -> Iterator[Launcher]:
        launcher = Launcher()
        launcher.start()
        yield launcher
        launcher.close()

    @pytest.fixture
    def bodies(self, tmp_path: Path, launcher: Launcher, runtime: str, order: dict[str, Any]) -> Iterator[Attempts]:
        """Starts bodies of the runtime under test, and removes everything of them from the machine at the end."""
        made = Attempts(tmp_path, launcher, runtime=runtime, **order)
        yield made
        made.clean_up()
        for attempt in made.made:
            assert self.left(attempt.home) == []

    def left(self, folder: Path) -> list[str]:
        """Everything left of an attempt that is not a file in its folder."""
        found = [f"process {pid}" for pid in folders.processes_of(folder) if linux.start_ticks(pid) is not None]
        found += [f"mount {place}" for place in scratch.mounts_below(str(folder))]
        found += [f"loop device {device}" for device in scratch.loops_below(str(folder))]
        return found + self.remains(folder)

    # --- how a body ends ---

    @pytest.mark.spec("J7")
    @pytest.mark.parametrize("code", [1, 3, 126, 127, 137, 255])
    def test_an_exit_code_is_the_users_and_told_as_it_is(self, bodies: Attempts, code: int) -> None:
        """137 as well: a program may choose that number, and without other evidence it does not mean out of memory."""
        found = failure(bodies.start("sh", "-c", f"exit {code}"))
        assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, code)

    @pytest.mark.spec("J7")
    def test_a_body_that_exits_with_0_is_a_result(self, bodies: Attempts) -> None:
        attempt = bodies.start("sh", "-c", "echo fine")
        found = attempt.verdict()
        assert isinstance(found, Result)
        assert found.stdout_sha256 == hashlib.sha256(b"fine\n").hexdigest()

    @pytest.mark.spec("J7")
    def test_a_command_that_is_not_there_is_127(self, bodies: Attempts) -> None:
        attempt = bodies.start("no-such-command", "and", "words")
        found = failure(attempt)
        assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 127)
        assert "no-such-command" in attempt.log("stderr")

    @pytest.mark.spec("J7")
    def test_a_command_that_may_not_be_run_is_126(self, bodies: Attempts) -> None:
        found = failure(bodies.start("sh", "-c", 'echo x > plain; exec "$PWD/plain"'))
        assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 126)

    @pytest.mark.spec("J7")
    def test_a_body_that_dies_by_a_signal_is_told_with_its_number(self, bodies: Attempts) -> None:
        found = failure(bodies.start("sh", "-c", "kill -SEGV $$"))
        assert (found.code, found.signal) == (FailureCode.EXIT_CODE, signal.SIGSEGV)

    @pytest.mark.spec("J7")
    def test_sigkill_from_within_is_no_lack_of_memory(self, bodies: Attempts) -> None:
        found = failure(bodies.start("sh", "-c", "sh -c 'kill -9 $$'; exit $?", resources={"memory_mib": 64}))
        assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 137)

    # --- output, environment and identity ---

    @pytest.mark.spec("J4", "J11")
    def test_both_streams_are_kept_apart_and_complete(self, bodies: Attempts) -> None:
        attempt = bodies.start("sh", "-c", "seq 1 20000; seq 5 7 >&2; printf end")
        status = attempt.ended()
        expected = "".join(f"{n}\n" for n in range(1, 20001)) + "end"
        assert attempt.log("stdout") == expected
        assert attempt.log("stderr") == "5\n6\n7\n"
        assert status["stdout_sha256"] == hashlib.sha256(expected.encode()).hexdigest()

    @pytest.mark.spec("J2", "N5")
    def test_the_environment_is_the_jobs_and_says_where_it_is(self, bodies: Attempts) -> None:
        attempt = bodies.start(
            "env", env={"COLOUR": "blue", "HOLDFAST_JOB": "forged"}, resources={"memory_mib": 64}, checkpoint=True
        )
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        found = dict(line.split("=", 1) for line in attempt.log("stdout").splitlines() if "=" in line)
        expected = {
            "COLOUR": "blue",
            "HOME": "/work",
            "HOLDFAST_WORK_DIR": "/work",
            "HOLDFAST_CHECKPOINT_DIR": "/checkpoint",
            "HOLDFAST_JOB": "job_0a",
            "HOLDFAST_ATTEMPT": "att_0a.1",
            "HOLDFAST_MEMORY_MIB": "64",
        }
        assert {key: found.get(key) for key in expected} == expected
        assert not [key for key in found if key.startswith(("PYTEST", "SSH", "SUDO", "NOTIFY"))]

    @pytest.mark.spec("J1", "J2")
    def test_programs_start_as_many_threads_as_it_has_cores_and_python_does_not_hold_lines_back(
        self, bodies: Attempts
    ) -> None:
        attempt = bodies.start(
            "sh",
            "-c",
            'echo "$OMP_NUM_THREADS $MKL_NUM_THREADS $GOMAXPROCS $PYTHONUNBUFFERED"',
            env={"MKL_NUM_THREADS": "7"},
            resources={"cpu_milli": 1_500, "memory_mib": 64},
        )
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        assert attempt.log("stdout") == "2 7 2 1\n"

    @pytest.mark.spec("J6")
    def test_it_may_import_the_library_for_checkpoints_and_not_change_it(self, bodies: Attempts) -> None:
        script = (
            'echo "$PYTHONPATH"; ls /holdfast /holdfast/holdfast; cat /holdfast/holdfast/checkpoint.py;'
            "(echo x > /holdfast/mark) 2>/dev/null && echo changed; true"
        )
        attempt = bodies.start("sh", "-c", script, env={"PYTHONPATH": "/own"})
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        printed = attempt.log("stdout")
        assert printed.splitlines()[0] == "/own:/holdfast", "the job's own comes first"
        assert printed.split()[1:6] == ["/holdfast:", "holdfast", "/holdfast/holdfast:", "__init__.py", "checkpoint.py"]
        assert printed.endswith(Path(checkpoint.__file__).read_text())

    @pytest.mark.spec("J2")
    def test_it_works_in_its_folder_and_what_it_writes_is_there_afterwards(self, bodies: Attempts) -> None:
        attempt = bodies.prepare(
            "sh", "-c", "pwd; cat input; echo out > output; echo saved > /checkpoint/state", checkpoint=True
        )
        # given an input that was put there before the start
        runtime_named(attempt.order.runtime).prepare(attempt.order, str(attempt.home))
        (attempt.home / "work" / "input").write_text("in\n")
        assert isinstance(attempt.start().verdict(), Result), attempt.log("stderr")
        assert attempt.log("stdout") == "/work\nin\n"
        assert (attempt.home / "work" / "output").read_text() == "out\n"
        assert (attempt.home / "checkpoint" / "state").read_text() == "saved\n"

    @pytest.mark.spec("J2", "N4")
    def test_it_is_nobody_in_particular_and_can_become_nobody_else(self, bodies: Attempts) -> None:
        script = "id -u; grep -E '^(Cap...|NoNewPrivs|Groups):' /proc/self/status"
        attempt = bodies.start("sh", "-c", script)
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        uid, *lines = attempt.log("stdout").splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        assert int(uid) != 0
        assert {facts[f"Cap{kind}"].strip() for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert facts["NoNewPrivs"].strip() == "1"

    @pytest.mark.spec("J2", "N4")
    def test_two_bodies_at_a_time_are_two_users_of_the_machine_and_neither_is_root(self, bodies: Attempts) -> None:
        both = [bodies.start("sh", "-c", "echo here > mark; echo here; sleep 60") for _ in range(2)]
        uids: set[int] = set()
        for attempt in both:
            attempt.printed("here")
            uids.add(os.stat(attempt.home / "work" / "mark").st_uid)
        assert len(uids) == 2
        assert 0 not in uids

    @pytest.mark.spec("J2", "N4")
    def test_nothing_but_its_own_folders_can_be_written_to(self, bodies: Attempts) -> None:
        script = """
        for place in / /usr /usr/bin /bin /etc /var /dev /proc/sys/kernel /work /tmp /checkpoint; do
            (echo x > $place/mark) 2>/dev/null && echo $place
        done; true"""
        attempt = bodies.start("sh", "-c", script, checkpoint=True)
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        assert attempt.log("stdout").split() == ["/work", "/tmp", "/checkpoint"]
        assert not Path("/tmp/mark").exists()

    @pytest.mark.spec("J2", "N4")
    def test_without_a_lease_on_a_gpu_it_sees_none(self, bodies: Attempts) -> None:
        attempt = bodies.start("sh", "-c", "ls /dev; ls /dev/dri 2>/dev/null; true")
        assert isinstance(attempt.verdict(), Result)
        found = attempt.log("stdout").split()
        assert "null" in found
        assert not [name for name in found if name.startswith(("nvidia", "kfd", "card", "render"))]

    # --- the network ---

    @pytest.mark.spec("N4", "J2")
    def test_without_leave_there_is_no_network(self, bodies: Attempts) -> None:
        attempt = bodies.start("cat", "/proc/net/dev")
        assert isinstance(attempt.verdict(), Result)
        names = [line.split(":")[0].strip() for line in attempt.log("stdout").splitlines() if ":" in line]
        assert names == ["lo"]

    @pytest.mark.spec("N4", "J2")
    def test_with_leave_it_reaches_the_world(self, bodies: Attempts, outside: str, fetch: str) -> None:
        attempt = bodies.start("sh", "-c", fetch, "sh", outside, network=True)
        assert isinstance(attempt.verdict(LONG_S), Result), attempt.log("stderr")
        assert "outside" in attempt.log("stdout")
        kept = bodies.start("sh", "-c", fetch, "sh", outside)
        assert failure(kept, LONG_S).code is FailureCode.EXIT_CODE

    # --- limits ---

    @pytest.mark.spec("N4", "J7")
    def test_memory_beyond_its_own_limit_is_the_users_fault(self, bodies: Attempts) -> None:
        attempt = bodies.start("sh", "-c", GREEDY, resources={"memory_mib": 64})
        found = failure(attempt)
        assert found.code is FailureCode.OOM_JOB, found
        assert "64 MiB" in found.detail

    @pytest.mark.spec("N4", "J7")
    def test_a_child_that_takes_too_much_ends_the_whole_body(self, bodies: Attempts) -> None:
        script = f"echo here; {GREEDY} & wait; sleep 60"
        found = failure(bodies.start("sh", "-c", script, resources={"memory_mib": 64}))
        assert found.code is FailureCode.OOM_JOB, found

    @pytest.mark.spec("N4", "J7")
    def test_what_lies_in_tmp_counts_as_memory(self, bodies: Attempts) -> None:
        script = "dd if=/dev/zero of=/tmp/big bs=1M count=200"
        attempt = bodies.start("sh", "-c", script, resources={"memory_mib": 64})
        found = failure(attempt)
        # killed, or refused for lack of space: never 200 MiB
        assert found.code in (FailureCode.OOM_JOB, FailureCode.EXIT_CODE), found

    @pytest.mark.spec("N4")
    def test_a_fork_bomb_is_contained(self, bodies: Attempts) -> None:
        # given a body that forks as long as it can
        script = "n=0; while [ $n -lt 300 ]; do sleep 60 & n=$((n+1)); done; echo all; sleep 60"
        attempt = bodies.start("sh", "-c", script, limits={"pids": 20}, stop_grace_ms=0, log_bytes_max=10_000)
        status = attempt.until(
            lambda status: status["phase"] == "ended" or status.get("usage", {}).get("pids", 0) >= 15, LONG_S
        )
        # then there are never more than its limit, and all of them end with it
        assert status["phase"] == "ended" or status["usage"]["pids"] <= 20
        assert len(attempt.family()) <= 20 + 4
        if status["phase"] != "ended":
            attempt.say("stop", reason="enough")
            attempt.ended()
        assert "all" not in attempt.log("stdout")

    @pytest.mark.spec("N4")
    @pytest.mark.serial
    def test_it_gets_the_processor_time_it_asked_for_and_no_more(self, bodies: Attempts) -> None:
        # given a body that would use two cores, with a quarter of one
        began = now()
        attempt = bodies.start("sh", "-c", f"{BUSY} & {BUSY}", resources={"cpu_milli": 250})
        attempt.until(lambda status: status.get("usage", {}).get("cpu_ms", 0) > 0)
        seen = now()
        held: list[int] = []
        later = attempt.until(
            lambda status: held.append(status["usage"]["throttled_permille"]) or now() - seen > 3_000, LONG_S
        )
        # then it used at most that, within the kernel's periods, and its waiting is reported
        assert later["usage"]["cpu_ms"] <= (now() - began) * 0.25 * 1.3 + 200
        assert max(held) > 0

    @pytest.mark.spec("N4", "J7")
    def test_processor_seconds_beyond_its_limit_are_the_users_fault(self, bodies: Attempts) -> None:
        found = failure(bodies.start("sh", "-c", BUSY, limits={"cpu_s": 1}))
        assert found.code is FailureCode.TIME_LIMIT, found

    @pytest.mark.spec("N4", "J7")
    def test_a_disk_that_the_body_filled_is_the_users_fault(self, bodies: Attempts) -> None:
        script = "dd if=/dev/zero of=big bs=64k count=4000"
        attempt = bodies.start("sh", "-c", script, resources={"disk_mib": 32})
        found = failure(attempt, LONG_S)
        assert found.code is FailureCode.DISK_QUOTA, (found, attempt.log("stderr"))
        assert "32 MiB" in found.detail

    @pytest.mark.spec("N4", "J7")
    def test_what_it_was_promised_of_the_disk_it_gets(self, bodies: Attempts) -> None:
        script = "dd if=/dev/zero of=big bs=1M count=15 && dd if=/dev/zero of=/checkpoint/big bs=1M count=15"
        attempt = bodies.start("sh", "-c", script, resources={"disk_mib": 32}, checkpoint=True)
        assert isinstance(attempt.verdict(LONG_S), Result), attempt.log("stderr")

    @pytest.mark.spec("N4", "J7")
    def test_a_disk_that_others_filled_is_the_nodes_fault(self, bodies: Attempts, small_disk: Path) -> None:
        # given a node whose disk has too little space for the job's request
        attempt = bodies.prepare("sh", "-c", "echo ran", home=small_disk / "att", resources={"disk_mib": 64})
        found = failure(attempt.start())
        assert found.code is FailureCode.NODE_DISK_FULL, found
        assert attempt.log("stdout") == ""

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A disk with space for logs and little else."""
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(disk)], check=True)
        yield disk
        subprocess.run(["umount", "-l", str(disk)], check=True)

    @pytest.mark.spec("N4", "A1")
    def test_what_it_uses_is_told_while_it_runs(self, bodies: Attempts) -> None:
        script = "dd if=/dev/zero of=/tmp/m bs=1M count=40; dd if=/dev/zero of=d bs=1M count=10; echo here; sleep 60"
        attempt = bodies.start("sh", "-c", script, resources={"memory_mib": 256, "disk_mib": 64})
        attempt.printed("here")
        # reports of measurements from before it printed arrive first
        usage = attempt.until(
            lambda status: (used := status["usage"]) and used["memory_mib"] >= 40 and used["disk_mib"] >= 9
        )["usage"]
        assert 40 <= usage["memory_mib"] <= usage["memory_peak_mib"] <= 256
        assert 9 <= usage["disk_mib"] <= 64
        assert 1 <= usage["pids"] <= 10
        assert 0 < usage["cpu_ms"] < 20_000

    # --- stopping and ending ---

    @pytest.mark.spec("N4", "J7")
    def test_at_its_time_limit_it_may_say_goodbye(self, bodies: Attempts) -> None:
        script = "trap 'echo bye; exit 4' TERM; echo here; while :; do sleep 0.05; done"
        attempt, _ = under_limit(
            lambda limit_ms: bodies.start("sh", "-c", script, time_limit_ms=limit_ms, stop_grace_ms=30_000), "here"
        )
        found = failure(attempt)
        assert (found.code, found.exit_code) == (FailureCode.TIME_LIMIT, 4)
        assert attempt.log("stdout") == "here\nbye\n"

    @pytest.mark.spec("N4", "J12")
    def test_a_body_that_ignores_sigterm_is_killed_after_the_grace(self, bodies: Attempts) -> None:
        attempt = bodies.start("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done")
        attempt.printed("deaf")
        family, asked = attempt.family(), now()
        attempt.say("stop", reason="superseded")
        outcome = attempt.outcome()
        assert (outcome["kind"], outcome["signal"]) == ("stopped", signal.SIGKILL)
        assert now() - asked >= 300
        assert all_dead(family)

    @pytest.mark.spec("J12")
    def test_every_process_of_it_hears_sigterm(self, bodies: Attempts) -> None:
        child = "trap 'echo child; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        script = f'sh -c "{child}" & trap "wait; echo parent; exit 0" TERM; echo here; wait'
        attempt = bodies.start("sh", "-c", script, stop_grace_ms=30_000)
        attempt.printed("here")
        attempt.printed("up")
        attempt.say("stop", reason="drain")
        attempt.ended()
        assert {"child", "parent"} <= set(attempt.log("stdout").split())

    @pytest.mark.spec("N9", "J5")
    def test_no_child_that_daemonised_outlives_it(self, bodies: Attempts) -> None:
        script = "(setsid sh -c 'echo daemon; sleep 1000' &) ; while [ ! -e finish ]; do sleep 0.05; done"
        attempt = bodies.start("sh", "-c", script)
        attempt.printed("daemon")
        (attempt.home / "work" / "finish").touch()
        assert isinstance(attempt.verdict(), Result)
        assert attempt.family() == []
        assert folders.processes_of(attempt.home) == [attempt.pid]

    @pytest.mark.spec("N9", "J5")
    def test_kill_9_of_the_shim_takes_the_body_along_and_leaves_nothing(self, bodies: Attempts, runtime: str) -> None:
        attempt = bodies.start(
            "sh", "-c", "echo here; sleep 1000", resources={"disk_mib": 32, "memory_mib": 64, "cpu_milli": 500}
        )
        attempt.printed("here")
        attempt.signal(signal.SIGKILL)
        wait_for(lambda: not attempt.shim_lives(), "the shim to die")
        folders.end_processes(attempt.home)
        runtime_named(runtime).clean(str(attempt.home))
        assert self.left(attempt.home) == []
        folders.remove(attempt.home)
        # and cleaning once more, without folder or order, is not an error
        runtime_named(runtime).clean(str(attempt.home))

    # --- clocks ---

    @pytest.mark.spec("N4", "J7")
    def test_a_clock_that_jumped_in_the_job_moves_no_limit(self, bodies: Attempts, faketime: dict[str, str]) -> None:
        # given a body whose clock is ten years ahead and hardly moves
        env = faketime | {"FAKETIME": "+10y x0.01"}
        script = "date +%Y; while :; do sleep 0.01; done"
        began: list[int] = []

        def start(limit_ms: int) -> RealAttempt:
            began.append(now())
            return bodies.start("sh", "-c", script, env=env, time_limit_ms=limit_ms)

        attempt, limit_ms = under_limit(start, "\n")
        found = failure(attempt)
        # then its limit is measured by the node in real time: by the body's own clock it would take a hundred times as
        # long
        assert found.code is FailureCode.TIME_LIMIT, found
        assert limit_ms <= now() - began[-1] < 60 * limit_ms
        assert int(attempt.log("stdout").split()[0]) >= _year() + 9


def _year() -> int:
    import time

    return time.gmtime().tm_year
