"""The shim: the process that supervises one body from start to end, and survives the agent.

It carries out what the attempt lifecycle decides, captures what the body prints, and reports the state in `status.json`
and on `control.sock`. It knows no network and no other attempt. One thread, one loop.
"""

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

from holdfast.boottime import boottime_ms
from holdfast.durable import durable_create, durable_write
from holdfast.node import linux
from holdfast.node.capture import StreamCapture
from holdfast.node.control import Control
from holdfast.node.core.attempt_lifecycle import Act, AttemptLifecycle, BodyOutcome, EndKind, Phase
from holdfast.node.core.order import Order
from holdfast.node.core.resource_usage import excess, words
from holdfast.node.runtimes.runtime import Body, Usage, runtime_named
from holdfast.passing import briefly, is_passing, once_more

TAKEN = 3
"""Exit code: this attempt has, or had, a shim. It never gets a second one, so that a body starts at most once."""
UNUSABLE = 4
"""Exit code: the folder cannot be used; nothing was started."""

_NOTICE_MS = 50
"""Minimum time between two notices that the logs grew."""
_LOOK_MS = 1_000
"""How often the shim checks that its folder still exists, and what its body uses."""
_SWEEP_MS = 20
"""How often SIGKILL is repeated until no process of the body is left."""
_RESERVE_BYTES = 16 * 1024
"""Reserved from the start, so that the final status can be written on a full disk."""
_RESERVE = "status.reserve"
_START_MS = 5_000
"""How long a start that fails with a passing error is tried again."""
_START_AGAIN_MS = 100


def main(home: str) -> int:
    """Run the shim of the attempt in folder `home`. Returns when nothing is left to do."""
    try:
        claim(home)
    except FileExistsError:
        _note(f"{home} has, or had, a shim already")
        return TAKEN
    except OSError as error:
        _note(f"{home} cannot be used: {error}")
        return UNUSABLE
    return stand_by()


def claim(home: str) -> None:
    """Make this process the attempt's shim and its folder the current one. Raises FileExistsError if it had a shim
    before.

    Only one of several processes can create a given hard link, and only once.
    """
    os.umask(0o077)
    with contextlib.suppress(PermissionError):  # already a leader
        os.setsid()
    os.chdir(home)
    me = os.getpid()
    identity = json.dumps({"pid": me, "start_ticks": briefly(linux.start_ticks, me), "boot": linux.boot_id()}).encode()
    # The content is synced before the name exists: an empty shim.json would claim the attempt for no process. The
    # folder is not synced, because no shim survives a power cut.
    durable_create("shim.json", identity, draft=f"shim.json.{me}", folder=False)


def stand_by() -> int:
    """After `claim`: read the order and carry it out."""
    linux.adopt_orphans()
    linux.name_process("holdfast-shim")
    try:
        order = Order.from_dict(json.loads(briefly(_read_order)))
    except (OSError, ValueError) as error:
        fault = BodyOutcome(EndKind.FAULT, code="runtime_fault", detail=f"order.json cannot be used: {error}")
        with contextlib.suppress(OSError):
            _replace("status.json", {"phase": Phase.ENDED.value, "outcome": fault.to_dict()})
        return UNUSABLE
    Shim(order).run()
    return 0


def _read_order() -> bytes:
    with open("order.json", "rb") as file:
        return file.read()


def _note(text: str) -> None:
    """Write a line to shim.log. A full disk must not end the shim here."""
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast shim: {text}\n".encode(errors="replace"))


def _replace(path: str, content: dict[str, Any]) -> None:
    """Replace the file atomically and durably."""
    durable_write(path, json.dumps(content).encode(), folder=False)


def _fault_code(error: OSError) -> str:
    return "node_disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "runtime_fault"


