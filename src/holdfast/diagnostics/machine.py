"""Checks this machine by itself: what every command needs, and what a node needs beyond that. No network requests.

What only a node needs gives a warning, unless this machine is a node: most machines only submit work.
"""

import json
import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.diagnostics.findings import CheckResult, State, looked
from holdfast.quantities import spoken_bytes

if TYPE_CHECKING:
    from holdfast.node.runtimes.hindrances import Hindrance

CLIENT = "this machine"
NODE = "this machine as a node"

PYTHON_LEAST = (3, 11)
ROOM_LEAST = 256 << 20
"""With less, an orchestrator or a node stops accepting work."""
ROOM_GOOD = 2 << 30
INODES_LEAST = 1_000
INODES_GOOD = 20_000
FILES_LEAST, FILES_GOOD = 256, 1_024
ENGINE_S = 3.0
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


def as_client(home: Path, token_file: str | None = None) -> Iterator[CheckResult]:
    """What every command needs. `token_file`: the one given on the command line."""
    yield _python()
    yield from looked(CLIENT, "home folder", lambda: _folder("home folder", home, "HOLDFAST_HOME"), "fail")
    yield from looked(
        CLIENT, "temporary files", lambda: _folder("temporary files", Path(tempfile.gettempdir()), "TMPDIR"), "fail"
    )
    yield from looked(CLIENT, "open files", _open_files, "fail")
    yield from looked(CLIENT, "secrets", lambda: _secrets(home, token_file), "warn")


def _python() -> CheckResult:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_LEAST:
        least = ".".join(map(str, PYTHON_LEAST))
        return CheckResult(
            CLIENT, "Python", "fail", f"{found}; {least} is the oldest supported version", f"Install Python {least}."
        )
    return CheckResult(CLIENT, "Python", "ok", f"{found} at {sys.executable}")


def _folder(name: str, folder: Path, variable: str, group: str = CLIENT) -> CheckResult:
    """Whether the folder is writable, and how much space it has."""
    place = folder
    elsewhere = f"free some space there, or choose another place with {variable}=DIR"
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        if not place.is_dir():
            return CheckResult(group, name, "fail", f"{place} is not a folder", f"Move it away, or set {variable}=DIR.")
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
        room = os.statvfs(place)
    except OSError as wrong:
        why = f"{place} cannot be written to: {wrong.strerror}"
        return CheckResult(group, name, "fail", why, f"ls -ld {place}; df -h {place}; {elsewhere}")
    free, inodes = room.f_bavail * room.f_frsize, room.f_favail
    says = f"{folder}: {spoken_bytes(free)} free"
    # A file system without a fixed number of inodes reports 0 of 0.
    scarce = bool(room.f_files) and inodes < INODES_GOOD
    if scarce:
        says += f", {inodes:,} more files"
    if free < ROOM_LEAST or (room.f_files and inodes < INODES_LEAST):
        return CheckResult(
            group,
            name,
            "fail",
            f"{says}; that is not enough",
            f"df -h {place}; df -i {place}; {elsewhere}",
        )
    state: State = "warn" if free < ROOM_GOOD or scarce else "ok"
    return CheckResult(
        group, name, state, says, f"df -h {place}; df -i {place}; {elsewhere}" if state == "warn" else ""
    )


def _open_files() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = "any number" if soft == resource.RLIM_INFINITY else f"{soft:,} at a time"
    if soft == resource.RLIM_INFINITY or soft >= FILES_GOOD:
        return CheckResult(CLIENT, "open files", "ok", says)
    raised = FILES_GOOD if hard == resource.RLIM_INFINITY else min(hard, FILES_GOOD)
    do = f"ulimit -n {raised}" + (
        "" if raised >= FILES_GOOD else "; more needs LimitNOFILE= or /etc/security/limits.conf"
    )
    return CheckResult(CLIENT, "open files", "fail" if soft < FILES_LEAST else "warn", f"only {says}", do)


SECRETS = (
    "orchestrator/admin.token",
    "orchestrator/blobs.key",
    "orchestrator/certificate.key",
    "contexts.json",
    "node/key",
)
"""Files in HOLDFAST_HOME that only their owner may read."""


def _secrets(home: Path, token_file: str | None) -> CheckResult:
    """Whether others on this machine can read this user's secrets."""
    named = (os.environ.get(f"HOLDFAST_{kind}_TOKEN_FILE") for kind in ("ACCESS", "ADMIN"))
    given = token_file or next(filter(None, named), None)
    files = [*(home / name for name in SECRETS), *([Path(given)] if given else [])]
    bare = {str(file): who for file in files if (who := readers(file))}
    if not bare:
        return CheckResult(CLIENT, "secrets", "ok", "only this user can read tokens and keys")
    do = f"chmod 600 {' '.join(bare)}; if someone could have read them, create new ones too"
    says = "; ".join(f"{who} can read {file}" for file, who in bare.items())
    return CheckResult(CLIENT, "secrets", "warn", says, do)


