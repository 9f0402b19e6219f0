"""The folders and processes of attempts, from the agent's side: made, read, found again, swept away.

Knows files and processes (docs/architecture.md names them), not what they mean for a job.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.node import linux
from holdfast.node.core.stimuli import Luggage, ShimStatus
from holdfast.node.core.warden import Order, Outcome, Phase
from holdfast.node.home import write_all_durably
from holdfast.node.runtimes import child, owners, scratch
from holdfast.node.runtimes import runtime as runtimes

FILE_BYTES_MAX = 1 << 20
SWEEP_S = 0.02
SWEEP_SAID_S = 10.0
"""A process that outlives SIGKILL this long is stuck in the kernel: worth a line in the log."""

log = logging.getLogger("holdfast.node")


class Found(msgspec.Struct, frozen=True):
    """An attempt that an earlier agent left behind."""

    order: Order
    luggage: Luggage
    status: ShimStatus | None
    folder: Path


def make(folder: Path) -> None:
    """The folder, for the node's eyes only. Until it holds an order it is litter. OSError where that fails."""
    folder.mkdir(mode=0o700)


def write_order(folder: Path, order: Order, luggage: Luggage) -> None:
    """What a shim is to carry out, and what was brought for it. From now on the attempt can be found again."""
    brought, ordered = msgspec.json.encode(luggage), json.dumps(order.to_dict()).encode()
    write_all_durably({folder / "luggage.json": brought, folder / "order.json": ordered})


def _read_luggage(folder: Path) -> Luggage:
    """Without it an attempt can still be ended and its logs delivered."""
    try:
        return msgspec.json.decode((folder / "luggage.json").read_bytes(), type=Luggage)
    except (OSError, msgspec.DecodeError):
        return Luggage()


def scan(attempts: Path) -> tuple[list[Found], list[Path]]:
    """What is there: attempts that can be reported, and folders that make no sense and must go."""
    found: list[Found] = []
    litter: list[Path] = []
    for folder in sorted(attempts.iterdir()):
        try:
            order = Order.from_dict(_read_json(folder / "order.json"))
        except (OSError, ValueError):
            litter.append(folder)
            continue
        if order.attempt == folder.name and not folder.is_symlink():
            _bring_back(folder, order)
            found.append(Found(order, _read_luggage(folder), read_status(folder), folder))
        else:
            litter.append(folder)
    return found, litter


def _bring_back(folder: Path, order: Order) -> None:
    """After a restart of the machine: what the body wrote is on a file system that must be mounted again. Where that is
    lost, its last word must not count any more: a result without its files is none."""
    if not scratch.is_away(str(folder)):
        return
    try:
        runtimes.runtime_named(order.runtime).prepare(order, str(folder))
    except (OSError, ValueError) as wrong:
        log.error("the scratch of %s is lost: %s", folder.name, wrong)
        with contextlib.suppress(OSError):
            (folder / "status.json").unlink(missing_ok=True)
            with (folder / "shim.log").open("a") as words:
                words.write(f"{wrong}\n")


def read_identity(folder: Path) -> tuple[int, int] | None:
    """Pid and start time of the attempt's shim; None where it never had one."""
    try:
        raw = _read_json(folder / "shim.json")
    except (OSError, ValueError):
        return None
    pid, ticks = raw.get("pid"), raw.get("start_ticks")
    return (pid, ticks) if type(pid) is int and type(ticks) is int and pid > 0 else None


def claim(folder: Path) -> bool:
    """Take the place of the attempt's only shim, so that none can start any more. False: there is, or was, one.

    The order gets the name as well: it names no process, and on a full disk there is room for nothing else."""
    try:
        os.link(folder / "order.json", folder / "shim.json")
    except FileNotFoundError:  # without an order none can start
        return True
    except OSError:
        return False
    return True


def is_claimed(folder: Path) -> bool:
    """Whether the place of its shim is taken, also where nobody can tell any more by whom."""
    return (folder / "shim.json").exists()


def read_status(folder: Path) -> ShimStatus | None:
    try:
        return status_from(_read_json(folder / "status.json"))
    except (OSError, ValueError):
        return None


def status_from(raw: object) -> ShimStatus:
    """A shim's status from its JSON form; ValueError where it is none."""
    if not isinstance(raw, dict):
        raise ValueError("a status is a JSON object")
    raw = cast("dict[str, Any]", raw)
    numbers = [raw.get(name, 0) for name in ("stdout_bytes", "stderr_bytes")]
    digest = raw.get("stdout_sha256", "")
    if any(type(n) is not int or n < 0 for n in numbers) or not isinstance(digest, str):
        raise ValueError("a status holds sizes and a digest")
    outcome = raw.get("outcome")
    return ShimStatus(
        Phase(raw.get("phase", "")),
        Outcome.from_dict(outcome) if outcome is not None else None,
        numbers[0],
        numbers[1],
        digest,
        raw.get("go") is True,
        *_used(raw.get("usage")),
    )


