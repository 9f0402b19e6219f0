"""The folders and processes of attempts, from the agent's side: creates, reads, finds and removes them.

Knows files and processes (described in docs/architecture.md), not what they mean for a job.
"""

import contextlib
import json
import logging
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.durable import durable_write_all
from holdfast.node import linux
from holdfast.node.core.attempt_lifecycle import BodyOutcome, Phase
from holdfast.node.core.events import AttemptInputs, ShimStatus
from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, owners, scratch
from holdfast.node.runtimes import runtime as runtimes
from holdfast.passing import once_more, patiently, raise_if_passing, unless_passing
from holdfast.tasks import in_own_thread

FILE_BYTES_MAX = 1 << 20
SWEEP_S = 0.02
SWEEP_SAID_S = 10.0
"""A process that survives SIGKILL for this long is stuck in the kernel, which is logged."""

log = logging.getLogger("holdfast.node")


class FoundAttempt(msgspec.Struct, frozen=True):
    """An attempt that an earlier agent left."""

    order: Order
    attempt_inputs: AttemptInputs
    status: ShimStatus | None
    folder: Path


def make(folder: Path) -> None:
    """Create the folder, readable by the node only. Until it holds an order it counts as debris. Raises OSError."""
    folder.mkdir(mode=0o700)


def write_order(folder: Path, order: Order, attempt_inputs: AttemptInputs) -> None:
    """Store what the shim is to carry out, and the attempt's inputs. From now on the attempt can be found again."""
    brought, ordered = msgspec.json.encode(attempt_inputs), json.dumps(order.to_dict()).encode()
    durable_write_all({folder / "luggage.json": brought, folder / "order.json": ordered})


def _read_attempt_inputs(folder: Path) -> AttemptInputs:
    """Without them an attempt can still be ended and its logs delivered."""
    try:
        return msgspec.json.decode(patiently((folder / "luggage.json").read_bytes), type=AttemptInputs)
    except (OSError, msgspec.DecodeError):
        return AttemptInputs()


def scan(attempts: Path) -> tuple[list[FoundAttempt], list[Path]]:
    """Returns the attempts that can be reported, and the folders that are unusable and must be removed. Blocking.
    Raises OSError rather than take a folder for unusable because of an error that passes."""
    found: list[FoundAttempt] = []
    litter: list[Path] = []
    for folder in sorted(attempts / name for name in patiently(os.listdir, attempts)):
        try:
            order = Order.from_dict(patiently(_read_json, folder / "order.json"))
        except (OSError, ValueError) as wrong:
            raise_if_passing(wrong)
            litter.append(folder)
            continue
        if order.attempt == folder.name and not folder.is_symlink():
            _bring_back(folder, order)
            found.append(FoundAttempt(order, _read_attempt_inputs(folder), patiently(read_status, folder), folder))
        else:
            litter.append(folder)
    return found, litter


def _bring_back(folder: Path, order: Order) -> None:
    """After a reboot, mount the file system that the body wrote to again. If that fails, the attempt's final status
    must not count any more: a result without its files is invalid. Raises OSError if it cannot be told now."""
    if not scratch.is_away(str(folder)):
        return
    try:
        patiently(runtimes.runtime_named(order.runtime).prepare, order, str(folder))
    except (OSError, ValueError) as wrong:
        raise_if_passing(wrong)
        log.error("the scratch of %s is lost: %s", folder.name, wrong)
        with contextlib.suppress(OSError):
            (folder / "status.json").unlink(missing_ok=True)
            with (folder / "shim.log").open("a") as words:
                words.write(f"{wrong}\n")


DEAD = (1, -1)
"""The identity of a process that cannot live: no process starts before the machine."""


def read_identity(folder: Path) -> tuple[int, int] | None:
    """Pid and start time of the attempt's shim; None if it never had one.

    After a reboot another process may have both, and would be taken for the shim, and killed. So a shim of another boot
    is dead. One that does not say its boot (of an earlier version, or a kernel that does not tell) is known by its
    current folder, which it never leaves. Raises OSError if it cannot be told now."""
    try:
        raw = _read_json(folder / "shim.json")
    except (OSError, ValueError) as wrong:
        raise_if_passing(wrong)
        return None
    pid, ticks, boot = raw.get("pid"), raw.get("start_ticks"), raw.get("boot")
    if type(pid) is not int or type(ticks) is not int or pid <= 0:
        return None
    here = boot == linux.boot_id() if boot else linux.is_in(pid, str(folder))
    return (pid, ticks) if here else DEAD


def claim(folder: Path) -> bool:
    """Take the place of the attempt's only shim, so that none can start any more. False: there is, or was, one.

    The order is hard-linked to that name: it names no process, and a full disk has space for nothing else."""
    try:
        os.link(folder / "order.json", folder / "shim.json")
    except FileNotFoundError:  # without an order no shim can start
        return True
    except OSError:
        return False
    return True


def is_claimed(folder: Path) -> bool:
    """Whether a shim has claimed the attempt, even if it is no longer known which."""
    return (folder / "shim.json").exists()


