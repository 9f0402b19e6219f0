"""A body under its shim: how it ends, what it printed, and every limit that ends it. Real processes."""

import contextlib
import hashlib
import json
import signal
import socket

import pytest

from holdfast.testing.attempts import Attempts, RealAttempt, all_dead, now, under_limit
from holdfast.testing.processes import wait_for

RUNTIMES = ("bubblewrap", "process")
both_runtimes = pytest.mark.parametrize("runtime", RUNTIMES)
LEASED = {"lease_ms": 60_000, "wait_for_go": True}
PATIENT_MS = 4_000
"""A limit that nobody meets who is held up for some seconds."""


@pytest.mark.spec("J7")
@both_runtimes
@pytest.mark.parametrize(("words", "code"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255)])
def test_the_exit_code_of_a_body_is_told(attempts: Attempts, runtime: str, words: str, code: int) -> None:
    attempt = attempts.start("sh", "-c", words, runtime=runtime)
    status = attempt.ended()
    assert (status["outcome"]["kind"], status["outcome"]["exit_code"]) == ("exit", code)
    assert status["outcome"]["signal"] is None
    assert attempt.on_disk() == status


@pytest.mark.spec("J7")
@both_runtimes
def test_a_body_that_dies_by_a_signal_is_told_apart(attempts: Attempts, runtime: str) -> None:
    outcome = attempts.start("sh", "-c", "kill -SEGV $$", runtime=runtime).outcome()
    assert (outcome["kind"], outcome["signal"]) == ("exit", signal.SIGSEGV)
    # a sandbox passes on what a shell would say
    assert outcome["exit_code"] == (128 + signal.SIGSEGV if runtime == "bubblewrap" else None)


@pytest.mark.spec("J7")
@both_runtimes
def test_a_command_that_is_not_there_is_exit_code_127_as_in_a_shell(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("no-such-command", runtime=runtime)
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["exit_code"]) == ("exit", 127)
    assert "no-such-command" in attempt.log("stderr")


