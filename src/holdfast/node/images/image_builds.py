"""Has an engine build an image from a packed folder, within limits of memory, processor, processes and disk. For
`image_cache`.

The steps of a Dockerfile are untrusted code: they run in the engine's own containers, without a network. An engine's
network reaches the node's own, and its builder has no other.
"""

import asyncio
import contextlib
import errno
import json
import secrets
import shutil
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from holdfast.model import FailureCode
from holdfast.node.images import image_names
from holdfast.node.images.image_names import OWN, NoImage
from holdfast.node.runtimes import scratch
from holdfast.node.runtimes.engine_cgroup import hold_pids, kill_all, remove_groups, written_layers
from holdfast.tasks import TaskScope

if TYPE_CHECKING:
    import aiodocker

TAIL_LINES = 20
"""How much of a failed build's output is shown to the owner."""
_WATCH_S = 1.0
_SYSTEMCTL_S = 20.0
_END_TRIES, _AGAIN_S = 100, 0.1
_RESERVE_BYTES = 256 << 20
"""A build is aborted if it leaves less than this on the engine's disk: the node's own stability comes first."""
_CAPABILITIES_DROPPED = (
    "AUDIT_WRITE", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT",
)  # fmt: skip
"""Left are those by which root changes owner, mode and user inside of the image: package managers need them."""


class BuildLimits(msgspec.Struct, frozen=True):
    """Of all steps of a build."""

    memory_mib: int = 4096
    cpu_milli: int = 2000
    pids: int = 4096
    disk_mib: int = 32 << 10
    """What the steps may write, and what the image may have beyond the images that it is built from."""

    def within(self, asked: Mapping[str, int]) -> "BuildLimits":
        """These limits, or those of a job where they are lower. 0 and missing: the job has none."""
        own = msgspec.structs.asdict(self)
        return BuildLimits(**{name: min(most, asked.get(name) or most) for name, most in own.items()})


class Build(msgspec.Struct, frozen=True):
    context: IO[bytes]
    """A tar archive, open for reading."""
    dockerfile: str
    args: dict[str, str]
    limits: BuildLimits


async def run(docker: "aiodocker.Docker", name: str, build: Build, told: Callable[[int, int], None]) -> None:
    """Build it and give it this name; `told` is called for each step. Raises NoImage if it fails, with the end of the
    output."""
    about = await docker.system.info()
    root = Path(str(about.get("DockerRootDir") or "/"))
    ways = _Ways(await docker.version(), about)
    try:
        ways.hold(build.limits.pids)
        async with TaskScope() as tasks:
            working = tasks.start(f"build {name}", _work(docker, name, build, ways, root, told))
            watching = tasks.start(f"watch the disk during the build of {name}", _watch(root, ways, build.limits))
            done, _ = await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working not in done:
                raise watching.result()
            working.result()
    finally:
        await ways.end_steps()


