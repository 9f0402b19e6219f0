"""This machine by itself: what every command needs, and what a node needs beyond that. Asks nobody outside of it.

What a node needs is a warning here, unless this machine is one: most machines only send work.
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
from typing import Any

from holdfast.checkup.findings import Found, State, looked
from holdfast.quantities import spoken_bytes

CLIENT = "this machine"
NODE = "this machine as a node"

PYTHON_LEAST = (3, 11)
ROOM_LEAST = 256 << 20
"""Below that an orchestrator or a node stops taking work."""
ROOM_GOOD = 2 << 30
INODES_LEAST = 1_000
INODES_GOOD = 20_000
FILES_LEAST, FILES_GOOD = 256, 1_024
ENGINE_S = 3.0
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


def as_client(home: Path, token_file: str | None = None) -> Iterator[Found]:
    """What every command needs. `token_file`: the one that was named."""
    yield _python()
    yield from looked(CLIENT, "home folder", lambda: _folder("home folder", home, "HOLDFAST_HOME"), "fail")
    yield from looked(
        CLIENT, "temporary files", lambda: _folder("temporary files", Path(tempfile.gettempdir()), "TMPDIR"), "fail"
    )
    yield from looked(CLIENT, "open files", _open_files, "fail")
    yield from looked(CLIENT, "secrets", lambda: _secrets(home, token_file), "warn")


def _python() -> Found:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_LEAST:
        least = ".".join(map(str, PYTHON_LEAST))
        return Found(CLIENT, "Python", "fail", f"{found}; {least} is the oldest that works", f"Install Python {least}.")
    return Found(CLIENT, "Python", "ok", f"{found} at {sys.executable}")


def _folder(name: str, folder: Path, variable: str, group: str = CLIENT) -> Found:
    """Whether something can be written there, and how much."""
    place = folder
    elsewhere = f"make room there, or choose another place with {variable}=DIR"
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        if not place.is_dir():
            return Found(group, name, "fail", f"{place} is no folder", f"Move it away, or set {variable}=DIR.")
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
        room = os.statvfs(place)
    except OSError as wrong:
        why = f"{place} cannot be written to: {wrong.strerror}"
        return Found(group, name, "fail", why, f"ls -ld {place}; df -h {place}; {elsewhere}")
    free, inodes = room.f_bavail * room.f_frsize, room.f_favail
    says = f"{folder}: {spoken_bytes(free)} free"
    # A file system without a fixed number of inodes says 0 of 0.
    scarce = bool(room.f_files) and inodes < INODES_GOOD
    if scarce:
        says += f", {inodes:,} more files"
    if free < ROOM_LEAST or (room.f_files and inodes < INODES_LEAST):
        return Found(
            group,
            name,
            "fail",
            f"{says}; that is not enough to work with",
            f"df -h {place}; df -i {place}; {elsewhere}",
        )
    state: State = "warn" if free < ROOM_GOOD or scarce else "ok"
    return Found(group, name, state, says, f"df -h {place}; df -i {place}; {elsewhere}" if state == "warn" else "")


def _open_files() -> Found:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = "any number" if soft == resource.RLIM_INFINITY else f"{soft:,} at a time"
    if soft == resource.RLIM_INFINITY or soft >= FILES_GOOD:
        return Found(CLIENT, "open files", "ok", says)
    raised = FILES_GOOD if hard == resource.RLIM_INFINITY else min(hard, FILES_GOOD)
    do = f"ulimit -n {raised}" + (
        "" if raised >= FILES_GOOD else "; more takes LimitNOFILE= or /etc/security/limits.conf"
    )
    return Found(CLIENT, "open files", "fail" if soft < FILES_LEAST else "warn", f"only {says}", do)


SECRETS = (
    "orchestrator/admin.token",
    "orchestrator/blobs.key",
    "orchestrator/certificate.key",
    "contexts.json",
    "node/key",
)
"""What lies in HOLDFAST_HOME and is its owner's alone."""