@pytest.mark.spec("J4", "J11")
@both_runtimes
def test_both_streams_are_kept_apart_in_order_and_with_the_digest_of_stdout(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("sh", "-c", "seq 1 20000; seq 5 7 >&2; printf end", runtime=runtime)
    status = attempt.ended()
    expected = "".join(f"{n}\n" for n in range(1, 20001)) + "end"
    assert attempt.log("stdout") == expected
    assert attempt.log("stderr") == "5\n6\n7\n"
    assert status["stdout_sha256"] == hashlib.sha256(expected.encode()).hexdigest()
    assert (status["stdout_bytes"], status["stderr_bytes"]) == (len(expected), 6)
    assert (status["stdout_cut"], status["stderr_cut"]) == (0, 0)


@pytest.mark.spec("J4", "N4")
@both_runtimes
def test_a_log_that_was_cut_says_so_at_its_end(attempts: Attempts, runtime: str) -> None:
    # when a body prints more than a log may hold
    words = "head -c 300000 /dev/zero | tr '\\0' x; echo done >&2"
    attempt = attempts.start("sh", "-c", words, runtime=runtime, log_bytes_max=8192)
    status = attempt.ended()

    # then the log ends with a word about it, stays within its cap, and its digest is that of the file
    log = attempt.log("stdout")
    assert log.endswith("[holdfast: more than 8192 bytes were printed; the rest is cut]\n")
    assert len(log) == status["stdout_bytes"] <= 8192
    assert status["stdout_sha256"] == hashlib.sha256(log.encode()).hexdigest()


@pytest.mark.spec("N4")
@both_runtimes
def test_a_log_is_cut_at_its_cap_and_the_body_goes_on(attempts: Attempts, runtime: str) -> None:
    command = "head -c 300000 /dev/zero; echo done >&2"
    attempt = attempts.start("sh", "-c", command, runtime=runtime, log_bytes_max=1000)
    status = attempt.ended()
    assert status["outcome"]["exit_code"] == 0
    assert (status["stdout_bytes"], status["stdout_cut"]) == (1000, 299_000)
    assert (attempt.home / "stdout.log").read_bytes() == bytes(1000)
    assert status["stdout_sha256"] == hashlib.sha256(bytes(1000)).hexdigest()
    assert attempt.log("stderr") == "done\n"


@pytest.mark.spec("J4")
def test_growing_logs_are_told_while_the_body_runs_but_not_for_every_line(attempts: Attempts) -> None:
    # given a body that prints a word, and then a line every few milliseconds for half a second
    began = now()
    script = "echo a; while [ ! -e go ]; do sleep 0.02; done; for i in $(seq 100); do echo $i; sleep 0.005; done"
    attempt = attempts.start("sh", "-c", script)
    heard = []
    # then its word is told while it runs
    attempt.until(lambda status: heard.append(status["stdout_bytes"]) or status["stdout_bytes"] == 2)
    (attempt.home / "work" / "go").touch()
    attempt.until(lambda status: heard.append(status["stdout_bytes"]) or status["phase"] == "ended")
    took = now() - began
    # and there are no more notices than one in 50 ms, besides those for changes of phase and, each second, of its use
    assert len(set(heard)) > 2
    assert heard == sorted(heard)
    assert len(heard) <= took / 50 + took / 1_000 + 6


@pytest.mark.spec("N4", "J7")
@both_runtimes
def test_at_its_time_limit_a_body_is_told_to_stop_and_may_say_goodbye(attempts: Attempts, runtime: str) -> None:
    command = "trap 'echo bye; exit 4' TERM; echo here; while :; do sleep 0.05; done"

    def start(limit_ms: int) -> RealAttempt:
        return attempts.start("sh", "-c", command, runtime=runtime, time_limit_ms=limit_ms, stop_grace_ms=30_000)

    attempt, _ = under_limit(start, "here")
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["exit_code"]) == ("time_limit", 4)
    assert attempt.log("stdout") == "here\nbye\n"


@pytest.mark.spec("N4", "J7")
@both_runtimes
def test_a_body_that_ignores_sigterm_is_killed_after_the_grace(attempts: Attempts, runtime: str) -> None:
    command = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    attempt = attempts.start("sh", "-c", command, runtime=runtime)
    attempt.printed("deaf")
    family = attempt.family()
    asked = now()
    attempt.say("stop", reason="superseded")
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["detail"], outcome["signal"]) == ("stopped", "superseded", signal.SIGKILL)
    assert now() - asked >= 300
    assert all_dead(family)


@pytest.mark.spec("J12", "N7")
@both_runtimes
def test_sigterm_to_the_shim_stops_the_body_in_good_order(attempts: Attempts, runtime: str) -> None:
    command = "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    attempt = attempts.start("sh", "-c", command, runtime=runtime, stop_grace_ms=30_000)
    attempt.printed("here")
    attempt.signal(signal.SIGTERM)
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["exit_code"]) == ("stopped", 0)
    assert attempt.log("stdout") == "here\nbye\n"


# --- class never: go and lease ---


