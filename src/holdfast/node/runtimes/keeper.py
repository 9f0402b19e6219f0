"""The keeper: a child of the shim that lives exactly as long as a container, and stands for it there.

It has the engine make and start the container, carries what the body prints from its named pipes to the shim, passes
signals on, and says at the end how it ended. The engine may be stopped and started meanwhile: the pipes and the
container's first process are reached without it, it is only asked how the container ended. One thread, standard
library only; decides nothing about the job.

Nothing of the job runs before the gate is open: the container's shell waits there until the keeper knows its process
and watches its memory. A container whose start was cut short by anything is therefore one that did nothing.

It says in a file without a name, a JSON object a line: `{"pid": …, "places": …, "watches": …}` when the body begins,
and `{"exit_code": …, "signal": …, "fault": …, "code": …}` as its last word, with what is known of these. Signals:
SIGTERM for every process of the container; SIGUSR1 to have all of it killed, sent by the kernel too when the shim dies.
"""

import contextlib
import json
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
from holdfast.node.runtimes.cgroups import Groups
from holdfast.node.runtimes.container_request import GATE, INSIDE, WORK
from holdfast.node.runtimes.engine_api import ANSWER_S_MAX, Answer, Engine, EngineError, EngineGone, query
from holdfast.node.runtimes.engine_cgroup import MemoryWatch, groups_of

KILL = signal.SIGUSR1
"""What the keeper is sent where the container is to be killed: SIGKILL would end the one who sees to it."""
_AGAIN_S = 0.2
"""Between two tries to reach an engine that is away."""
_NOTICE_S = 0.02
"""Between two looks whether the engine has noticed an end."""
_BACK_S_MAX = 30.0
"""For an engine that is away when the body has ended: after that, how it ended stays unknown."""
_GIVE_UP_S = 5.0
_REMEMBERED_S = 2.0
"""For an engine to write an end into its memory, which it does after it says that the container has ended."""
_PATIENCE_S = 60.0
"""Nothing has to be done as time passes: what happens, wakes."""
_LEARN_S = 0.2
"""After the start: a job that is shorter never needs to know what its engine would do to it."""
_SPLICE_BYTES = 1 << 20


class _Stopped(Exception):
    """Told to end before anything of the job ran."""


@dataclass(frozen=True)
class Task:
    """What a keeper is to do."""

    engine: Engine
    name: str
    image: str
    request: Callable[[dict[str, Any]], dict[str, Any]]
    """Made of what the engine says of the image."""
    note: Callable[[], None]
    """Writes down that the engine is about to be asked for a container: from then on there may be one."""
    folder: str
    uid: int
    memory_mib: int
    network: Callable[[int], object] | None
    """Makes one in the namespace behind a descriptor; None: the job has no leave to use any."""


