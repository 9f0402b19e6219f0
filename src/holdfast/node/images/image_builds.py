"""Has an engine build an image from a packed folder, within limits of memory, processor and disk. For `image_cache`.

The steps of a Dockerfile are untrusted code: they run in the engine's own containers, without the network unless the
operator allows it.
"""

import asyncio
import contextlib
import json
import secrets
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from holdfast.model import FailureCode
from holdfast.node.images import image_names
from holdfast.node.images.image_names import OWN, NoImage
from holdfast.node.runtimes.engine_cgroup import kill_all
from holdfast.tasks import TaskScope

if TYPE_CHECKING:
    import aiodocker

TAIL_LINES = 20
"""How much of a failed build's output is shown to the owner."""
_WATCH_S = 1.0
_END_TRIES, _AGAIN_S = 100, 0.1
_RESERVE_BYTES = 256 << 20
"""A build is aborted if it leaves less than this on the engine's disk: the node's own stability comes first."""


class Build(msgspec.Struct, frozen=True):
    context: IO[bytes]
    """A tar archive, open for reading."""
    dockerfile: str
    args: dict[str, str]
    memory_mib: int
    cpu_milli: int
    bytes_max: int
    """Maximum size of the image. A build may use twice as much on the disk."""
    network: bool


async def run(docker: "aiodocker.Docker", name: str, build: Build, told: Callable[[int, int], None]) -> None:
    """Build it and give it this name; `told` is called for each step. Raises NoImage if it fails, with the end of the
    output."""
    about = await docker.system.info()
    root = Path(str(about.get("DockerRootDir") or "/"))
    ways = _Ways(await docker.version(), about)
    try:
        async with TaskScope() as tasks:
            working = tasks.start(f"build {name}", _work(docker, name, build, ways, root, told))
            watching = tasks.start(f"watch the disk during the build of {name}", _watch(root, build.bytes_max))
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

    def words(self, network: bool) -> dict[str, str]:
        """Podman understands `networkmode` differently: Docker's `none` means the node's own network there. Also, its
        steps continue when the client disconnects, so they run in a place where they can be found."""
        if not self._podman:
            return {"networkmode": "default" if network else "none"}
        own = json.dumps([{"Name": "network", "Host": False, "Path": ""}])
        return {
            "networkmode": "NetworkEnabled" if network else "NetworkDisabled",
            "nsoptions": own,
            "cgroupparent": f"{self._mark}.slice" if self._systemd else f"/{self._mark}",
        }

    async def end_steps(self) -> None:
        """Kill the running step: that fails the build, so no other step starts."""
        for _ in range(_END_TRIES if self._podman else 0):
            if not await asyncio.to_thread(kill_all, self._mark):
                return
            await asyncio.sleep(_AGAIN_S)


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

    memory = build.memory_mib << 20
    words = ways.words(build.network) | {
        "t": name, "dockerfile": build.dockerfile, "buildargs": json.dumps(build.args), "rm": "1", "forcerm": "1",
        "memory": memory, "memswap": memory, "cpuperiod": 100_000, "cpuquota": build.cpu_milli * 100,
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
    """The Dockerfile's fault, unless the registry or the node's disk caused it."""
    code = image_names.blame(says)
    with contextlib.suppress(OSError):
        if shutil.disk_usage(root).free < _RESERVE_BYTES:
            code = FailureCode.NODE_DISK_FULL
    if code not in (FailureCode.NETWORK, FailureCode.NODE_DISK_FULL):
        code = FailureCode.BUILD
    return NoImage(code, "\n".join([f"the image could not be built: {says}", *said]))


async def _watch(root: Path, bytes_max: int) -> NoImage:
    """Returns when the build has written too much, with the error."""
    began = _free(root)
    while True:
        await asyncio.sleep(_WATCH_S)
        free = _free(root)
        if free < _RESERVE_BYTES:
            return NoImage(FailureCode.NODE_DISK_FULL, "the build was aborted: the machine's disk is almost full")
        if began - free > 2 * bytes_max:
            return NoImage(FailureCode.BUILD, f"the build was aborted: it wrote more than {2 * bytes_max} bytes")


def _free(root: Path) -> int:
    """Free space. If it cannot be seen from here, there is nothing to watch."""
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return 1 << 62
