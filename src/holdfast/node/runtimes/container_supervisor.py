"""The supervisor of a container: a child of the shim that lives exactly as long as the container.

It has the engine create and start the container, copies what the body prints from its named pipes to the shim, forwards
signals, and reports how the container ended. The engine may be stopped and started meanwhile: the pipes and the
container's first process are accessible without it, and it is only asked how the container ended. One thread, standard
library only; decides nothing about the job.

Nothing of the job runs before the gate is open: the container's shell waits there until the supervisor knows its
process and watches its memory. So a container whose start was interrupted has done nothing.

It reports in an unnamed file, one JSON object per line: `{"pid": …, "places": …, "watches": …}` when the body begins,
and `{"exit_code": …, "signal": …, "fault": …, "code": …}` at the end, as far as these are known. Signals: SIGTERM is
forwarded to every process of the container; SIGUSR1 kills all of it, and is also sent by the kernel when the shim dies.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.node import linux
from holdfast.node.runtimes import netns
from holdfast.node.runtimes.cgroups import Groups
from holdfast.node.runtimes.container_request import GATE, INSIDE, WORK
from holdfast.node.runtimes.engine_api import ANSWER_S_MAX, Engine, EngineAnswer, EngineError, EngineGone, query
from holdfast.node.runtimes.engine_cgroup import MemoryWatch, groups_of

KILL = signal.SIGUSR1
"""The signal to kill the container: SIGKILL would end the supervisor itself."""
_AGAIN_S = 0.2
"""Between two tries to reach an unavailable engine."""
_NOTICE_S = 0.02
"""Between two checks whether the engine has noticed an end."""
_BACK_S_MAX = 30.0
"""How long an engine may be unavailable after the body has ended: then it stays unknown how it ended."""
_GIVE_UP_S = 5.0
_REMEMBERED_S = 2.0
"""For an engine to record an end in its event history, which it does after it reports the end."""
_PATIENCE_S = 60.0
"""Nothing depends on time alone: every event wakes the loop."""
_LEARN_S = 0.2
"""After the start. A shorter job does not need to know whether containers survive the engine."""
_REFRESH_S = 1.0
"""Between two looks at the machine's own addresses, for a job with a network."""
_SPLICE_BYTES = 1 << 20


class _Stopped(Exception):
    """Stopped before anything of the job ran."""


@dataclass(frozen=True)
class Task:
    """What a supervisor is to do."""

    engine: Engine
    name: str
    image: str
    request: Callable[[dict[str, Any]], dict[str, Any]]
    """Built from the engine's description of the image."""
    note: Callable[[], None]
    """Records that the engine is about to be asked for a container: from then on there may be one."""
    folder: str
    uid: int
    memory_mib: int
    network: Callable[[int], netns.SandboxNetwork] | None
    """Creates a network in the namespace behind a descriptor; None: the job may not use any."""


