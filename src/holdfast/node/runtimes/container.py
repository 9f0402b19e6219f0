"""The container runtime: a body in an engine (Docker, Podman), through the engine's socket.

The shim's child is a supervisor, which has the engine start the container and lives as long as it does. Only the
attempt's own folders, within their limit, and memory are writable; the rest of the image is read-only, so that the
engine's disk needs no quota. The engine's networks are not used: a body that may use the network gets the same router
as in the sandbox. Does not pull images: the agent does.
"""

import contextlib
import json
import os
import signal
import stat
import time
from functools import partial
from typing import Any

from holdfast.durable import durable_write
from holdfast.node import linux
from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, container_request, netns, owners, scratch
from holdfast.node.runtimes.body_folders import Folders
from holdfast.node.runtimes.cgroups import Groups
from holdfast.node.runtimes.container_request import GATE, INIT, INSIDE, LABEL_FOLDER, STREAMS, name_of
from holdfast.node.runtimes.container_supervisor import KILL, ContainerSupervisor, Task
from holdfast.node.runtimes.engine_api import Engine, EngineError, find_engine
from holdfast.node.runtimes.engine_cgroup import hold_back
from holdfast.node.runtimes.runtime import BodyView, Ended, Usage

NOTE = "container.json"
"""Written before the engine is asked for a container, so that the remains of the attempt can be found."""
_LAST_CALL_S = 5.0
_REMOVED_S = 30.0


class ContainerBody:
    """The supervisor, and what it has reported so far."""

    def __init__(self, pid: int, status: int, task: Task, folders: Folders) -> None:
        self.pid = pid
        self._supervisor = os.pidfd_open(pid)
        self._status = status
        self._task = task
        self._folders = folders
        self._groups: Groups | None = None
        self._watched = False
        """The supervisor is notified of OOM kills, sooner than they can be counted here."""
        self._memory = child.MachineMemory()

    def signal(self, number: int) -> None:
        """Through the supervisor: it must outlive the container to report how that ended."""
        if number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._supervisor, KILL if number == signal.SIGKILL else number)

    def ended(self, wait_status: int, last_words: str) -> Ended:
        """An engine reports a death by signal as 128 + its number, like a shell: both interpretations are passed on."""
        said = self._said()
        last = said[-1] if said else {}
        os.close(self._status)
        os.close(self._supervisor)
        if not last or "pid" in last:
            return Ended(fault=self._without_supervisor(last.get("pid", 0), wait_status))
        code, number = last.get("exit_code"), last.get("signal")
        if code is not None and 128 < code <= 128 + 64:
            number = code - 128
        if last.get("fault") or last.get("code"):
            return Ended(code, number, last.get("fault", ""), last.get("code", ""))
        failed = number is not None or code != 0
        short = "oom_node" if number == signal.SIGKILL and not last.get("watched") and self._memory.ran_out() else ""
        return Ended(code, number, "", short or (self._folders.lack() if failed else ""))

    def usage(self) -> Usage:
        disk = self._folders.used_mib()
        if self._groups is None:
            begun = next((words for words in self._said() if "places" in words), None)
            if begun is None:
                return Usage(disk_mib=disk)
            self._groups = Groups(begun["version"], begun["places"])
            self._watched = begun["watches"]
        seen = self._groups.sample()
        peak = max(seen.memory_mib, seen.memory_peak_mib)
        pids = max(0, seen.pids - INIT)
        # A supervisor that is notified of OOM kills also ends the rest, and knows whose limit was hit.
        kills = 0 if self._watched else seen.oom_kills
        return Usage(seen.cpu_ms, seen.memory_mib, peak, disk, pids, seen.throttled_permille, kills)

    def _said(self) -> list[dict[str, Any]]:
        lines = os.pread(self._status, 1 << 16, 0).splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def _without_supervisor(self, first: int, wait_status: int) -> str:
        """The supervisor died before the container, which must not keep running unobserved."""
        how = os.waitstatus_to_exitcode(wait_status)
        with contextlib.suppress(OSError):
            process = os.pidfd_open(first)
            if _sees(first, self._task.folder):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
        with contextlib.suppress(OSError):
            self._task.engine.call("DELETE", f"/containers/{self._task.name}?force=1&v=1", timeout_s=_LAST_CALL_S)
        return f"the container's supervisor was ended ({'signal ' if how < 0 else 'exit code '}{abs(how)})"


