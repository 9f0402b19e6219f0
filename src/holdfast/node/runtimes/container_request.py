"""Builds the engine's request for an order: the container, its limits, its mounts. Pure except for looking up the
machine's shell. Knows no engine by name, and starts nothing.

The body does not print to the engine: its streams are named pipes in a folder of the attempt, so that no output is lost
if the engine is stopped, killed or upgraded. A shell of the node's own, mounted into the container with its libraries,
opens them and executes the job: an image needs no shell.
"""

import hashlib
import os
import re
from functools import cache
from typing import Any

from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, lent, scratch

LABEL_ATTEMPT = "holdfast.attempt"
LABEL_FOLDER = "holdfast.folder"
"""The attempt's path on the node. It distinguishes its container from those of other nodes on the same machine."""
INSIDE, WORK = "/.holdfast", "/work"
STREAMS = ("stdout", "stderr")
GATE = "gate"
"""A pipe that the shell opens when the streams are in place, just before it executes the job: it blocks until the other
end is opened."""
INIT = 1
"""The container's first process is the engine's: it reaps the others and is not part of the job."""
PIDS_MAX = 4_096
"""If an order sets no limit of processes."""
MEMORY_MIB = 512
"""For /tmp and /dev/shm if an order sets no memory limit."""

_OPEN = f"exec >{INSIDE}/stdout 2>{INSIDE}/stderr && : >{INSIDE}/{GATE} || exit 126; ulimit -c 0"
_SCRIPT = _OPEN + '; n=$1; shift; while [ "$n" -gt 0 ]; do export "$1"; shift; n=$((n-1)); done; exec "$@"'
_LOADER_NAME = re.compile(r"LD_[A-Z0-9_]+|GLIBC_TUNABLES")
"""Intended for the job: the node's own shell must not load a library of the image."""
_PERIOD_CPU_MILLI = 1_000_000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The engine's default if an image sets none."""
_LOG_BYTES = "64k"
"""Size of the engine's own log, which only has errors from before the streams are in place."""


@cache
def shell() -> tuple[tuple[str, str], ...]:
    """The node's shell, its loader and their libraries: (name in the container, path on the node), the loader first if
    there is one. Raises OSError if this machine has none that can be lent."""
    import subprocess

    program = os.path.realpath("/bin/sh")
    with open(program, "rb") as file:
        head = file.read(1 << 16)
    found = re.search(rb"/[\w./+-]*/ld[-\w.]*\.so[\w.]*", head)
    if head[:4] != b"\x7fELF":
        raise OSError(8, "/bin/sh is not a program that can be lent to a container")
    if found is None:
        return (("sh", program),)
    loader = found[0].decode()
    said = subprocess.run([loader, "--list", program], capture_output=True, text=True, timeout=10)
    if said.returncode != 0:
        raise OSError(8, f"{loader} cannot list the libraries of {program}: {said.stderr.strip()}")
    libraries = re.findall(r"^\s*(\S+) => (/\S+)", said.stdout, re.MULTILINE)
    named = [(name, os.path.realpath(path)) for name, path in libraries if "/" not in name]
    return (("ld.so", os.path.realpath(loader)), ("sh", program), *named)


def lent_shell() -> tuple[str, ...]:
    """The command that runs the node's shell in a container."""
    sh = (f"{INSIDE}/sh",)
    return (f"{INSIDE}/ld.so", "--library-path", INSIDE, *sh) if "ld.so" in dict(shell()) else sh


def entrypoint() -> list[str]:
    """The command of the container's first program; the job's arguments follow."""
    return [*lent_shell(), "-c", _SCRIPT, "sh"]


def name_of(folder: str) -> str:
    """The container's name, which depends on the folder alone."""
    return "holdfast-" + hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]