class _Ways:
    """Differences between engines."""

    def __init__(self, version: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        parts = version.get("Components") or ()
        self._podman = any("podman" in str(part.get("Name", "")).lower() for part in parts)
        self._systemd = about.get("CgroupDriver") == "systemd"
        self._mark = f"{OWN}build-{secrets.token_hex(8)}"

    def words(self) -> dict[str, str]:
        """Podman understands `networkmode` differently: Docker's `none` means the node's own network there. Only Podman
        can be told to drop capabilities, and never to pull: Docker finds what was pulled before."""
        if not self._podman:
            return {"networkmode": "none", "cgroupparent": self._parent, "version": "1"}
        own = json.dumps([{"Name": "network", "Host": False, "Path": ""}])
        return {
            "networkmode": "NetworkDisabled",
            "nsoptions": own,
            "cgroupparent": self._parent,
            "dropcaps": json.dumps([f"CAP_{name}" for name in _CAPABILITIES_DROPPED]),
            "pullpolicy": "never",
        }

    @property
    def _parent(self) -> str:
        return f"{self._mark}.slice" if self._systemd else f"/{self._mark}"

    def hold(self, pids: int) -> None:
        """Limit the processes of all steps together. With systemd the group belongs to it, and it is told the limit."""
        try:
            if self._systemd:
                _systemctl("set-property", "--runtime", self._parent, f"TasksMax={pids}")
            else:
                hold_pids(self._mark, pids)
        except OSError as wrong:
            says = f"this node cannot limit the processes of a build: {wrong.strerror}"
            raise NoImage(FailureCode.REFUSED, says) from None

    def layers(self) -> set[str]:
        """Where the steps write."""
        return written_layers(self._mark)

    def _remove(self) -> bool:
        """Whether no group is left. The engine takes a moment to remove those of its containers."""
        if not self._systemd:
            return remove_groups(self._mark)
        with contextlib.suppress(OSError):
            _systemctl("stop", self._parent)
            _systemctl("revert", self._parent)
        return True

    async def end_steps(self) -> None:
        """Kill the running step: that fails the build, so no other step starts. Docker does so when the client
        disconnects, Podman does not. Then the groups go."""
        for _ in range(_END_TRIES):
            if not await asyncio.to_thread(kill_all, self._mark) and await asyncio.to_thread(self._remove):
                return
            await asyncio.sleep(_AGAIN_S)


def _systemctl(*words: str) -> None:
    """Raises OSError if systemd does not do it."""
    try:
        subprocess.run(["systemctl", *words], check=True, capture_output=True, timeout=_SYSTEMCTL_S)
    except subprocess.SubprocessError as wrong:
        raise OSError(errno.EPERM, f"systemctl {words[0]} failed") from wrong


async def _work(
    docker: "aiodocker.Docker",
    name: str,
    build: Build,
    ways: _Ways,
    root: Path,
    told: Callable[[int, int], None],
) -> None:
    import aiodocker

    said: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        async for event in _events(docker, name, build, ways):
            text = str(event.get("stream", ""))
            said.extend(line for line in text.splitlines() if line.strip())
            if (step := _step(text)) is not None:
                told(*step)
    except aiodocker.DockerError as wrong:
        raise _failed(wrong.message, said, root) from None


async def _events(docker: "aiodocker.Docker", name: str, build: Build, ways: _Ways) -> AsyncIterator[dict[str, Any]]:
    """Through the client's session, because its own build call does not accept limits."""
    import aiodocker
    import aiohttp
    from aiodocker.jsonstream import json_stream_stream

    memory = build.limits.memory_mib << 20
    words = ways.words() | {
        "t": name, "dockerfile": build.dockerfile, "buildargs": json.dumps(build.args), "rm": "1", "forcerm": "1",
        "memory": memory, "memswap": memory, "cpuperiod": 100_000, "cpuquota": build.limits.cpu_milli * 100,
        "labels": json.dumps({f"{OWN}build": "1"}),
    }  # fmt: skip
    headers, forever = {"Content-Type": "application/x-tar"}, aiohttp.ClientTimeout(total=None)
    posted = docker.session.post(
        "http://localhost/build", params=words, data=build.context, headers=headers, timeout=forever
    )
    async with posted as answer:
        if answer.status >= 400:
            said = await answer.text()
            with contextlib.suppress(ValueError, AttributeError):
                said = str(json.loads(said).get("message", said))
            raise aiodocker.DockerError(answer.status, said)
        async for event in json_stream_stream(answer):
            yield event


def _step(text: str) -> tuple[int, int] | None:
    """`Step 2/5 : …` of Docker, `STEP 2/5: …` of Podman."""
    words = text.split()
    if len(words) > 1 and words[0].lower() == "step":
        done, slash, total = words[1].rstrip(":").partition("/")
        if slash and done.isdigit() and total.isdigit():
            return int(done), int(total)
    return None


def _failed(says: str, said: Collection[str], root: Path) -> NoImage:
    """The Dockerfile's fault, unless the registry or the node's disk caused it. An engine's own words about a registry
    are not repeated."""
    code = image_names.blame(says)
    with contextlib.suppress(OSError):
        if shutil.disk_usage(root).free < _RESERVE_BYTES:
            code = FailureCode.NODE_DISK_FULL
    if code in (FailureCode.NETWORK, FailureCode.NODE_DISK_FULL):
        return NoImage(code, image_names.REASONS[code])
    return NoImage(FailureCode.BUILD, "\n".join([f"the image could not be built: {says}", *said]))


async def _watch(root: Path, ways: _Ways, limits: BuildLimits) -> NoImage:
    """Returns when the build has written too much, with the error."""
    written: dict[str, int] = {}
    while True:
        await asyncio.sleep(_WATCH_S)
        if _free(root) < _RESERVE_BYTES:
            return NoImage(FailureCode.NODE_DISK_FULL, "the build was aborted: the machine's disk is almost full")
        for layer in await asyncio.to_thread(ways.layers):
            written[layer] = max(written.get(layer, 0), await asyncio.to_thread(scratch.measured_mib, layer))
        if sum(written.values()) > limits.disk_mib:
            return wrote_too_much(limits)


def wrote_too_much(limits: BuildLimits) -> NoImage:
    return NoImage(FailureCode.BUILD, f"the build wrote more than {limits.disk_mib} MiB, the job's disk limit")


def _free(root: Path) -> int:
    """Free space. If it cannot be seen from here, there is nothing to watch."""
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return 1 << 62