def _secrets(home: Path, token_file: str | None) -> Found:
    """Whether others on this machine can read what lets anyone act for this user."""
    given = token_file or os.environ.get("HOLDFAST_ADMIN_TOKEN_FILE")
    files = [*(home / name for name in SECRETS), *([Path(given)] if given else [])]
    bare = {str(file): who for file in files if (who := readers(file))}
    if not bare:
        return Found(CLIENT, "secrets", "ok", "tokens and keys are this user's alone")
    do = f"chmod 600 {' '.join(bare)}; if someone could have read them, make new ones too"
    says = "; ".join(f"{who} can read {file}" for file, who in bare.items())
    return Found(CLIENT, "secrets", "warn", says, do)


OTHERS, GROUP = "others on this machine", "its group"


def readers(file: Path) -> str:
    """Who besides its owner can read a file: that lets them, and so does every folder on the way to it."""
    try:
        place = Path(os.path.realpath(file))
        mode, ways = _mode(place), [_mode(folder) for folder in place.parents]
    except OSError:
        return ""  # not there, or not this user's to look at
    if mode & 0o004 and all(way & 0o001 for way in ways):
        return OTHERS
    return GROUP if mode & 0o044 and all(way & 0o011 for way in ways) else ""


def _mode(path: Path) -> int:
    return path.stat().st_mode


# --- as a node ---


def as_node(home: Path, *, is_node: bool) -> Iterator[Found]:
    """`home`: the node's folder. To be called while this process has one thread: a sandbox is tried."""
    serious: State = "fail" if is_node else "warn"
    yield from looked(NODE, "sandbox", lambda: _sandbox(serious), serious)
    yield from looked(NODE, "container engine", _engine, serious)
    yield from looked(NODE, "GPUs", lambda: _gpus(serious), serious)
    if is_node:
        room = "node's folder"
        yield from looked(NODE, room, lambda: _folder(room, home, "HOLDFAST_NODE_HOME", NODE), serious)
        yield from looked(NODE, "agent", lambda: _agent(home), serious)


def _sandbox(serious: State) -> Iterator[Found]:
    from holdfast.node.runtimes.runtime import runtime_named

    runtime = runtime_named("bubblewrap")
    works, why = runtime.works()
    if not works:
        yield Found(NODE, "sandbox", serious, f"no job can be confined here: {why}", _sandbox_cure())
        return
    yield Found(NODE, "sandbox", "ok", "bubblewrap confines jobs")
    held = runtime.capabilities()
    for name, (title, well) in _HELD.items():
        how, _, says = held[name].partition(": ")
        if how == "kernel":
            yield Found(NODE, title, "ok", well.format(says))
        else:
            lost = "watched, not enforced" if how == "measured" else "cannot be had"
            yield Found(NODE, title, "warn", f"{lost}: {says}", _limit_cure(name, says))


_HELD = {
    "memory": ("memory limit", "enforced by the kernel ({})"),
    "cpu": ("processor limit", "enforced by the kernel ({})"),
    "disk": ("disk limit", "enforced by the kernel ({})"),
    "user": ("users", "each job is another user of this machine"),
    "network": ("network for jobs", "those that ask for one get one of their own"),
}
"""What a sandbox can hold a job to: its title, and the words for it where it can."""


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


def _limit_cure(name: str, says: str) -> str:
    if "package " in says:
        return f"apt-get install {says.partition('package ')[2].rstrip(')')}"
    if "not root" in says:
        return "Start the node as root (its jobs get users of their own), or as the systemd unit in deploy/."
    if name in ("memory", "cpu"):
        return "Start it with systemd and Delegate=yes, or mount control groups: mount -t cgroup2 none /sys/fs/cgroup"
    if "loop" in says:
        return "modprobe loop; in a container, --device /dev/loop-control"
    return "modprobe tun" if "tun" in says else "See docs/isolation.md."