def read_status(folder: Path) -> ShimStatus | None:
    """None if there is none. Raises OSError if that cannot be told now."""
    try:
        return status_from(_read_json(folder / "status.json"))
    except (OSError, ValueError) as wrong:
        raise_if_passing(wrong)
        return None


def status_from(raw: object) -> ShimStatus:
    """Parse a shim's status. Raises ValueError if it is invalid."""
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
        BodyOutcome.from_dict(outcome) if outcome is not None else None,
        numbers[0],
        numbers[1],
        digest,
        raw.get("go") is True,
        *_used(raw.get("usage")),
    )


def _used(raw: object) -> tuple[int, int]:
    """Processor time and memory of a body, from its shim's status."""
    told = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    cpu, memory = told.get("cpu_ms", 0), told.get("memory_mib", 0)
    return (cpu, memory) if type(cpu) is int and type(memory) is int and cpu >= 0 and memory >= 0 else (0, 0)


def log_sizes(folder: Path) -> dict[str, int]:
    """The sizes of the log files, if no shim can report them any more."""
    sizes: dict[str, int] = {}
    for stream in ("stdout", "stderr"):
        with contextlib.suppress(OSError):
            sizes[stream] = patiently((folder / f"{stream}.log").stat).st_size
    return sizes


def last_words(folder: Path) -> str:
    """The end of the shim's own log, for a person."""
    with contextlib.suppress(OSError):
        lines = (folder / "shim.log").read_text(errors="replace")[-2000:].strip().splitlines()
        return lines[-1][-300:] if lines else ""
    return ""


def processes_of(folder: Path) -> list[int]:
    """All live processes of an attempt: its shim, the shim's descendants, and processes that lost their shim but still
    see the scratch folder. Raises OSError if that cannot be told now: a process that is overlooked lives on."""
    pids: set[int] = set()
    identity = patiently(read_identity, folder)
    if identity is not None and linux.is_alive(*identity):
        pids |= {identity[0], *linux.descendants(identity[0])}
    work = folder / "work"
    # The shim's path of its own folder has no symbolic links.
    marker = f"\0{child.WORK_DIR}={os.path.realpath(folder)}/work\0".encode(errors="surrogateescape")
    users = {os.geteuid(), owners.recorded(str(folder))}
    scratch = None
    with unless_passing():  # already gone if an earlier removal was interrupted
        scratch = patiently(work.stat)
    for name in patiently(os.listdir, "/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        process = Path("/proc") / name
        if (scratch is not None and _sees(process, scratch)) or _is_marked(process, marker, users):
            pids.add(int(name))
    return sorted(pids)


def _sees(process: Path, scratch: os.stat_result) -> bool:
    for view in ("root/work", "cwd"):
        with unless_passing():
            if os.path.samestat(patiently((process / view).stat), scratch):
                return True
    return False


def _is_marked(process: Path, marker: bytes, users: set[int]) -> bool:
    """Whether the process carries the attempt's marker in its environment. Any job can forge that, so it counts only
    for processes of this attempt's own user and of ours; otherwise another job could keep the attempt from being
    removed."""
    try:
        if marker not in b"\0" + patiently((process / "environ").read_bytes) + b"\0":
            return False
        status = patiently((process / "status").read_text)
    except OSError as wrong:
        raise_if_passing(wrong)
        return False
    return int(status.partition("\nUid:")[2].split()[0]) in users


def end_processes(folder: Path) -> None:
    """Kill all processes of an attempt; returns when none is left. Blocking."""
    begun = time.monotonic()
    said = False
    while pids := [pid for pid in processes_of(folder) if not _is_dead(pid)]:
        linux.signal_all(pids, signal.SIGKILL)
        if not said and time.monotonic() - begun > SWEEP_SAID_S:
            said = True
            log.error("processes %s of %s do not die", pids, folder.name)
        time.sleep(SWEEP_S)


async def until_ended(folder: Path) -> None:
    await in_own_thread(end_processes, folder)


async def until_removed(folder: Path) -> None:
    """End its processes, clean up the machine, and delete the folder."""
    await in_own_thread(end_processes, folder)
    await in_own_thread(clean, folder)
    await in_own_thread(remove, folder)


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie. Raises OSError if it cannot be told now."""
    try:
        state = patiently(Path(f"/proc/{pid}/stat").read_bytes).rpartition(b")")[2].split()[0]
    except (OSError, IndexError) as wrong:
        raise_if_passing(wrong)
        return True
    return state in (b"Z", b"X")


def clean(folder: Path) -> None:
    """Remove everything of an attempt that is neither a process nor a plain file: mounts, loop devices, control groups,
    containers. Its scratch is unreadable afterwards. Raises OSError while something is left. Blocking."""
    runtimes.clean(str(folder))


def remove(folder: Path) -> None:
    """Delete the folder with everything in it. Raises OSError if something is left. Blocking.

    A body may nest folders deeper than the stack, path lengths or open files allow. So each folder found is first moved
    to the top level, and none is ever reached through more than one other.
    """
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    pending = [folder]
    while pending:
        here = pending[-1]
        os.chmod(here, 0o700)  # a body may have removed its own permissions
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


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX)


def _read_json(path: Path) -> dict[str, Any]:
    raw = json.loads(once_more(_read, path))
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast("dict[str, Any]", raw)