class ContainerSupervisor:
    def __init__(self, task: Task, streams: dict[int, int], status: int) -> None:
        """`streams`: source pipe -> target pipe; `status`: descriptor to report to."""
        self._task = task
        self._engine = task.engine
        self._streams = dict(streams)
        self._status = status
        self._poll = select.poll()
        for fd in streams:
            self._poll.register(fd, select.POLLIN)
        self._id = ""
        self._first = 0
        self._process: int | None = None
        """A pidfd of the container's first process: unlike a pid, it is never reused."""
        self._groups: Groups | None = None
        self._watch: MemoryWatch | None = None
        self._gate: int | None = None
        self._begun = False
        self._ended = False
        self._term = self._kill = False
        self._told: set[int] = set()
        """Signals that were forwarded."""
        self._podman = False
        self._survives: bool | None = None
        """Whether containers survive the engine; None: not known yet."""
        self._lost = False
        """Whether the engine was unavailable at any time since the body began."""
        self._began_at = 0.0
        self._network: netns.SandboxNetwork | None = None
        self._refresh_at = 0.0

    def run(self) -> None:
        """Run the container from creation to its end."""
        try:
            self._begin()
            self._stand_by()
            self._carry()
            self._say(self._verdict())
        except _Stopped:
            self._say({"signal": int(signal.SIGKILL if self._kill else signal.SIGTERM)})
        except OSError as error:
            self._give_up()
            self._carry()
            self._say({"fault": str(error.strerror or error)})

    def _give_up(self) -> None:
        """Release what still waits at the gate; what cannot be seen is cleaned up with the attempt."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
                select.select([self._process], [], [], _GIVE_UP_S)

    # --- signals ---

    def catch_signals(self) -> None:
        """Call it before the kernel is asked for a signal at the shim's death."""
        self._awake, self._wake = socket.socketpair()
        for end in (self._awake, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, KILL):
            signal.signal(number, self._signalled)
        self._poll.register(self._awake, select.POLLIN)

    def descriptors(self) -> set[int]:
        """Those that it has opened itself so far."""
        return {self._awake.fileno(), self._wake.fileno()}

    def _signalled(self, number: int, _: object) -> None:
        """Forwarded at once, whatever this process is waiting for."""
        if number == KILL:
            self._kill = True
        else:
            self._term = True
        self._pass_on()

    def _pass_on(self) -> None:
        """Without the engine, if the container's processes are visible. SIGTERM goes to all but the first, which only
        waits for the others. Before the job has begun there is no process to terminate gracefully."""
        if self._process is None or not (self._kill or self._term):
            return
        with contextlib.suppress(OSError):
            if self._kill or not self._has_begun():
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            elif signal.SIGTERM not in self._told and self._groups is not None:
                self._told.add(signal.SIGTERM)
                linux.signal_all([pid for pid in self._groups.pids() if pid != self._first], signal.SIGTERM)

    def _pass_on_by_engine(self) -> None:
        """If they are not visible."""
        number = signal.SIGKILL if self._kill or not self._has_begun() else signal.SIGTERM
        if self._process is not None or number in self._told or not (self._kill or self._term):
            return
        with contextlib.suppress(EngineError):  # it no longer runs, as intended
            self._call("POST", f"/containers/{self._id}/kill" + query(signal=int(number)))
        self._told.add(number)

    # --- the event loop ---

    def _turn(self, timeout_s: float, answer: EngineAnswer | None = None) -> bool:
        """Wait for any event, and handle it. Returns True if something of `answer` has arrived."""
        if answer is not None:
            self._poll.register(answer, select.POLLIN)
        if self._watch is not None and self._watch.expects():
            timeout_s = min(timeout_s, _NOTICE_S)
        timeout_s = min(timeout_s, self._refresh_network())
        try:
            ready = dict(self._poll.poll(max(0.0, timeout_s) * 1000))
        finally:
            if answer is not None:
                self._poll.unregister(answer)
        for fd in ready.keys() & self._streams.keys():
            self._copy(fd)
        if self._awake.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._awake.recv(4096)
        if self._watch is not None and (self._watch.fd in ready or self._watch.expects()):
            self._watch.look()
            if self._watch.kills:
                self._end_for_memory(self._watch)
        if self._gate is not None and self._gate in ready:
            self._has_begun()
        self._ended |= self._process is not None and self._process in ready
        return answer is not None and answer.fileno() in ready

    def _refresh_network(self) -> float:
        """Refuse the machine's new addresses once a second; returns the seconds until the next time."""
        if self._network is None:
            return math.inf
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_S
            self._network.refresh()
        return self._refresh_at - now

    def _copy(self, fd: int) -> int:
        """Copy from the body's pipe to the shim's; returns the number of bytes."""
        try:
            return os.splice(fd, self._streams[fd], _SPLICE_BYTES)
        except BlockingIOError:
            return 0
        except BrokenPipeError:  # the shim is dead
            self._poll.unregister(fd)
            del self._streams[fd]
            self._kill = True
            self._pass_on()
            return 0

    def _carry(self) -> None:
        """Copy the rest of the output, after every process that could write is gone."""
        for fd in list(self._streams):
            while fd in self._streams and self._copy(fd):
                pass

    def _has_begun(self) -> bool:
        """Whether the shell has passed the gate: it opened its end and closed it."""
        if self._gate is not None and not self._begun:
            look = select.poll()
            look.register(self._gate, select.POLLIN)
            if any(events & select.POLLHUP for _, events in look.poll(0)):
                self._begun = True
                self._poll.unregister(self._gate)
        return self._begun

    def _end_for_memory(self, watch: MemoryWatch) -> None:
        """End the whole body after one of its processes was OOM-killed: the rest could wait for ever, or report a wrong
        result."""
        self._poll.unregister(watch.fd)
        if self._process is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _call(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> Any:
        return self._asked(method, where, body, timeout_s).json()

    def _asked(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> EngineAnswer:
        """Send a request to the engine, and keep copying until it has answered. Returns early if no answer is needed
        any more: the container is to be killed, and nothing of the job runs yet, or any longer."""
        answer = self._engine.ask(method, where, body, timeout_s)
        until = time.monotonic() + timeout_s
        try:
            while True:
                if (self._kill and self._ended) or (self._gate is None and (self._kill or self._term)):
                    raise _Stopped
                if time.monotonic() > until:
                    raise EngineGone(110, f"the engine did not answer within {timeout_s:g} s")
                if self._turn(until - time.monotonic(), answer) and answer.receive():
                    return answer
        except BaseException:
            answer.close()
            raise

    # --- start ---

    def _begin(self) -> None:
        task = self._task
        self._podman = self._asked("GET", "/_ping").is_from_podman()
        image = self._call("GET", f"/images/{quote(task.image, safe='')}/json")
        wanted = task.request(image)
        if self._podman and "DeviceRequests" in wanted["HostConfig"]:
            raise OSError(95, "the job wants a GPU, and Podman would start it without: only Docker can give one")
        task.note()
        self._id = self._call("POST", "/containers/create" + query(name=task.name), wanted)["Id"]
        self._call("POST", f"/containers/{self._id}/start")
        self._see(int(self._call("GET", f"/containers/{self._id}/json")["State"]["Pid"]))
        self._give(wanted["HostConfig"]["Tmpfs"])
        self._connect()
        seen: dict[str, Any] = {}
        if self._groups is not None:
            watches = self._watch is not None
            seen = {"version": self._groups.version, "places": self._groups.places, "watches": watches}
        self._say({"pid": self._first} | seen)
        self._began_s = time.monotonic()
        self._gate = os.open(f"{task.folder}/io/{GATE}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._gate, 0)
        self._pass_on()

    def _give(self, places: Iterable[str]) -> None:
        """A tmpfs takes on the owner and mode of the folder that it covers, which an image may set to anything. No
        symbolic link of the image is followed: here it would lead out into the node."""
        for place in places if self._process is not None and os.geteuid() == 0 else ():
            at = os.open(f"/proc/{self._first}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            root = os.fstat(at).st_dev
            try:
                for part in place.strip("/").split("/"):
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                    os.close(at)
                    at = below
                if os.fstat(at).st_dev != root:
                    os.fchown(at, self._task.uid, self._task.uid)
            except OSError as error:
                raise OSError(error.errno, f"{place} of the image cannot be used: {error.strerror}") from None
            finally:
                os.close(at)

    def _connect(self) -> None:
        if self._task.network is None:
            return
        if self._process is None:
            raise OSError(95, "the job wants the network, and the engine's containers cannot be seen to give them one")
        space = os.open(f"/proc/{self._first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if _is_same(f"/proc/self/fd/{space}", "/proc/self/ns/net"):
            raise OSError(95, "the engine gave the container the node's own network")
        self._network = self._task.network(space)

    def _see(self, pid: int) -> None:
        """Open the container's first process and its cgroup, if `pid` means the same process here: with an engine
        elsewhere, or in another pid namespace, it would be an unrelated one."""
        if pid <= 0:
            return
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return
        root = f"/proc/{pid}/root"
        if not _is_same(root + INSIDE, os.path.join(self._task.folder, "io")):
            os.close(process)
            return
        if not _is_same(root + WORK, os.path.join(self._task.folder, "work")):
            os.close(process)
            raise OSError(2, "the engine does not see the node's disks: it runs with mounts of its own")
        self._first, self._process = pid, process
        self._poll.register(process, select.POLLIN)
        self._groups = groups_of(pid)
        with contextlib.suppress(OSError):  # then the shim counts once a second
            self._watch = MemoryWatch(self._groups)
            self._poll.register(self._watch.fd, self._watch.events)

    # --- running ---

    def _stand_by(self) -> None:
        """Wait until the container has ended. If its first process is visible, its end decides: an engine that is being
        stopped gives unreliable answers. Otherwise the engine decides."""
        seen = self._process is not None
        waiting: EngineAnswer | None = None
        try_at = 0.0
        while not self._ended:
            now = time.monotonic()
            patience = _PATIENCE_S if self._survives is not None else _LEARN_S
            try:
                if waiting is None and now >= try_at:
                    waiting = self._engine.wait(self._id)
                if self._turn(patience if waiting else try_at - now, waiting) and waiting and waiting.receive():
                    waiting.json()
                    self._ended |= not seen
                    waiting, try_at = None, now + _AGAIN_S
                if waiting and not self._ended:
                    self._pass_on_by_engine()
                    if time.monotonic() - self._began_s > _LEARN_S:
                        self._does_survive()
            except EngineGone:
                self._lost = True
                waiting, try_at = _closed(waiting), time.monotonic() + _AGAIN_S
            except EngineError as error:
                self._ended |= error.status == 404 and not seen
                waiting, try_at = _closed(waiting), time.monotonic() + _AGAIN_S
        _closed(waiting)

    def _does_survive(self) -> bool:
        """Whether containers survive this engine. Podman's always do: only their own monitor process holds them. Not
        asked at the start, because an engine answers it more slowly than most requests."""
        if self._survives is None:
            self._survives = self._podman or bool(self._call("GET", "/info").get("LiveRestoreEnabled"))
        return self._survives

    # --- the end ---

    def _verdict(self) -> dict[str, Any]:
        if self._watch is not None and (code := self._watch.verdict()):
            return self._for_memory(code == "oom_job")
        if self._kill:
            return {"signal": int(signal.SIGKILL)}
        if self._term and not self._has_begun():
            return {"signal": int(signal.SIGTERM)}
        state = self._state()
        watch = self._watch
        if state.get("OOMKilled") and (watch is None or not (watch.counted or watch.met_above)):
            return self._for_memory(True)
        if not self._term and (fault := self._foreign_end(state)):
            return {"fault": fault}
        return {"exit_code": int(state["ExitCode"]), "watched": watch is not None and watch.sure}

    def _for_memory(self, own: bool) -> dict[str, Any]:
        return {"signal": int(signal.SIGKILL), "code": "oom_job" if own and self._task.memory_mib else "oom_node"}

    def _state(self) -> dict[str, Any]:
        """The engine's description of the container after its end. Raises OSError if that cannot be known."""
        until = time.monotonic() + _BACK_S_MAX
        while time.monotonic() < until:
            pause = _NOTICE_S
            try:
                state = self._call("GET", f"/containers/{self._id}/json")["State"]
                if not state.get("Running") and state.get("Status") in ("exited", "dead"):
                    return state
            except EngineGone:
                self._lost = True
                pause = _AGAIN_S
                if not self._survives:  # or not known yet: then it ended with the engine
                    raise OSError(5, "the container engine was stopped, and the container with it") from None
            except EngineError as error:
                # Podman inspects the container's process for its answer, which may end at that moment. Asked again, it
                # knows of the end.
                if "no such process" not in error.says:
                    raise OSError(5, f"the container was removed under the job: {error.says}") from None
            if self._kill:
                return {"ExitCode": 128 + signal.SIGKILL}
            self._turn(pause)
        raise OSError(5, "the container engine is away, and how the job ended is not known")

    def _foreign_end(self, state: dict[str, Any]) -> str:
        """Why the body did not end by itself: the engine ended and took it along, somebody used the engine to end it,
        or the body never started. Empty: it ended by itself."""
        restarted = "the container engine was restarted, and the container ended with it"
        if self._lost and not self._does_survive():
            return restarted
        if not self._has_begun():
            said = self._text(f"/containers/{self._id}/logs" + query(stdout=1, stderr=1, tail=5))
            return f"the container could not run the job: {state.get('Error') or said[-500:] or 'no reason is given'}"
        done = self._what_was_done()
        if by := [action for action in done if action in ("kill", "stop")]:
            return f"somebody on the node ended the container ({', '.join(by)})"
        if self._podman and state.get("ExitCode") == 128 + signal.SIGKILL and self._is_removed():
            return "the container was removed under the job"
        # An engine that knows of the end but did not see it was restarted since.
        return "" if self._podman or "die" in done or self._does_survive() else restarted

    def _is_removed(self) -> bool:
        """Removing a container by force kills it first, and Podman reports no kill event: a moment later it is gone."""
        until = time.monotonic() + _REMEMBERED_S
        while time.monotonic() < until:
            try:
                self._call("GET", f"/containers/{self._id}/json")
            except EngineGone:
                return False
            except EngineError as error:
                return "no such process" not in error.says
            self._turn(_NOTICE_S)
        return False

    def _what_was_done(self) -> list[str]:
        """The engine's events of the container: requests to it, and its end. We sent none, so any such request came
        from somebody else. Events have dates of a clock that may be set while the job runs: so all that the engine
        remembers of this container is asked for, whatever its date."""
        filters = {"container": [self._id], "event": ["kill", "stop", "die"]}
        until = time.monotonic() + _REMEMBERED_S
        while True:
            # Docker streams events until a time that is given, Podman unless it is told not to.
            bound = {"stream": "false"} if self._podman else {"until": f"{time.time():.6f}"}
            try:
                said = self._text("/events" + query(since=1, filters=filters, **bound))
                done = [str(json.loads(line).get("Action", "")) for line in said.splitlines() if line.strip()]
            except (OSError, ValueError):
                return []
            if self._podman or "die" in done or time.monotonic() > until:
                return done
            self._turn(_NOTICE_S)

    def _text(self, where: str) -> str:
        """An answer that is not a JSON object."""
        return self._asked("GET", where).all()[2].decode(errors="replace")

    def _say(self, words: dict[str, Any]) -> None:
        os.write(self._status, json.dumps(words).encode() + b"\n")


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _closed(answer: EngineAnswer | None) -> None:
    if answer is not None:
        answer.close()