@pytest.mark.spec("J5", "J8")
@both_runtimes
def test_without_a_go_the_body_does_not_start_and_with_go_and_lease_it_does(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("sh", "-c", "echo started", runtime=runtime, **LEASED)
    # given: ready, and a lease but no go, then a go but no valid lease
    assert attempt.hear()["phase"] == "ready"
    attempt.say("lease", until_ms=now())
    attempt.say("go")
    assert attempt.until(lambda status: status["go"])["phase"] == "ready"
    assert attempt.family() == []
    # when both hold
    attempt.say("lease", until_ms=now() + 50_000)
    # then it runs to its end
    assert attempt.outcome()["exit_code"] == 0
    assert attempt.log("stdout") == "started\n"


@pytest.mark.serial
@pytest.mark.spec("J5")
@both_runtimes
def test_when_its_lease_ends_the_body_is_dead_and_no_later(attempts: Attempts, runtime: str) -> None:
    # given a body that ignores SIGTERM and notes the time, on the clock of leases, for as long as it lives
    command = "trap '' TERM; echo deaf; while :; do cat /proc/uptime; sleep 0.005; done"
    until: list[int] = []

    def start(lease_ms: int) -> RealAttempt:
        attempt = attempts.start("sh", "-c", command, runtime=runtime, lease_ms=lease_ms, wait_for_go=True)
        until.append(now() + lease_ms)
        attempt.say("lease", until_ms=until[-1])
        attempt.say("go")
        return attempt

    attempt, lease_ms = under_limit(start, "deaf")
    family = attempt.family()
    # when nobody renews it
    outcome = attempt.outcome()
    # then it was killed in time: nothing of it did anything later
    last = float(attempt.log("stdout").splitlines()[-1].split()[0])
    assert until[-1] - lease_ms < last * 1_000 <= until[-1]
    assert all_dead(family)
    assert (outcome["kind"], outcome["signal"]) == ("lease", signal.SIGKILL)


@pytest.mark.spec("J5")
def test_a_lease_that_is_renewed_keeps_the_body_alive(attempts: Attempts) -> None:
    command = "echo here; while [ ! -e enough ]; do sleep 0.02; done; echo whole"
    attempt = attempts.start("sh", "-c", command, lease_ms=PATIENT_MS, wait_for_go=True)
    began = now()
    attempt.say("lease", until_ms=began + PATIENT_MS)
    attempt.say("go")
    attempt.printed("here")

    def outlived_the_first() -> bool:
        attempt.say("lease", until_ms=now() + PATIENT_MS)
        return now() > began + PATIENT_MS + 1_000

    wait_for(outlived_the_first, "more than a lease to pass", every_s=0.1)
    (attempt.home / "work" / "enough").touch()
    assert attempt.outcome()["kind"] == "exit"
    assert attempt.log("stdout") == "here\nwhole\n"


@pytest.mark.spec("J5", "N5")
def test_a_lease_longer_than_the_order_allows_is_not_believed(attempts: Attempts) -> None:
    attempt = attempts.start("sleep", "60", lease_ms=800, wait_for_go=True)
    began = now()
    attempt.say("lease", until_ms=began + 10**9)
    attempt.say("go")
    assert attempt.outcome()["kind"] == "lease"
    assert now() - began < 60_000


# --- orphans ---


@pytest.mark.spec("N5", "H6")
@both_runtimes
def test_cut_off_for_too_long_the_body_ends_and_each_word_of_contact_moves_that(
    attempts: Attempts, runtime: str
) -> None:
    command = "echo here; sleep 60"
    attempt, limit_ms = under_limit(
        lambda limit_ms: attempts.start("sh", "-c", command, runtime=runtime, orphan_ms_max=limit_ms), "here", 3_000
    )
    word = now()
    attempt.say("contact", at_ms=word)
    attempt.say("contact", at_ms=word - 100_000)  # an old word takes nothing back
    outcome = attempt.outcome()
    assert outcome["kind"] == "orphan"
    assert now() >= word + limit_ms


@pytest.mark.spec("J14", "N9")
@both_runtimes
def test_a_body_does_not_notice_that_the_agent_comes_and_goes(attempts: Attempts, runtime: str) -> None:
    # given a body that waits for a file
    command = "echo here; while [ ! -e finish ]; do sleep 0.02; done; echo whole"
    attempt = attempts.start("sh", "-c", command, runtime=runtime)
    attempt.printed("here")
    # when the agent's line is cut, and another agent dials in
    assert attempt.line is not None
    attempt.line.close()
    attempt.dial()
    assert attempt.hear()["phase"] == "running"
    (attempt.home / "work" / "finish").touch()
    # then it hears the end
    assert attempt.outcome()["exit_code"] == 0
    assert attempt.log("stdout") == "here\nwhole\n"


# --- after the end ---


@pytest.mark.spec("N9")
def test_the_shim_stays_after_the_end_until_it_may_go_and_its_file_says_all(attempts: Attempts) -> None:
    attempt = attempts.start("echo", "hello")
    told = attempt.ended()
    assert attempt.shim_lives()
    attempt.say("exit")
    wait_for(lambda: not attempt.shim_lives(), "the shim to go")
    assert attempt.on_disk() == told
    assert told["stdout_sha256"] == hashlib.sha256(b"hello\n").hexdigest()
    assert not (attempt.home / "control.sock").exists()


@pytest.mark.spec("N9")
def test_a_running_body_is_not_left_by_its_shim(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; while [ ! -e finish ]; do sleep 0.02; done")
    attempt.printed("here")
    attempt.say("exit")
    attempt.say("ping")
    assert attempt.hear()["phase"] == "running"
    (attempt.home / "work" / "finish").touch()
    assert attempt.outcome()["exit_code"] == 0


@pytest.mark.spec("H6", "N9")
def test_a_shim_that_nobody_asks_after_its_end_goes_by_itself(attempts: Attempts) -> None:
    attempt = attempts.prepare("true", orphan_ms_max=500)
    attempt.spawn()
    wait_for(lambda: not attempt.shim_lives(), "the shim to go")
    assert attempt.on_disk()["outcome"]["kind"] in ("exit", "orphan")


@pytest.mark.spec("N5")
def test_what_is_no_message_ends_that_line_and_no_other(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; while [ ! -e finish ]; do sleep 0.02; done")
    attempt.printed("here")
    good = attempt.line
    for garbage in (b"\x00\xff\n", b"[1]\n", b"{" * 70_000):
        attempt.dial()
        assert attempt.line is not None
        line = attempt.line
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not listen to the end
            line.sendall(garbage)
        wait_for(lambda line=line: _hung_up(line), "the shim to hang up")
    attempt.line = good
    attempt.say("lease", until_ms="soon")
    attempt.say("ping")
    assert attempt.hear()["phase"] == "running"
    (attempt.home / "work" / "finish").touch()
    assert attempt.outcome()["exit_code"] == 0


def _hung_up(line: socket.socket) -> bool:
    try:
        return line.recv(65536) == b""
    except ConnectionResetError:
        return True


@pytest.mark.spec("J4")
def test_an_agent_that_does_not_read_holds_up_nobody(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; while [ ! -e finish ]; do echo x; sleep 0.01; done")
    deaf = attempt.line
    attempt.dial()
    for _ in range(3_000):
        attempt.say("ping")
    assert deaf is not None
    deaf.sendall(b'{"do":"ping"}\n' * 20_000)
    (attempt.home / "work" / "finish").touch()
    assert attempt.outcome()["exit_code"] == 0
    deaf.close()


@pytest.mark.spec("N5", "J7")
def test_an_order_that_cannot_be_used_is_a_fault_and_runs_nothing(attempts: Attempts) -> None:
    attempt = attempts.prepare("true")
    (attempt.home / "order.json").write_text(json.dumps({"argv": ["true"]}))
    attempt.launcher.spawn_now(str(attempt.home))
    wait_for((attempt.home / "status.json").exists, "a status")
    status = attempt.on_disk()
    assert status["phase"] == "ended"
    assert (status["outcome"]["kind"], status["outcome"]["code"]) == ("fault", "runtime_fault")
    assert "order.json" in status["outcome"]["detail"]


@pytest.mark.spec("J7")
def test_a_runtime_that_does_not_exist_is_a_fault(attempts: Attempts) -> None:
    outcome = attempts.start("true", runtime="submarine").outcome()
    assert (outcome["kind"], outcome["code"]) == ("fault", "runtime_fault")
    assert "submarine" in outcome["detail"]