def _sees(pid: int, folder: str) -> bool:
    """Whether the process belongs to the attempt's container."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(f"/proc/{pid}/root{INSIDE}"), os.stat(os.path.join(folder, "io")))
    return False


class ContainerRuntime:
    def warm(self) -> None:
        """Detect once, in the launcher, what each start would have to detect again. `works` reports a machine without a
        shell that can be lent."""
        with contextlib.suppress(OSError):
            container_request.shell()

    def works(self) -> tuple[bool, str]:
        """Start an empty container, exactly like a job's, in the default engine."""
        from holdfast.node.runtimes.container_trial import try_engine

        why = try_engine(find_engine())
        return not why, why

    def capabilities(self) -> dict[str, str]:
        disk, owner, network = scratch.hindrance(), owners.hindrance(), netns.hindrance()
        return {
            **dict.fromkeys(("memory", "cpu", "pids", "disk_kib_s", "syscalls"), "kernel: by the engine"),
            "cpu_s": "measured",
            "disk": f"measured: {disk}" if disk else "kernel: a file system of its own",
            "net_kib_s": f"none: {network}" if network else "kernel: queues in its own network",
            "network": f"none: {network}" if network else "kernel: a network of its own",
            "user": f"none: {owner}" if owner else "kernel: a user of its own",
        }

    def prepare(self, order: Order, folder: str) -> None:
        child.make_folders(order, folder, owners.take(folder) if not owners.hindrance() else 0)

    def start_build(self, order: Order, folder: str, view: BodyView, stdout: int, stderr: int) -> ContainerBody:
        raise OSError(95, "a job with an image has no Python requirements")

    def start(self, order: Order, folder: str, stdout: int, stderr: int) -> ContainerBody:
        folder = os.path.realpath(folder)
        engine = Engine(order.engine or find_engine())
        if not engine.path:
            raise FileNotFoundError(2, "this node has no container engine")
        if order.network and (why := netns.hindrance()):
            raise OSError(95, f"there is no network for jobs: {why}")
        for path in (folder, order.venv):
            if set(path) & {",", '"', "\n"}:  # Podman would parse the rest of it as options
                raise OSError(22, f"a path with a comma, a quote or a line break cannot be used: {path!r}")
        uid = os.stat(os.path.join(folder, "work")).st_uid
        _lay_out(folder, uid)
        if rate := order.limits.get("disk_kib_s", 0) << 10:
            hold_back(scratch.devices_below(folder), rate)
        task = Task(
            engine,
            name_of(folder),
            order.image,
            partial(container_request.request, order, folder, uid),
            partial(write_note, folder, engine),
            folder,
            uid,
            order.resources.get("memory_mib", 0),
            partial(netns.SandboxNetwork, order.limits.get("net_kib_s", 0)) if order.network else None,
        )
        status = os.memfd_create("keeper")
        pipes: dict[int, int] = {}
        try:
            for name, end in zip(STREAMS, (stdout, stderr), strict=True):
                # Opened for writing as well, so that it has no end of file before the container opens it.
                pipes[os.open(f"{folder}/io/{name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)] = end
            pid = _fork(task, pipes, status)
        except OSError:
            os.close(status)
            raise
        finally:
            for fd in pipes:
                os.close(fd)
        return ContainerBody(pid, status, task, Folders(order, folder))

    def end(self, folder: str) -> None:
        """If the engine does not answer, a container may be left: that raises OSError."""
        note = os.path.join(folder, NOTE)
        if os.path.exists(note):
            with open(note) as file:
                engine = Engine(str(json.load(file)["engine"]))
            _remove(engine, name_of(folder))
            os.unlink(note)
        with contextlib.suppress(OSError):  # none was set if none can be set
            hold_back(scratch.devices_below(folder), 0)

    def clean(self, folder: str) -> None:
        self.end(folder)
        scratch.detach(folder)
        owners.release(folder)


def _lay_out(folder: str, uid: int) -> None:
    """Create the folder that the container sees as /.holdfast, with pipes for its streams. World-readable, but its
    parent folder is accessible to the node only."""
    io = os.path.join(folder, "io")
    os.makedirs(io, exist_ok=True)
    os.chmod(io, 0o755)
    for name in (*STREAMS, GATE):
        os.mkfifo(f"{io}/{name}")
        os.chmod(f"{io}/{name}", 0o666)
    texts = dict.fromkeys((name for name, _ in container_request.shell()), "")  # as mount points
    texts["passwd"] = f"job:x:{uid}:{uid}:job:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    texts["group"] = f"job:x:{uid}:\nnogroup:x:65534:\n"
    texts["resolv.conf"] = f"nameserver {netns.RESOLVER}\n"
    for name, text in texts.items():
        with open(f"{io}/{name}", "w") as file:
            file.write(text)
        os.chmod(f"{io}/{name}", 0o644)


def write_note(folder: str, engine: Engine) -> None:
    """Durable when this returns."""
    path = os.path.join(folder, NOTE)
    durable_write(path, json.dumps({"engine": engine.path}).encode())


def _remove(engine: Engine, name: str) -> None:
    """Remove it; gone when this returns, even if someone else is removing it at the same time."""
    until = time.monotonic() + _REMOVED_S
    while True:
        try:
            engine.remove(name)
            engine.inspect(name)
        except EngineError as error:
            if error.status == 404:
                return
            if time.monotonic() > until:
                raise
        time.sleep(0.02)


def sweep(engine: str, attempts: str) -> list[str]:
    """Remove containers of attempts whose folder in `attempts` is gone: an engine may carry out a request of a killed
    node after everything else was cleaned up. Returns their names. Raises OSError if the engine does not answer."""
    inside = os.path.realpath(attempts) + "/"
    found: list[str] = []
    for container in Engine(engine).containers(LABEL_FOLDER):
        folder = str((container.get("Labels") or {}).get(LABEL_FOLDER, ""))
        if folder.startswith(inside) and not os.path.exists(folder):
            _remove(Engine(engine), str(container["Id"]))
            found.append(str((container.get("Names") or [container["Id"]])[0]).lstrip("/"))
    return found


def _fork(task: Task, pipes: dict[int, int], status: int) -> int:
    """The supervisor is a fork of the shim, which has one thread and has loaded everything that is needed."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        _be_supervisor(parent, task, pipes, status)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _be_supervisor(parent: int, task: Task, pipes: dict[int, int], status: int) -> None:
    signal.set_wakeup_fd(-1)
    supervisor = ContainerSupervisor(task, pipes, status)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    supervisor.catch_signals()
    keep_only({0, 1, 2, status, *pipes, *pipes.values(), *supervisor.descriptors()})
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()
    os.chdir("/")
    linux.name_process("holdfast-keeper")
    linux.die_with_parent(KILL)
    if os.getppid() != parent:
        return
    give_to(task.uid, task.folder)
    supervisor.run()


def keep_only(wanted: set[int]) -> None:
    """Close the descriptors inherited from the shim: a pipe that both hold would never break."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def give_to(uid: int, folder: str) -> None:
    """Make the body the owner of what was put into its folders. No link is followed out of them, and a file with
    several hard links is left alone: the others may be anywhere."""
    for name in ("work", "checkpoint"):
        top = os.path.join(folder, name)
        if not os.path.isdir(top) or os.geteuid() != 0:
            continue
        for _, folders, files, at in os.fwalk(top, follow_symlinks=False):
            for entry in (*folders, *files):
                found = os.stat(entry, dir_fd=at, follow_symlinks=False)
                if found.st_uid != uid and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
                    os.chown(entry, uid, uid, dir_fd=at, follow_symlinks=False)


RUNTIME = ContainerRuntime()