def _engine() -> Found:
    """Whether somebody answers behind its socket. That a container runs is tried when a node starts."""
    from holdfast.node.runtimes.engine_api import API_LEAST, find_engine

    path, name = find_engine(), "container engine"
    if not path:
        do = "systemctl enable --now docker, or podman.socket; without one, jobs with --image go elsewhere"
        return Found(NODE, name, "warn", "none is here: no images can be run", do)
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return Found(NODE, name, "warn", f"{path} is no socket", "Name the engine's socket in DOCKER_HOST.")
        version = _asked_engine(path)
    except PermissionError:
        do = "usermod -aG docker $USER, then log in again; or start the node as root"
        return Found(NODE, name, "warn", f"{path} may not be used by this user", do)
    except (OSError, ValueError) as wrong:
        why = (
            "it does not answer in time" if isinstance(wrong, TimeoutError) else getattr(wrong, "strerror", "") or wrong
        )
        do = "systemctl restart docker (or podman.socket); journalctl -u docker says more"
        return Found(NODE, name, "warn", f"nobody answers at {path}: {why}", do)
    least = ".".join(map(str, API_LEAST))
    spoken = str(version.get("ApiVersion", "0.0"))
    if not all(part.isdecimal() for part in spoken.split(".")[:2]):
        do = "Look who listens there; DOCKER_HOST names another socket."
        return Found(NODE, name, "warn", f"{path} speaks API {spoken!r}, which is no version", do)
    if tuple(int(part) for part in spoken.split(".")[:2]) < API_LEAST:
        return Found(NODE, name, "warn", f"{path} speaks API {spoken}; {least} is the oldest", "Upgrade the engine.")
    return Found(NODE, name, "ok", f"{path}, version {version.get('Version', 'unknown')}")


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
        raise ValueError("what it says is no version")
    return found


def _gpus(serious: State) -> Found:
    from holdfast.node.hardware import detect_gpus

    found = detect_gpus()
    if found:
        return Found(NODE, "GPUs", "ok", ", ".join(f"{g.model} ({g.memory_mib} MiB, driver {g.driver})" for g in found))
    if Path("/proc/driver/nvidia/version").exists() or any(Path("/dev").glob("nvidia[0-9]*")):
        do = "nvidia-smi says what is wrong; after an upgrade of the driver: reboot, or reload the nvidia modules"
        return Found(NODE, "GPUs", serious, "there is a driver for NVIDIA cards, but it does not answer", do)
    return Found(NODE, "GPUs", "ok", "none here, or no driver for them")


def _agent(home: Path) -> Found:
    from holdfast.errors import HoldfastError
    from holdfast.node.desk import ask

    try:
        status = ask(home, {"ask": "status"})
    except HoldfastError:
        return Found(
            NODE, "agent", "warn", f"no node runs in {home}", "holdfast node --orchestrator HOST:PORT --token …"
        )
    if not status.get("connected"):
        at = status.get("orchestrator")
        do = f"Look whether {at} can be reached from here (nc -vz {str(at).replace(':', ' ')}), and at the node's log."
        why = f": {status['trouble']}" if status.get("trouble") else ""
        return Found(NODE, "agent", "fail", f"it runs, but has no connection to {at}{why}", do)
    who = f"{status.get('name') or status.get('node')} is connected to {status.get('orchestrator')}"
    health: dict[str, Any] = status.get("health") or {}
    if health.get("sick"):
        do = "Mend that: it gets work again by itself. holdfast node status says more."
        return Found(NODE, "agent", "fail", f"{who}, but calls itself sick, and gets no work: {health['sick']}", do)
    if status.get("drained"):
        do = "Ask the network's operator: only holdfast node drain NODE --off takes it back."
        return Found(NODE, "agent", "warn", f"{who}; the network's operator drained it: it gets no work", do)
    if status.get("paused_by_operator"):
        return Found(NODE, "agent", "warn", f"{who}; it is paused: it gets no work", "holdfast node resume")
    if health.get("warnings"):
        says = "; ".join(map(str, health["warnings"]))
        return Found(NODE, "agent", "warn", f"{who}; {says}", "holdfast node status shows what its sensors say.")
    outside = str((status.get("hours") or {}).get("says") or "") if status.get("paused") else ""
    return Found(NODE, "agent", "ok", f"{who}; {outside}" if outside else who)