OTHERS, GROUP = "others on this machine", "its group"


def readers(file: Path) -> str:
    """Who besides its owner can read a file, given its mode and those of all folders above it."""
    try:
        place = Path(os.path.realpath(file))
        mode, ways = _mode(place), [_mode(folder) for folder in place.parents]
    except OSError:
        return ""  # does not exist, or not readable by this user
    if mode & 0o004 and all(way & 0o001 for way in ways):
        return OTHERS
    return GROUP if mode & 0o044 and all(way & 0o011 for way in ways) else ""


def _mode(path: Path) -> int:
    return path.stat().st_mode


# --- as a node ---


def as_node(home: Path, *, is_node: bool) -> Iterator[CheckResult]:
    """`home`: the node's folder. Call it while this process has one thread: it tests a sandbox."""
    serious: State = "fail" if is_node else "warn"
    yield from looked(NODE, "sandbox", lambda: _sandbox(serious), serious)
    yield from looked(NODE, "container engine", _engine, serious)
    yield from looked(NODE, "GPUs", lambda: _gpus(serious), serious)
    if is_node:
        room = "node's folder"
        yield from looked(NODE, room, lambda: _folder(room, home, "HOLDFAST_NODE_HOME", NODE), serious)
        yield from looked(NODE, "agent", lambda: _agent(home), serious)


def _sandbox(serious: State) -> Iterator[CheckResult]:
    from holdfast.node.runtimes.runtime import runtime_named

    runtime = runtime_named("bubblewrap")
    works, why = runtime.works()
    if not works:
        yield CheckResult(NODE, "sandbox", serious, f"no job can be confined here: {why}", _sandbox_cure())
        return
    yield CheckResult(NODE, "sandbox", "ok", "bubblewrap confines jobs")
    held = runtime.capabilities()
    for name, (title, well) in _HELD.items():
        how, _, says = held[name].partition(": ")
        if how == "kernel":
            yield CheckResult(NODE, title, "ok", well.format(says))
        else:
            lost = "watched, not enforced" if how == "measured" else "not available"
            yield CheckResult(NODE, title, "warn", f"{lost}: {says}", _limit_cure(name, _hindrance(name)))


_HELD = {
    "memory": ("memory limit", "enforced by the kernel ({})"),
    "cpu": ("processor limit", "enforced by the kernel ({})"),
    "disk": ("disk limit", "enforced by the kernel ({})"),
    "user": ("users", "each job runs as a user of its own"),
    "network": ("network for jobs", "jobs that ask for the network get one of their own"),
    "syscalls": ("system calls", "those that a job does not need are refused"),
}
"""The limits of a sandbox: title, and description if it is enforced."""


def _sandbox_cure() -> str:
    if shutil.which("bwrap") is None:
        return "apt-get install bubblewrap (or dnf, apk); then run this again"
    for path, wanted, do in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "1", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0",
         "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
    ):  # fmt: skip
        if os.geteuid() != 0 and Path(path).exists() and Path(path).read_text().strip() != wanted:
            return do
    if not USER_NAMESPACES.exists():
        return "Run it as root, or with a kernel that has user namespaces (CONFIG_USER_NS): this one has none."
    if USER_NAMESPACES.read_text().strip() == "0":
        return "sysctl -w user.max_user_namespaces=10000"
    return "Run it as root, or in a container with --privileged: namespaces must be allowed."


def _hindrance(limit: str) -> "Hindrance":
    """Why the limit is not held, where something else than control groups would hold it."""
    from holdfast.node.runtimes import netns, owners, scratch, seccomp
    from holdfast.node.runtimes.hindrances import NONE

    match limit:
        case "disk":
            return scratch.hindrance()
        case "network":
            return netns.hindrance()
        case "user":
            return owners.hindrance()
        case "syscalls":
            return seccomp.hindrance()
        case _:
            return NONE


def _limit_cure(limit: str, why: "Hindrance") -> str:
    from holdfast.node.runtimes.hindrances import Lack

    if limit in ("memory", "cpu"):
        return "Start it with systemd and Delegate=yes, or mount control groups: mount -t cgroup2 none /sys/fs/cgroup"
    match why.lack:
        case Lack.PACKAGE:
            return f"apt-get install {why.package}"
        case Lack.ROOT:
            return "Start the node as root (its jobs get users of their own), or as the systemd unit in deploy/."
        case Lack.LOOP:
            return "modprobe loop; in a container, --device /dev/loop-control"
        case Lack.TUN:
            return "modprobe tun"
        case Lack.UNKNOWN:
            return "See docs/isolation.md."


