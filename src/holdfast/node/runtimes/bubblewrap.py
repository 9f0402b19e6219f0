"""The sandbox: bubblewrap with a namespace of each kind, no capabilities, a read-only system, a filter of system calls,
and resource limits.

The body sees /usr, the node's Python, its own /proc and /tmp, its folder as /work, and what it was granted. If the node
is root, each body has a user of its own, and bubblewrap runs as that user too: there is no root inside or around it.
The kernel enforces limits if it can (`cgroups`, `scratch`, `netns`); others are measured, and the shim stops the body.
"""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Collection
from functools import cache

from holdfast.node import linux
from holdfast.node.core.order import Order
from holdfast.node.runtimes import cgroups, child, gpus, lent, netns, owners, scratch, seccomp, system_view, trials
from holdfast.node.runtimes.body_folders import Folders
from holdfast.node.runtimes.runtime import BodyView, Ended, Usage
from holdfast.passing import briefly, exists

MEMORY_MIB = 512
"""For /tmp and /dev/shm if an order sets no memory limit."""
PIDS_MAX = 4_096
"""If an order sets no limit: a machine that cannot start processes any more is useless."""
_HOLDERS = 2
"""Bubblewrap's own processes beside the body."""
_UID = 1000
"""The uid that the body sees for itself."""
_PASSWD = f"job:x:{_UID}:{_UID}:job:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = f"job:x:{_UID}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost holdfast\n::1 localhost\n"
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")
_TRIAL_S = 20.0


def _program() -> str | None:
    """The path of bwrap."""
    places = (os.path.join(folder, "bwrap") for folder in os.get_exec_path())
    return next((place for place in places if os.access(place, os.X_OK)), None)


@cache
def _knows() -> str:
    """The help text of this bwrap: releases before 0.8 lack some useful options. Empty if it is not installed."""
    import subprocess

    if (program := _program()) is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10).stdout
    return ""


# --- options of bwrap ---