def variables(order: Order, image: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The container's environment over that of the image, and the variables that the shell sets just before the job."""
    ours = child.environment(order, "/work", "/checkpoint")
    theirs = dict(word.split("=", 1) for word in image.get("Config", {}).get("Env") or () if "=" in word)
    yields = {"PATH", "LANG", *(child.defaults(order).keys() & theirs.keys())} - order.env.keys()
    plain = {key: word for key, word in ours.items() if key not in yields}
    if order.venv and "PATH" not in order.env:
        plain["PATH"] = f"{child.VENV}/bin:{theirs.get('PATH', _PATH)}"
    if "PYTHONPATH" not in order.env:
        plain["PYTHONPATH"] = lent.python_path(theirs.get("PYTHONPATH", ""))
    for key, word in (("USER", "job"), ("LANG", "C.UTF-8")):
        if key not in theirs:
            plain.setdefault(key, word)
    late = {key: word for key, word in (theirs | plain).items() if _LOADER_NAME.fullmatch(key)}
    plain |= dict.fromkeys(late, "")
    return [f"{key}={word}" for key, word in plain.items()], [f"{key}={word}" for key, word in late.items()]


def request(order: Order, folder: str, uid: int, image: dict[str, Any]) -> dict[str, Any]:
    """The body of the engine's `create` request. `image`: the engine's description of it."""
    env, late = variables(order, image)
    return {
        "Image": order.image,
        "Entrypoint": entrypoint(),
        "Cmd": [str(len(late)), *late, *order.argv],
        "User": f"{uid}:{uid}",
        "WorkingDir": WORK,
        "Env": env,
        "Hostname": "holdfast",
        "Labels": {LABEL_ATTEMPT: order.attempt, LABEL_FOLDER: os.path.realpath(folder)},
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "Init": True,
            "OomScoreAdj": 1000,
            "Mounts": _mounts(order, folder),
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_BYTES, "max-file": "1"}},
            **_limits(order),
            "Tmpfs": room(order, image),
            "ShmSize": _memory_bytes(order),
            **_speed(order, folder),
            **_gpus(order),
        },
    }


def _mounts(order: Order, folder: str) -> list[dict[str, Any]]:
    """The folders of the node that are visible inside. As objects, because the engine's short form does not allow a
    colon in a path."""
    folder = os.path.realpath(folder)
    own = [(f"{folder}/io", INSIDE), *((path, f"{INSIDE}/{name}") for name, path in shell())]
    own += [(f"{folder}/io/{name}", f"/etc/{name}") for name in ("passwd", "group", "resolv.conf")]
    own += [(order.venv, child.VENV)] if order.venv else []
    own += [(lent.place(folder), lent.SEEN_AS)] if os.path.isdir(lent.place(folder)) else []
    theirs = [(f"{folder}/{name}", f"/{name}") for name in (("work", "checkpoint") if order.checkpoint else ("work",))]
    return [_bind(*pair, read_only=True) for pair in own] + [_bind(*pair, read_only=False) for pair in theirs]


def _bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _limits(order: Order) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if memory := order.resources.get("memory_mib", 0) << 20:
        limits |= {"Memory": memory, "MemorySwap": memory}  # the same for both: no swap
    if cpu := order.resources.get("cpu_milli", 0):
        limits["NanoCpus"] = cpu * _PERIOD_CPU_MILLI
    limits["PidsLimit"] = (order.limits.get("pids", 0) or PIDS_MAX) + INIT
    return limits


def _memory_bytes(order: Order) -> int:
    return (order.resources.get("memory_mib", 0) or MEMORY_MIB) << 20


def room(order: Order, image: dict[str, Any]) -> dict[str, str]:
    """Writable places besides its folders, all of them in memory. A volume that the image declares would be on the
    engine's disk without a limit, so it is replaced by memory."""
    volumes = {os.path.normpath("/" + place.lstrip("/")) for place in image.get("Config", {}).get("Volumes") or ()}
    own = {"/", "/work", "/checkpoint", child.VENV, INSIDE, lent.SEEN_AS}
    options = f"rw,exec,nosuid,nodev,mode=1777,size={_memory_bytes(order)}"
    return dict.fromkeys(sorted({"/tmp", *volumes} - own), options)


def _speed(order: Order, folder: str) -> dict[str, Any]:
    """Read and write limits of the disks that the job's folders are on."""
    rate = order.limits.get("disk_kib_s", 0) << 10
    numbers = (*scratch.devices_below(folder), *scratch.disk_under(folder)) if rate else ()
    each = [{"Path": path, "Rate": rate} for number in numbers if (path := _device(number))]
    return {"BlkioDeviceReadBps": each, "BlkioDeviceWriteBps": each} if each else {}


def _device(number: str) -> str:
    """The path of the device `major:minor`, as engines require; empty: it has none."""
    path = "/dev/" + os.path.basename(os.path.realpath(f"/sys/dev/block/{number}"))
    return path if os.path.exists(path) else ""


def _gpus(order: Order) -> dict[str, Any]:
    if not order.gpu_ids:
        return {}
    each = {"Driver": "nvidia", "DeviceIDs": list(order.gpu_ids), "Capabilities": [["gpu", "compute", "utility"]]}
    return {"DeviceRequests": [each]}