class Keeper:
    def __init__(self, task: Task, streams: dict[int, int], status: int) -> None:
        """`streams`: from which pipe to which; `status`: where to say how things stand."""
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
        """A descriptor of the container's first process: unlike its number, it cannot become another's."""
        self._groups: Groups | None = None
        self._watch: MemoryWatch | None = None
        self._gate: int | None = None
        self._begun = False
        self._ended = False
        self._term = self._kill = False
        self._told: set[int] = set()
        """Signals that were passed on."""
        self._podman = False
        self._survives: bool | None = None
        """Whether containers go on without the engine; None: not known yet."""
        self._lost = False
        """The engine was away at some time since the body began."""
        self._began_at = 0.0
        self._network: object = None

    def run(self) -> None:
        """From nothing to the end."""
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
        """What still waits at the gate need not wait; what cannot be seen is cleaned up with the attempt."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
                select.select([self._process], [], [], _GIVE_UP_S)

    # --- signals ---

    def catch_signals(self) -> None:
        """Before the kernel is asked to tell of the shim's death."""
        self._awake, self._wake = socket.socketpair()
        for end in (self._awake, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, KILL):
            signal.signal(number, self._signalled)
        self._poll.register(self._awake, select.POLLIN)

    def descriptors(self) -> set[int]:
        """Those it has opened by itself until now."""
        return {self._awake.fileno(), self._wake.fileno()}

    def _signalled(self, number: int, _: object) -> None:
        """Passed on at once, whatever this process is waiting for."""
        if number == KILL:
            self._kill = True
        else:
            self._term = True
        self._pass_on()

    def _pass_on(self) -> None:
        """Without the engine, where the container's processes can be seen. SIGTERM goes to all but the first, whose
        only duty is to wait for the others. Before the job has begun there is nobody to say goodbye."""
        if self._process is None or not (self._kill or self._term):
            return
        with contextlib.suppress(OSError):
            if self._kill or not self._has_begun():
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            elif signal.SIGTERM not in self._told and self._groups is not None:
                self._told.add(signal.SIGTERM)
                linux.signal_all([pid for pid in self._groups.pids() if pid != self._first], signal.SIGTERM)

    def _pass_on_by_engine(self) -> None:
        """Where they cannot be seen."""
        number = signal.SIGKILL if self._kill or not self._has_begun() else signal.SIGTERM
        if self._process is not None or number in self._told or not (self._kill or self._term):
            return
        with contextlib.suppress(EngineError):  # it does not run any more, which is what is wanted
            self._call("POST", f"/containers/{self._id}/kill" + query(signal=int(number)))
        self._told.add(number)

    # --- one step of waiting ---

    def _turn(self, timeout_s: float, answer: Answer | None = None) -> bool:
        """Wait for anything, and see to it. True: something of `answer` is there."""
        if answer is not None:
            self._poll.register(answer, select.POLLIN)
        if self._watch is not None and self._watch.expects():
            timeout_s = min(timeout_s, _NOTICE_S)
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

    def _copy(self, fd: int) -> int:
        """Without looking at it: from the body's pipe to the shim's. How much it was."""
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
        """The rest of what was printed, when nobody is left who could print more."""
        for fd in list(self._streams):
            while fd in self._streams and self._copy(fd):
                pass

    def _has_begun(self) -> bool:
        """The shell has passed the gate: it opened its end and closed it."""
        if self._gate is not None and not self._begun:
            look = select.poll()
            look.register(self._gate, select.POLLIN)
            if any(events & select.POLLHUP for _, events in look.poll(0)):
                self._begun = True
                self._poll.unregister(self._gate)
        return self._begun

    def _end_for_memory(self, watch: MemoryWatch) -> None:
        """A body that lost a process for want of memory is ended as a whole: what is left of it would wait for ever,
        or tell a result that is none."""
        self._poll.unregister(watch.fd)
        if self._process is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _call(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> Any:
        return self._asked(method, where, body, timeout_s).json()

    def _asked(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> Answer:
        """Ask the engine, and go on carrying until it has answered. Ends early where no answer is worth waiting for:
        it is to be killed, and nothing of the job runs yet, or any more."""
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

    # --- from nothing to a body ---

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
        self._began_at = time.time()
        self._gate = os.open(f"{task.folder}/io/{GATE}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._gate, 0)
        self._pass_on()

    def _give(self, places: Iterable[str]) -> None:
        """Memory for files takes on the owner and mode of the folder that it covers, and an image may have any there.
        No symbolic link of the image is followed: here it would lead out into the node."""
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
        """Get hold of the container's first process and its cgroup, if `pid` is what it is called here as well: an
        engine elsewhere, or in another namespace, would name a stranger."""
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
        with contextlib.suppress(OSError):  # then the shim counts, once a second
            self._watch = MemoryWatch(self._groups)
            self._poll.register(self._watch.fd, self._watch.events)

    # --- while it runs ---

    def _stand_by(self) -> None:
        """Until the container has ended. Its first process has the last word, where it can be seen: an engine that is
        being stopped says all sorts of things. Otherwise the engine has it."""
        seen = self._process is not None
        waiting: Answer | None = None
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
                    if time.time() - self._began_at > _LEARN_S:
                        self._does_survive()
            except EngineGone:
                self._lost = True
                waiting, try_at = _closed(waiting), time.monotonic() + _AGAIN_S
            except EngineError as error:
                self._ended |= error.status == 404 and not seen
                waiting, try_at = _closed(waiting), time.monotonic() + _AGAIN_S
        _closed(waiting)

    def _does_survive(self) -> bool:
        """Whether containers go on without this engine. Podman's always do: nobody but their own monitor holds them.
        Not asked at the start: the answer takes an engine longer than most others."""
        if self._survives is None:
            self._survives = self._podman or bool(self._call("GET", "/info").get("LiveRestoreEnabled"))
        return self._survives

    # --- how it ended ---

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
        """What the engine says of the container after its end; OSError where that will not be known."""
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
                if not self._survives:  # or it came too early to know: then it ended with the engine, not by itself
                    raise OSError(5, "the container engine was stopped, and the container with it") from None
            except EngineError as error:
                # Podman looks at the container's process for its answer, which may end in that moment: asked again, it
                # knows of the end.
                if "no such process" not in error.says:
                    raise OSError(5, f"the container was removed under the job: {error.says}") from None
            if self._kill:
                return {"ExitCode": 128 + signal.SIGKILL}
            self._turn(pause)
        raise OSError(5, "the container engine is away, and how the job ended is not known")

    def _foreign_end(self, state: dict[str, Any]) -> str:
        """Why the end is none of the body's own: the engine went and took it along, somebody used the engine to end
        it, or it never came to the body. Empty: it is its own."""
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
        # an engine that knows of the end and did not see it was started since
        return "" if self._podman or "die" in done or self._does_survive() else restarted

    def _is_removed(self) -> bool:
        """Whoever removes a container by force kills it first, and Podman tells of no kill: a moment later it is
        gone."""
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
        """What the engine remembers of the container: what it was told to do to it, and its end. We told it nothing, so
        whatever ended it was somebody else's wish."""
        filters = {"container": [self._id], "event": ["kill", "stop", "die"]}
        until = time.monotonic() + _REMEMBERED_S
        while True:
            # Docker goes on telling until a moment that it is given, Podman unless it is told not to.
            bound = {"stream": "false"} if self._podman else {"until": f"{time.time():.6f}"}
            try:
                said = self._text("/events" + query(since=int(self._began_at), filters=filters, **bound))
                done = [str(json.loads(line).get("Action", "")) for line in said.splitlines() if line.strip()]
            except (OSError, ValueError):
                return []
            if self._podman or "die" in done or time.monotonic() > until:
                return done
            self._turn(_NOTICE_S)

    def _text(self, where: str) -> str:
        """An answer that is no JSON object."""
        return self._asked("GET", where).all()[2].decode(errors="replace")

    def _say(self, words: dict[str, Any]) -> None:
        os.write(self._status, json.dumps(words).encode() + b"\n")


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _closed(answer: Answer | None) -> None:
    if answer is not None:
        answer.close()