def options(
    order: Order,
    seen: dict[str, str],
    files: dict[str, int],
    env: dict[str, str],
    writable: Collection[str] = ("/work", "/checkpoint"),
) -> list[str]:
    """The order matters: later mounts cover earlier ones, and the last option closes the root. `seen`: path in the
    sandbox -> folder of the machine; `files`: path in the sandbox -> open descriptor; `writable`: those of `seen`."""
    words = ["--unshare-all", "--unshare-user", "--uid", str(_UID), "--gid", str(_UID), "--cap-drop", "ALL"]
    words += ["--share-net"] if order.network else []
    words += ["--die-with-parent", "--new-session", "--hostname", "holdfast"]
    # bwrap leaves /proc/sys writable if the node is root: the kernel checks the owner of those files, not capabilities,
    # and core_pattern would be a way out of any sandbox.
    words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    words += ["--disable-userns"] if "--disable-userns" in _knows() else []
    # A tmpfs is memory: it is limited to what the job asked for.
    memory_mib = order.resources.get("memory_mib", 0) or MEMORY_MIB
    size = ["--size", str(memory_mib << 20)] if "--size" in _knows() else []
    words += ["--dev", "/dev", *size, "--tmpfs", "/dev/shm"]
    for node in gpus.device_nodes(order.gpu_ids):
        words += ["--dev-bind", node, node]
    words += ["--remount-ro", "/dev", *size, "--tmpfs", "/tmp", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    words += system_view.options()
    for path, fd in files.items():
        words += ["--ro-bind-data", str(fd), path]
    for inside, outside in seen.items():
        words += ["--bind" if inside in writable else "--ro-bind", outside, inside]
    words += ["--chdir", "/work", "--remount-ro", "/", "--clearenv"]
    for key, value in env.items():
        words += ["--setenv", key, value]
    return words


def _in_memory(name: str, content: str | bytes = "") -> int:
    """An unnamed file, for what bwrap reads or writes by descriptor."""
    fd = os.memfd_create(name)
    os.write(fd, content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class _Plan:
    """A command line for bwrap, the descriptors it reads and writes, and the paths of the folders it shows.

    Another user cannot enter root's folders, whatever the mode of the folders below them. So they are bind-mounted at a
    path without such parents, in a mount namespace that only bwrap uses.
    """

    def __init__(self, order: Order, folder: str, uid: int, view: BodyView | None = None) -> None:
        program = _program()
        if program is None:
            raise FileNotFoundError(2, "bwrap is not installed (package bubblewrap)")
        view = view or self._view_of_body(order, os.path.realpath(folder))
        self.seen = view.writable | view.readable
        self.stage = _stage_for(list(self.seen.values())) if uid else ""
        shown = {inside: self._staged(inside) for inside in self.seen} if uid else self.seen
        texts = {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, "/etc/hosts": _HOSTS}
        # glibc, and so Python's os.cpu_count(), counts processors by this file.
        texts |= dict.fromkeys(system_view.CPU_LISTS, f"{child.cpu_list(order)}\n")
        if order.network:
            texts["/etc/resolv.conf"] = f"nameserver {netns.RESOLVER}\n"
        files = {path: _in_memory(os.path.basename(path), text) for path, text in texts.items()}
        filters = [_in_memory("filter", program) for program in [seccomp.program()] if program]
        self.read_only = (*files.values(), *filters)
        try:
            env = child.environment(order, "/work", "/checkpoint", child.python_prefix())
            words = options(order, shown, files, env, view.writable)
            words += [word for fd in filters for word in ("--seccomp", str(fd))]
        except OSError:
            self.close()
            raise
        # By descriptor, not on the command line, which anyone on the machine may read: env holds secrets.
        told = _in_memory("options", "".join(word + "\0" for word in words))
        self.status = _in_memory("status")
        self.read_only = (*self.read_only, told)
        self.keep = (*self.read_only, self.status, *view.keep)
        by_fd = ("--args", str(told), "--json-status-fd", str(self.status))
        self.argv = (program, *by_fd, "--", *child.SHELL, *order.argv)

    def close(self) -> None:
        for fd in self.read_only:
            os.close(fd)

    @staticmethod
    def _view_of_body(order: Order, folder: str) -> BodyView:
        writable = {"/work": f"{folder}/work"}
        if order.checkpoint:
            writable["/checkpoint"] = f"{folder}/checkpoint"
        readable: dict[str, str] = {}
        if exists(lent.place(folder)):
            readable[lent.SEEN_AS] = lent.place(folder)
        if order.venv:
            readable[child.VENV] = order.venv
        if prefix := child.python_prefix():
            readable[prefix] = prefix
        return BodyView(writable, readable)

    def _staged(self, inside: str) -> str:
        return f"{self.stage}/{inside.strip('/').replace('/', '-')}"

    def set_the_stage(self) -> None:
        """In the child, as root. Scratch of other attempts is unmounted in this namespace, so that this body does not
        keep it alive after its attempt has ended."""
        linux.leave(linux.CLONE_NEWNS)
        linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        for place in scratch.scratch_mounts():
            if place not in self.seen.values():
                _out_of_sight(place)
        linux.mount("stage", self.stage, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=64k")
        for inside, outside in self.seen.items():
            os.mkdir(self._staged(inside), 0o755)
            linux.mount(outside, self._staged(inside), flags=linux.MS_BIND | linux.MS_REC)


def _out_of_sight(place: str) -> None:
    """Another attempt may end at this moment; then its mount disappears from here too."""
    try:
        linux.unmount(place)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise


def _stage_for(paths: list[str]) -> str:
    """A folder that can be covered by a mount without hiding any of these."""
    for stage in _STAGES:
        if exists(stage) and not any((path + "/").startswith(stage + "/") for path in paths):
            return stage
    raise FileNotFoundError(2, f"none of {', '.join(_STAGES)} can be used to show the sandbox its folders")


class _Confinement:
    """What the child does to itself before it executes bwrap: limits first, privileges last."""

    def __init__(self, order: Order, plan: _Plan, uid: int) -> None:
        self.groups: cgroups.Groups | None = None
        self.network: netns.SandboxNetwork | None = None
        self._plan = plan
        self._uid = uid
        self._pids = order.limits.get("pids", 0) or PIDS_MAX

    def __call__(self) -> None:
        if self.groups is not None:
            self.groups.join()
        if self.network is not None:
            self.network.enter()
        if not self._uid:
            return
        self._plan.set_the_stage()
        if self.groups is None or "pids" not in self.groups.places:
            most = self._pids + _HOLDERS
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        os.setgroups([])
        os.setresgid(self._uid, self._uid, self._uid)
        os.setresuid(self._uid, self._uid, self._uid)


# --- the body ---


class SandboxedBody:
    def __init__(self, pid: int, status: int, order: Order, folders: Folders, confinement: _Confinement) -> None:
        self.pid = pid
        self._status = status
        self._order = order
        self._folders = folders
        self._groups = confinement.groups
        self._network = confinement.network
        self._memory = child.MachineMemory()

    def signal(self, number: int) -> None:
        """SIGTERM is not sent to the outer bwrap, whose death would kill the body without its grace, nor to the router,
        which the body may need until its end."""
        spared = {self.pid, self._network.router if self._network else 0} if number != signal.SIGKILL else set[int]()
        linux.signal_all([pid for pid in child.descendants(self.pid, number) if pid not in spared], number)

    def ended(self, wait_status: int, last_words: str) -> Ended:
        """bwrap reports a death by signal as 128 + its number, like a shell: both interpretations are passed on."""
        finished = b'"exit-code"' in briefly(os.pread, self._status, 4096, 0)
        os.close(self._status)
        if self._network is not None:
            self._network.close()
        code = os.waitstatus_to_exitcode(wait_status)
        ended = Ended(signal=-code) if code < 0 else Ended(code, code - 128 if 128 < code <= 128 + 64 else None)
        short = self._short_of_memory(ended)
        if self._groups is not None:
            with contextlib.suppress(OSError):  # the rest is removed with the attempt
                self._groups.remove()
        if not short and not finished and code >= 0:
            return Ended(exit_code=code, fault=f"the sandbox could not be set up: {last_words.strip()}")
        failed = ended.signal is not None or ended.exit_code != 0
        return Ended(ended.exit_code, ended.signal, "", short or (self._folders.lack() if failed else ""))

    def _short_of_memory(self, ended: Ended) -> str:
        if self._groups is not None and self._groups.sees_memory:
            return self._groups.oom()
        return "oom_node" if ended.signal == signal.SIGKILL and self._memory.ran_out() else ""

    def usage(self) -> Usage:
        if self._network is not None:
            self._network.refresh()
        groups = self._groups
        disk = self._folders.used_mib()
        if groups is None or not groups.places:
            found = linux.measure(linux.descendants(self.pid))
            return Usage(found.cpu_ms, found.memory_mib, found.memory_mib, disk, max(0, found.pids - 1))
        seen = groups.sample()
        pids = max(0, seen.pids - _HOLDERS)
        peak = max(seen.memory_mib, seen.memory_peak_mib)
        return Usage(seen.cpu_ms, seen.memory_mib, peak, disk, pids, seen.throttled_permille, seen.oom_kills)


class BubblewrapRuntime:
    def warm(self) -> None:
        """Detect once, in the launcher, what each shim would have to detect again."""
        _knows()
        cgroups.detect()
        scratch.hindrance()
        netns.hindrance()
        seccomp.program()

    def works(self) -> tuple[bool, str]:
        """Start an empty sandbox, exactly like a job's, and find out which limits it can enforce. Call it in a process
        with one thread."""
        order = Order("trial", 0, "trial", ("true",), 1, 1, 0, 0, resources={"disk_mib": 4, "memory_mib": 64})
        said = os.memfd_create("said")
        try:
            with trials.folder_for("sandbox", self.clean) as folder:
                self.prepare(order, folder)
                body = self.start(order, folder, said, said)
                status = child.wait(body.pid, _TRIAL_S)
                words = os.pread(said, 2_000, 0).decode(errors="replace").strip()
                ended = body.ended(status, words)
            self.capabilities()
            return ended == Ended(exit_code=0), words
        except OSError as error:
            return False, str(error.strerror or error)
        finally:
            os.close(said)

    def capabilities(self) -> dict[str, str]:
        groups = cgroups.detect()
        kernel = f"kernel: cgroup v{groups.version}"

        def held(controller: str, otherwise: str) -> str:
            why = groups.missing.get(controller)
            return f"{otherwise}: {why}" if why is not None else kernel

        disk, owner, network = scratch.hindrance(), owners.hindrance(), netns.hindrance()
        return {
            "memory": held("memory", "measured"),
            "cpu": held("cpu", "none"),
            "cpu_s": "measured: by its control group" if "cpuacct" not in groups.missing else "measured",
            "pids": held("pids", "none" if owner else "kernel: by user, since"),
            "disk": f"measured: {disk}" if disk else "kernel: a file system of its own",
            "disk_kib_s": held("blkio", "none"),
            "net_kib_s": f"none: {slow}" if (slow := netns.rate_hindrance()) else "kernel: queues in its own network",
            "network": f"none: {network}" if network else "kernel: a network of its own",
            "user": f"none: {owner}" if owner else "kernel: a user of its own",
            "syscalls": f"none: {unfiltered}" if (unfiltered := seccomp.hindrance()) else "kernel: a seccomp filter",
        }

    def prepare(self, order: Order, folder: str) -> None:
        uid = owners.take(folder) if not owners.hindrance() else 0
        child.make_folders(order, folder, uid)

    def start(self, order: Order, folder: str, stdout: int, stderr: int) -> SandboxedBody:
        return self._start(order, folder, None, stdout, stderr)

    def start_build(self, order: Order, folder: str, view: BodyView, stdout: int, stderr: int) -> SandboxedBody:
        return self._start(order, folder, view, stdout, stderr)

    def _start(self, order: Order, folder: str, view: BodyView | None, stdout: int, stderr: int) -> SandboxedBody:
        uid = owners.take(folder) if not owners.hindrance() else 0
        folders = Folders(order, folder)  # before the body: what fails afterwards would leave it to itself
        plan = _Plan(order, folder, uid, view)
        confinement = _Confinement(order, plan, uid)
        # For bwrap itself, not for the body. If the shim dies while a sandbox is being set up, bwrap's second process
        # lives on outside of the sandbox without a parent to die with; the removal of the attempt finds it by this
        # variable.
        own = {child.WORK_DIR: os.path.join(os.path.realpath(folder), "work")}
        try:
            confinement.groups = _groups_for(order, folder)
            if order.network:
                confinement.network = netns.SandboxNetwork(order.limits.get("net_kib_s", 0))
            pid = child.spawn(plan.argv, own, "/", stdout, stderr, keep=plan.keep, confine=confinement)
        except OSError:
            os.close(plan.status)
            if confinement.network is not None:
                confinement.network.close()
            raise
        finally:
            plan.close()
        return SandboxedBody(pid, plan.status, order, folders, confinement)

    def end(self, folder: str) -> None:
        groups = cgroups.recorded(folder)
        if groups is not None:
            groups.remove()
            groups.lift(scratch.devices_below(folder))

    def clean(self, folder: str) -> None:
        self.end(folder)
        scratch.detach(folder)
        owners.release(folder)


def _groups_for(order: Order, folder: str) -> cgroups.Groups | None:
    hierarchy = cgroups.detect()
    if not hierarchy.bases:
        return None
    own = scratch.devices_below(folder)
    limits = cgroups.CgroupLimits(
        memory_bytes=order.resources.get("memory_mib", 0) << 20,
        cpu_milli=order.resources.get("cpu_milli", 0),
        pids=(order.limits.get("pids", 0) or PIDS_MAX) + _HOLDERS,
        disk_bytes_s=order.limits.get("disk_kib_s", 0) << 10,
        devices=(*own, *scratch.disk_under(folder)),
        own_devices=own,
    )
    return cgroups.Groups.make(folder, hierarchy, limits)


RUNTIME = BubblewrapRuntime()