def _used(raw: object) -> tuple[int, int]:
    """Processor time and memory of a body, as its shim tells them."""
    told = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    cpu, memory = told.get("cpu_ms", 0), told.get("memory_mib", 0)
    return (cpu, memory) if type(cpu) is int and type(memory) is int and cpu >= 0 and memory >= 0 else (0, 0)


def log_sizes(folder: Path) -> dict[str, int]:
    """What the log files hold, where no shim can say it any more."""
    sizes: dict[str, int] = {}
    for stream in ("stdout", "stderr"):
        with contextlib.suppress(OSError):
            sizes[stream] = (folder / f"{stream}.log").stat().st_size
    return sizes


def last_words(folder: Path) -> str:
    """The end of what the shim itself had to say, for a person."""
    with contextlib.suppress(OSError):
        lines = (folder / "shim.log").read_text(errors="replace")[-2000:].strip().splitlines()
        return lines[-1][-300:] if lines else ""
    return ""


def processes_of(folder: Path) -> list[int]:
    """Everything alive of an attempt: its shim, what descends from it, and what lost its shim but still has
    the scratch folder in its view."""
    pids: set[int] = set()
    identity = read_identity(folder)
    if identity is not None and linux.is_alive(*identity):
        pids |= {identity[0], *linux.descendants(identity[0])}
    work = folder / "work"
    # As a shim sees its own folder: without links.
    marker = f"\0{child.WORK_DIR}={os.path.realpath(folder)}/work\0".encode(errors="surrogateescape")
    users = {os.geteuid(), owners.recorded(str(folder))}
    scratch = None
    with contextlib.suppress(OSError):  # gone already where a sweep was broken off
        scratch = work.stat()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        process = Path("/proc") / name
        if (scratch is not None and _sees(process, scratch)) or _is_marked(process, marker, users):
            pids.add(int(name))
    return sorted(pids)


def _sees(process: Path, scratch: os.stat_result) -> bool:
    for view in ("root/work", "cwd"):
        with contextlib.suppress(OSError):
            if os.path.samestat((process / view).stat(), scratch):
                return True
    return False


def _is_marked(process: Path, marker: bytes, users: set[int]) -> bool:
    """By its environment, which whoever runs it may have made up: so it counts only of this attempt's own user and of
    ours. Another job could else name itself after this attempt, and keep it from ever being cleared away."""
    try:
        if marker not in b"\0" + (process / "environ").read_bytes() + b"\0":
            return False
        status = (process / "status").read_text()
    except OSError:
        return False
    return int(status.partition("\nUid:")[2].split()[0]) in users


def end_processes(folder: Path) -> None:
    """Kill everything of an attempt; returns when nothing of it lives. Blocking."""
    begun = time.monotonic()
    said = False
    while pids := [pid for pid in processes_of(folder) if not _is_dead(pid)]:
        linux.signal_all(pids, signal.SIGKILL)
        if not said and time.monotonic() - begun > SWEEP_SAID_S:
            said = True
            log.error("processes %s of %s do not die", pids, folder.name)
        time.sleep(SWEEP_S)


async def until_ended(folder: Path) -> None:
    await _alone(end_processes, folder)


async def until_removed(folder: Path) -> None:
    """Ended, gone from the machine, and deleted."""
    await _alone(end_processes, folder)
    await _alone(clean, folder)
    await _alone(remove, folder)


async def _alone(chore: Callable[[Path], None], folder: Path) -> None:
    """In a thread of its own: a process that is stuck in the kernel, or a scratch folder of a million files, holds
    up nobody but its own attempt, where the shared threads would soon all wait for such."""
    own = ThreadPoolExecutor(1)
    try:
        await asyncio.get_running_loop().run_in_executor(own, chore, folder)
    finally:
        own.shutdown(wait=False)


def _is_dead(pid: int) -> bool:
    """Gone, or only waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in (b"Z", b"X")


def clean(folder: Path) -> None:
    """Take everything of an attempt off the machine that is no process and no plain file: mounts, loop devices,
    control groups, containers. Its scratch is unreadable afterwards. OSError while something is left. Blocking."""
    runtimes.clean(str(folder))


def remove(folder: Path) -> None:
    """Delete the folder with everything in it. OSError where something is left. Blocking.

    A body may nest folders deeper than any stack, path or table of open files reaches. So each folder found is
    first moved up to the top, and none is ever reached through more than one other.
    """
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    pending = [folder]
    while pending:
        here = pending[-1]
        os.chmod(here, 0o700)  # a body may take its own rights away; they are ours to give back
        found: list[Path] = []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    found.append(Path(entry.path))
                else:
                    os.unlink(entry.path)
        for nested in found:
            top = folder / f".swept-{secrets.token_hex(8)}"
            nested.rename(top)
            pending.append(top)
        if not found:
            here.rmdir()
            pending.pop()


def _read_json(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        raw = json.loads(file.read(FILE_BYTES_MAX))
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast("dict[str, Any]", raw)