class Shim:
    """Runs in the attempt's folder, which is the current one."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lifecycle = AttemptLifecycle(order, boottime_ms())
        self._selector = selectors.DefaultSelector()
        self._timer = linux.BootTimer()
        self._selector.register(self._timer, selectors.EVENT_READ, self._timer.clear)
        self._captures: dict[str, StreamCapture] = {}
        self._control: Control | None = None
        self._body: Body | None = None
        self._wait_status: int | None = None
        self._usage: Usage | None = None
        """The body's usage at the last check."""
        self._childless = True
        self._sweep_at = 0
        self._look_at = 0
        self._start_at = self._start_until = 0
        self._untold = False
        """A request to end has not reached the body yet."""
        self._leave_at: int | None = None
        self._leaving = False
        self._said: tuple[object, ...] = ()
        self._saved = True
        self._noticed_at = 0
        self._told_bytes = 0
        self._told_usage: Usage | None = None

    def run(self) -> None:
        self._catch_signals()
        try:
            self._open()
        except OSError as error:
            self._fault(error, "prepare")
        self._step()
        while not self._leaving:
            self._timer.set(self._wake_at())
            for key, _ in self._selector.select():
                key.data()
            self._step()
        if self._control is not None:
            self._control.close()
            with contextlib.suppress(OSError):
                os.unlink("control.sock")

    def status(self) -> dict[str, Any]:
        """The content of `status.json` and of every line to an agent."""
        status = self._lifecycle.status()
        status["body_pid"] = self._body.pid if self._body else None
        status["usage"] = asdict(self._usage) if self._usage else {}
        for name, capture in self._captures.items():
            status[f"{name}_bytes"] = capture.kept
            status[f"{name}_cut"] = capture.cut
        if "stdout" in self._captures:
            status["stdout_sha256"] = self._captures["stdout"].sha256
        return status

    # --- setting up ---

    def _catch_signals(self) -> None:
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._wakers = (wake, woken)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._selector.register(wake, selectors.EVENT_READ, self._signalled)

    def _open(self) -> None:
        self._control = Control(self._selector, self.status, self._obey)
        with briefly(open, _RESERVE, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
        for name in ("stdout", "stderr"):
            self._captures[name] = StreamCapture(f"{name}.log", self._order.log_bytes_max)

    # --- input ---

    def _signalled(self) -> None:
        numbers = self._wakers[0].recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._lifecycle.stop("the shim was asked to end")

    def _obey(self, message: dict[str, Any]) -> None:
        """Handle a message of the agent. Times in it are only accepted within plausible bounds."""
        now = boottime_ms()
        match message:
            case {"do": "go"}:
                self._lifecycle.go(now)
            case {"do": "lease", "until_ms": int(until)}:
                self._lifecycle.lease(min(until, now + self._order.lease_ms))
            case {"do": "contact", "at_ms": int(at)}:
                self._lifecycle.contact(min(at, now))
            case {"do": "stop"}:
                self._lifecycle.stop(str(message.get("reason", ""))[:500])
            case {"do": "exit"} if self._lifecycle.phase is Phase.ENDED:
                self._leaving = True
            case _:
                _note(f"not understood: {str(message)[:200]}")

    def _read(self, name: str) -> None:
        capture = self._captures[name]
        try:
            more = capture.read()
        except OSError as error:
            if is_passing(error):
                return  # the pipe keeps what it has
            self._fault(error, f"write {name}.log")
            more = False
        if not more:
            self._selector.unregister(capture.pipe)

    # --- actions ---

    def _step(self) -> None:
        """After any event: act on the body, then report what changed."""
        now = boottime_ms()
        self._reap()
        if now >= self._look_at:
            self._look_at = now + _LOOK_MS
            self._look(now)
        match self._lifecycle.due(now):
            case Act.START:
                self._start()
            case Act.TERM if self._body:
                self._request_end(self._body)
            case Act.KILL if self._body:
                self._body.signal(signal.SIGKILL)
            case _:
                pass
        if self._wait_status is not None and self._lifecycle.phase is not Phase.ENDED:
            self._bury(now)
        self._tell(now)

    def _start(self) -> None:
        now = boottime_ms()
        if now < self._start_at:
            self._lifecycle.spawn_later()
            return
        out, err = self._captures["stdout"], self._captures["stderr"]
        try:
            runtime = runtime_named(self._order.runtime)
            once_more(runtime.prepare, self._order, os.getcwd())
            self._body = once_more(runtime.start, self._order, os.getcwd(), out.body_end, err.body_end)
        except (OSError, ValueError) as error:
            self._start_until = self._start_until or now + _START_MS
            if isinstance(error, OSError) and is_passing(error) and now < self._start_until:
                _note(f"the body cannot be started, trying again: {error}")
                self._start_at = now + _START_AGAIN_MS
                self._lifecycle.spawn_later()
                return
            code = _fault_code(error) if isinstance(error, OSError) else "runtime_fault"
            self._lifecycle.spawn_failed(code, f"could not start the body: {error}")
            return
        self._childless = False
        self._lifecycle.body_started(boottime_ms())
        for name, capture in self._captures.items():
            capture.release_body_end()
            self._selector.register(capture.pipe, selectors.EVENT_READ, lambda name=name: self._read(name))

    def _request_end(self, body: Body) -> None:
        """Repeated with each check until it can be sent."""
        try:
            body.signal(signal.SIGTERM)
            self._untold = False
        except OSError as error:
            _note(f"the body cannot be asked to end, trying again: {error}")
            self._untold = True

    def _reap(self) -> None:
        """Orphans below become children of the shim, so a shim without children has no descendants at all."""
        while not self._childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if self._body is not None and pid == self._body.pid:
                self._wait_status = status

    def _bury(self, now: int) -> None:
        """After the body has ended: kill the processes it left, and when they are dead, close the logs and report the
        end."""
        assert self._body is not None and self._wait_status is not None
        if not self._childless:
            if now >= self._sweep_at:
                self._sweep_at = now + _SWEEP_MS
                self._body.signal(signal.SIGKILL)
            return
        for name, capture in self._captures.items():
            try:
                capture.drain()
                capture.sync()
            except OSError as error:
                self._fault(error, f"write {name}.log")
        last_words = self._captures["stderr"].last_words.decode(errors="replace")
        ended = self._body.ended(self._wait_status, last_words)
        if ended.fault or ended.code:
            code = ended.code or "runtime_fault"
            self._lifecycle.fault(code, ended.fault or words(self._order, code))
        self._lifecycle.body_ended(ended.exit_code, ended.signal, now)

    def _fault(self, error: OSError, doing: str) -> None:
        self._lifecycle.fault(_fault_code(error), f"could not {doing}: {error.strerror or error}")

    # --- reporting ---

    def _tell(self, now: int) -> None:
        """A change is written to disk first, then sent to the agents; log growth is sent to the agents only, and
        throttled."""
        lifecycle = self._lifecycle
        told = (lifecycle.phase, lifecycle.outcome, lifecycle.status()["stopping"], lifecycle.status()["go"])
        if told != self._said:
            self._said = told
            if lifecycle.phase is Phase.ENDED and self._leave_at is None:
                self._leave_at = now + self._order.orphan_ms_max
            self._save()
        elif self._usage is self._told_usage and (not self._grown() or now < self._noticed_at + _NOTICE_MS):
            return
        if self._grown():
            # Only log growth is throttled: the first output must not wait because of an earlier status message.
            self._noticed_at = now
        self._told_usage = self._usage
        self._told_bytes = self._printed()
        if self._control is not None:
            self._control.tell_all()

    def _printed(self) -> int:
        return sum(capture.kept + capture.cut for capture in self._captures.values())

    def _grown(self) -> bool:
        return self._printed() != self._told_bytes

    def _save(self) -> None:
        """Write the status. The final one may use the reserve: by then the body is dead and cannot take that space. If
        even this is not enough, the status is still served on the socket, and written as soon as there is space."""
        last = self._lifecycle.phase is Phase.ENDED
        if last:
            with contextlib.suppress(OSError):
                os.unlink(_RESERVE)
        try:
            _replace("status.json", self.status())
            self._saved = True
        except OSError as error:
            self._saved = not last
            self._fault(error, "write status.json")

    def _look(self, now: int) -> None:
        """Check that the shim is still needed and that the body keeps within its limits."""
        if self._body is not None and self._wait_status is None:
            if self._untold:
                self._request_end(self._body)
            self._check_limits(self._body)
        if self._is_removed():
            self._lifecycle.stop("the attempt's folder was removed")
            self._leaving = self._lifecycle.phase is Phase.ENDED
        if not self._saved:
            self._save()
        if self._leave_at is not None and now >= self._leave_at:
            self._leaving = True

    def _check_limits(self, body: Body) -> None:
        try:
            self._usage = used = body.usage()
        except OSError:
            return  # too many open files, for example: checked again soon
        if code := excess(self._order, used.cpu_ms, used.memory_mib, used.disk_mib, used.oom_kills):
            self._lifecycle.fault(code, words(self._order, code))

    @staticmethod
    def _is_removed() -> bool:
        try:
            return os.stat(".").st_nlink == 0
        except OSError:
            return False

    def _wake_at(self) -> int:
        moments = [self._look_at, *([self._start_at] if self._start_at > boottime_ms() else [])]
        deadline = self._lifecycle.next_deadline()
        if deadline is not None:
            moments.append(deadline)
        if self._grown():
            moments.append(self._noticed_at + _NOTICE_MS)
        if self._wait_status is not None and not self._childless:
            moments.append(self._sweep_at)
        return min(moments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