def _engine() -> CheckResult:
    """Whether the engine answers. A node tests at its start whether a container runs."""
    from holdfast.node.runtimes.engine_api import API_LEAST, find_engine

    path, name = find_engine(), "container engine"
    if not path:
        do = "systemctl enable --now docker, or podman.socket; without one, jobs with --image go elsewhere"
        return CheckResult(NODE, name, "warn", "none was found: no images can be run", do)
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return CheckResult(
                NODE, name, "warn", f"{path} is not a socket", "Name the engine's socket in DOCKER_HOST."
            )
        version = _asked_engine(path)
    except PermissionError:
        do = "usermod -aG docker $USER, then log in again; or start the node as root"
        return CheckResult(NODE, name, "warn", f"{path} may not be used by this user", do)
    except (OSError, ValueError) as wrong:
        why = (
            "it did not answer in time" if isinstance(wrong, TimeoutError) else getattr(wrong, "strerror", "") or wrong
        )
        do = "systemctl restart docker (or podman.socket); journalctl -u docker says more"
        return CheckResult(NODE, name, "warn", f"no answer at {path}: {why}", do)
    least = ".".join(map(str, API_LEAST))
    spoken = str(version.get("ApiVersion", "0.0"))
    if not all(part.isdecimal() for part in spoken.split(".")[:2]):
        do = "Check what listens there; DOCKER_HOST names another socket."
        return CheckResult(NODE, name, "warn", f"{path} speaks API {spoken!r}, which is not a version", do)
    if tuple(int(part) for part in spoken.split(".")[:2]) < API_LEAST:
        return CheckResult(
            NODE, name, "warn", f"{path} speaks API {spoken}; {least} is the oldest", "Upgrade the engine."
        )
    return CheckResult(NODE, name, "ok", f"{path}, version {version.get('Version', 'unknown')}")


def _asked_engine(path: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ENGINE_S)
        line.connect(path)
        line.sendall(b"GET /version HTTP/1.0\r\nHost: engine\r\n\r\n")
        said = b""
        while len(said) < 1 << 20 and (chunk := line.recv(1 << 16)):
            said += chunk
    found = json.loads(said.partition(b"\r\n\r\n")[2])
    if not isinstance(found, dict):
        raise ValueError("the answer is not a version")
    return found


def _gpus(serious: State) -> CheckResult:
    from holdfast.node.hardware import detect_gpus

    found = detect_gpus()
    if found:
        return CheckResult(
            NODE, "GPUs", "ok", ", ".join(f"{g.model} ({g.memory_mib} MiB, driver {g.driver})" for g in found)
        )
    if Path("/proc/driver/nvidia/version").exists() or any(Path("/dev").glob("nvidia[0-9]*")):
        do = "nvidia-smi shows what is wrong; after an upgrade of the driver: reboot, or reload the nvidia modules"
        return CheckResult(NODE, "GPUs", serious, "there is a driver for NVIDIA cards, but it does not answer", do)
    return CheckResult(NODE, "GPUs", "ok", "none here, or no driver for them")


def _agent(home: Path) -> CheckResult:
    from holdfast.errors import HoldfastError
    from holdfast.node.operator.operator_socket import ask

    try:
        status = ask(home, {"ask": "status"})
    except HoldfastError:
        return CheckResult(
            NODE, "agent", "warn", f"no node runs in {home}", "holdfast node --orchestrator HOST:PORT --token …"
        )
    if not status.get("connected"):
        at = status.get("orchestrator")
        do = f"Check that {at} can be reached from here (nc -vz {str(at).replace(':', ' ')}), and at the node's log."
        why = f": {status['trouble']}" if status.get("trouble") else ""
        return CheckResult(NODE, "agent", "fail", f"it runs, but has no connection to {at}{why}", do)
    who = f"{status.get('name') or status.get('node')} is connected to {status.get('orchestrator')}"
    health: dict[str, Any] = status.get("health") or {}
    if health.get("sick"):
        do = "Fix that: then it gets work again. holdfast node status has more."
        return CheckResult(
            NODE, "agent", "fail", f"{who}, but reports itself sick, and gets no work: {health['sick']}", do
        )
    if status.get("drained"):
        do = "Ask the network's operator: only holdfast node drain NODE --off takes it back."
        return CheckResult(NODE, "agent", "warn", f"{who}; the network's operator drained it: it gets no work", do)
    if status.get("paused_by_operator"):
        return CheckResult(NODE, "agent", "warn", f"{who}; it is paused: it gets no work", "holdfast node resume")
    if health.get("warnings"):
        says = "; ".join(map(str, health["warnings"]))
        return CheckResult(NODE, "agent", "warn", f"{who}; {says}", "holdfast node status shows its sensors.")
    outside = str((status.get("hours") or {}).get("says") or "") if status.get("paused") else ""
    return CheckResult(NODE, "agent", "ok", f"{who}; {outside}" if outside else who)
