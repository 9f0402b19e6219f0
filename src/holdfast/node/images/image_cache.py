"""Provides the images that jobs run in, pulled from a registry or built from a folder, and limits their disk usage.

For the agent. An image that is wanted several times at once is fetched once, and each waiter can stop waiting without
disturbing the others. Fetched images are recorded; when they take too much space, the least recently used ones that are
not held are removed. Images that the operator put into the engine are left alone, and given to jobs only if the
operator allowed it. Every failure has a blame.

The engine's client is imported at the first use, so that a node without an engine does not pay for it.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.durable import durable_write
from holdfast.model import FailureCode
from holdfast.node import linux
from holdfast.node.addresses import non_public
from holdfast.node.images import build_context, image_names
from holdfast.node.images import dockerfile as dockerfiles
from holdfast.node.images.image_builds import Build, BuildLimits, run, wrote_too_much
from holdfast.node.images.image_names import OWN, ImageName, NoImage
from holdfast.tasks import OwnedTasks

if TYPE_CHECKING:
    import aiodocker

log = logging.getLogger("holdfast.node")
LEDGER = "images.json"
CALL_S_MAX = 60.0
"""For an engine to answer a request that needs no work."""

ImageProgress = Callable[[str, int, int], None]
"""Stage (`image`, `build`), amount done, total (0: unknown). Bytes for an image, steps for a build."""


def _nothing() -> None:
    """Nothing to do."""


def _nobody(stage: str, done: int, total: int) -> None:
    """Nobody listens."""


class Image(msgspec.Struct, frozen=True):
    id: str
    """The name as in the order."""
    reference: str
    """By digest if it is known: pulling it again gives the same bytes."""
    size: int
    got: bool = False
    """Whether it had to be pulled or built now."""


class ImageLimits(msgspec.Struct, frozen=True):
    image_bytes_max: int = 32 << 30
    """Of one image, unpacked."""
    all_bytes_max: int = 64 << 30
    """Of all images that were fetched and are kept."""
    seconds_max: float = 12 * 60.0
    """Of one pull or build. Below the orchestrator's limit for preparation, so that the reason reaches the owner."""
    context_bytes_max: int = 4 << 30
    build: BuildLimits = BuildLimits()


class ImageRecord(msgspec.Struct):
    """One entry of the ledger: an image that was fetched under this name, and that this node may remove."""

    id: str
    digest: str
    size: int
    used_s: float


class _Shared:
    """A task that several callers wait for."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Image] | None = None
        self.listeners: list[ImageProgress] = []

    def tell(self, stage: str, done: int, total: int) -> None:
        for told in list(self.listeners):
            told(stage, done, total)


class Images:
    def __init__(
        self,
        engine: str,
        home: Path,
        limits: ImageLimits | None = None,
        *,
        private: bool = False,
        local: Collection[str] = (),
    ) -> None:
        """`engine`: its socket; `home`: the folder of the ledger. `private`: registries inside the node's own network
        are allowed. `local`: names of the operator's own images that jobs may use; `*`: all."""
        self._socket = engine
        self._ledger_path = home / LEDGER
        self._limits = limits or ImageLimits()
        self._private = private
        self._local = local
        self._engine: aiodocker.Docker | None = None
        self._ledger = self._read_ledger()
        self._holders: dict[str, str] = {}
        """Which holder uses which image."""
        self._wanted: Counter[str] = Counter()
        self._running: dict[str, _Shared] = {}
        self._tasks = OwnedTasks(failed=None)

    async def close(self) -> None:
        """Cancel what is in progress."""
        await self._tasks.close()
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    # --- fetching ---

    async def ensure(self, reference: str, holder: str, told: ImageProgress = _nobody) -> Image:
        """The image of this name, held for `holder` until it is released. A known image is not pulled again: its
        reference identifies its content. Raises NoImage if it is unavailable."""
        try:
            name = image_names.parse(reference)
        except image_names.BadName as wrong:
            raise NoImage(FailureCode.IMAGE, str(wrong)) from None
        with self._wanted_meanwhile(str(name)):
            found = await self._known(str(name)) or await self._operators(name)
            if found is None:
                found = await self._once(str(name), lambda tell: self._pull(name, tell), told)
            return self._held(found, holder)

    async def build(
        self,
        folder: Path,
        holder: str,
        dockerfile: str = "Dockerfile",
        args: Mapping[str, str] | None = None,
        told: ImageProgress = _nobody,
        asked: Mapping[str, int] | None = None,
    ) -> Image:
        """An image built from a folder, held for `holder`. An equal folder with equal arguments reuses the image.
        `asked`: the job's limits, by the names of `BuildLimits`. Raises NoImage if it cannot be built."""
        limits = self._limits
        with contextlib.ExitStack() as until_shared:
            packed = until_shared.enter_context(tempfile.TemporaryFile(dir=self._ledger_path.parent))
            try:
                dockerfiles.check_name(dockerfile)
                found = await asyncio.to_thread(
                    build_context.pack, folder, dockerfile, packed, limits.context_bytes_max
                )
                text = await asyncio.to_thread(build_context.read_dockerfile, folder, dockerfile)
                bases = [image_names.parse(base) for base in dockerfiles.images(text, args or {})]
            except (build_context.BadContext, dockerfiles.BadDockerfile, image_names.BadName) as wrong:
                raise NoImage(FailureCode.BUILD, str(wrong)) from None
            except OSError as wrong:
                raise NoImage(image_names.blame(str(wrong)), f"the folder cannot be packed: {wrong}") from None
            words = json.dumps([found.sha256, dockerfile, sorted((args or {}).items())])
            name = f"{OWN}build:{hashlib.sha256(words.encode()).hexdigest()}"
            packed.seek(0)
            until_shared.pop_all()
        build = Build(packed, dockerfile, dict(args or {}), limits.build.within(asked or {}))
        # Those who share a build also share its limits.
        key = f"{name} {json.dumps(msgspec.structs.astuple(build.limits))}"
        with self._wanted_meanwhile(name):
            image = await self._known(name)
            if image is not None:
                packed.close()
            else:
                image = await self._once(key, lambda tell: self._build(name, build, bases, tell), told, packed.close)
            return self._held(image, holder)

    def hold(self, image: str, holder: str) -> None:
        """Mark the image of an attempt that an earlier agent left running as used."""
        self._holders[holder] = image

    async def release(self, holder: str) -> None:
        """Called when it is no longer used; may remove images to make space."""
        if self._holders.pop(holder, None) is not None:
            await self._make_room()

    @contextlib.contextmanager
    def _wanted_meanwhile(self, name: str) -> Iterator[None]:
        """Keep it from being removed until the caller holds it."""
        self._wanted[name] += 1
        try:
            yield
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name]

    def _held(self, image: Image, holder: str) -> Image:
        self._holders[holder] = image.id
        for entry in self._ledger.values():
            if entry.id == image.id:
                entry.used_s = time.time()
        return image

    async def _once(
        self,
        key: str,
        get: Callable[[ImageProgress], Awaitable[Image]],
        told: ImageProgress,
        done: Callable[[], None] = _nothing,
    ) -> Image:
        """Callers that want the same image share one task, which is cancelled with its last waiter. `done` is called
        when `get` has ended, or is not needed."""
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _Shared()
            shared.task = self._tasks.start(f"fetch image {key}", self._bounded(key, get, shared.tell))
            shared.task.add_done_callback(lambda _: (self._running.pop(key, None), done()))
        else:
            done()
        assert shared.task is not None
        shared.listeners.append(told)
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.listeners.remove(told)
            if not shared.listeners:
                shared.task.cancel()

    async def _bounded(self, key: str, get: Callable[[ImageProgress], Awaitable[Image]], tell: ImageProgress) -> Image:
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(self._limits.seconds_max):
                image = await get(tell)
        except TimeoutError:
            built = key.startswith(OWN)
            says = f"the image was not {'built' if built else 'there'} within {self._limits.seconds_max:.0f} s"
            raise NoImage(FailureCode.BUILD if built else FailureCode.NETWORK, says) from None
        except aiodocker.DockerError as wrong:
            log.warning("the engine cannot provide %s: %s", key, wrong.message)
            code = image_names.blame(wrong.message)
            raise NoImage(code, image_names.REASONS[code]) from None
        except (aiohttp.ClientError, OSError, ValueError) as wrong:
            raise NoImage(FailureCode.RUNTIME_FAULT, f"the container engine failed: {wrong}") from None
        await self._make_room()
        return image

    # --- images in the engine ---

    def _docker(self) -> "aiodocker.Docker":
        if self._engine is None:
            import aiodocker

            self._engine = aiodocker.Docker(url=f"unix://{self._socket}")
        return self._engine

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await self._docker().images.inspect(name)
        except aiodocker.DockerError as wrong:
            if wrong.status == 404:
                return None
            raise NoImage(FailureCode.RUNTIME_FAULT, f"the container engine failed: {wrong.message}") from None
        except (aiohttp.ClientError, OSError) as wrong:
            raise NoImage(FailureCode.RUNTIME_FAULT, f"the container engine does not answer: {wrong}") from None

    async def _known(self, name: str) -> Image | None:
        """The image that was fetched under this name, if it still exists and is unchanged."""
        entry = self._ledger.get(name)
        if entry is None:
            return None
        found = await self._inspect(name)
        if found is None or found.get("Id") != entry.id:
            self._ledger.pop(name, None)
            return None
        return Image(entry.id, _by_digest(name, entry.digest), entry.size)

    async def _operators(self, name: ImageName) -> Image | None:
        if "*" not in self._local and str(name) not in self._local and name.name not in self._local:
            return None
        found = await self._inspect(str(name))
        return _described(name, found) if found is not None else None

    # --- pulling ---

    async def _pull(self, name: ImageName, tell: ImageProgress) -> Image:
        await self._check_registry(name)
        layers: dict[str, tuple[int, int]] = {}
        stream = cast("AsyncGenerator[dict[str, Any], None]", self._docker().images.pull(str(name), stream=True))
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                if _count_layer(layers, event):
                    done, total = (sum(numbers) for numbers in zip(*layers.values(), strict=True))
                    tell("image", done, total)
                    if total > self._limits.image_bytes_max:
                        raise NoImage(FailureCode.IMAGE, f"{name} is larger than {self._limits.image_bytes_max} bytes")
        found = await self._inspect(str(name))
        if found is None:
            raise NoImage(FailureCode.RUNTIME_FAULT, f"the container engine aborted the pull of {name}")
        image = _described(name, found, got=True)
        await self._check_size(str(name), image)
        tell("image", image.size, image.size)
        self._note(str(name), image)
        return image

    async def _check_registry(self, name: ImageName) -> None:
        """An untrusted name must not make the engine probe the node's own network."""
        host = name.host.rpartition(":")[0] or name.host
        if not host or self._private:
            return
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as wrong:
            log.warning("the registry %s cannot be found: %s", host, wrong)
            raise NoImage(FailureCode.NETWORK, image_names.REASONS[FailureCode.NETWORK]) from None
        own = linux.own_addresses()
        if any(non_public(str(info[4][0]), own) for info in found):
            says = f"the registry {host} is not public: a node's own network is not contacted"
            raise NoImage(FailureCode.IMAGE, says)

    async def _check_size(self, name: str, image: Image) -> None:
        if image.size > self._limits.image_bytes_max:
            await self._remove(name)
            says = f"the image has {image.size} bytes; this node takes {self._limits.image_bytes_max} at most"
            raise NoImage(FailureCode.IMAGE, says)

    # --- building ---

    async def _build(self, name: str, build: Build, bases: Collection[ImageName], tell: ImageProgress) -> Image:
        with contextlib.ExitStack() as until_built:
            for base in bases:
                until_built.enter_context(self._wanted_meanwhile(str(base)))
                await self._base(base)
            await run(self._docker(), name, build, lambda done, total: tell("build", done, total))
        found = await self._inspect(name)
        if found is None:
            raise NoImage(FailureCode.RUNTIME_FAULT, "the container engine aborted the build")
        image = Image(str(found["Id"]), name, int(found.get("Size", 0)), True)
        await self._check_size(name, image)
        if image.size - await self._largest(bases) > build.limits.disk_mib << 20:
            await self._remove(name)
            raise wrote_too_much(build.limits)
        self._note(name, image)
        return image

    async def _largest(self, bases: Collection[ImageName]) -> int:
        return max([int((await self._inspect(str(base)) or {}).get("Size", 0)) for base in bases], default=0)

    async def _base(self, base: ImageName) -> None:
        """Fetch it under the rules for a job's own image, so that the engine does not fetch it by its own. What the
        image does when it is built upon (`ONBUILD`) is an untrusted part of the Dockerfile."""
        try:
            if await self._known(str(base)) is None and await self._operators(base) is None:
                await self._once(str(base), lambda tell: self._pull(base, tell), _nobody)
            found = await self._inspect(str(base)) or {}
            onbuild = (found.get("Config") or {}).get("OnBuild") or ()
            if dockerfiles.images("\n".join(onbuild), {}):
                raise NoImage(FailureCode.BUILD, f"{base} fetches other images when it is built upon")
        except dockerfiles.BadDockerfile as wrong:
            raise NoImage(FailureCode.BUILD, f"{base}: {wrong}") from None
        except NoImage as wrong:
            if wrong.failure.code is not FailureCode.IMAGE:
                raise
            raise NoImage(FailureCode.BUILD, wrong.failure.detail) from None

    # --- disk usage ---

    async def _make_room(self) -> None:
        """Remove the least recently used first; never one that is held, or that the engine reports as in use."""
        held = set(self._holders.values())
        for name, entry in sorted(self._ledger.items(), key=lambda item: item[1].used_s):
            if sum({entry.id: entry.size for entry in self._ledger.values()}.values()) <= self._limits.all_bytes_max:
                break
            if entry.id not in held and name not in self._wanted:
                await self._remove(name)
        self._write_ledger()

    async def _remove(self, name: str) -> None:
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(CALL_S_MAX):
                await self._docker().images.delete(name)
        except aiodocker.DockerError as wrong:
            if wrong.status != 404:
                return
        except (aiohttp.ClientError, OSError):
            return
        self._ledger.pop(name, None)

    def _note(self, name: str, image: Image) -> None:
        digest = image.reference.partition("@")[2]
        self._ledger[name] = ImageRecord(image.id, digest, image.size, time.time())
        self._write_ledger()

    def _read_ledger(self) -> dict[str, ImageRecord]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._ledger_path.read_bytes(), type=dict[str, ImageRecord])
        return {}

    def _write_ledger(self) -> None:
        """Failing to write the ledger wastes disk space, but must not fail a job."""
        with contextlib.suppress(OSError):
            durable_write(self._ledger_path, msgspec.json.encode(self._ledger))


def _by_digest(name: str, digest: str) -> str:
    return f"{name.partition('@')[0].rpartition(':')[0] or name}@{digest}" if digest and "@" not in name else name


def _described(name: ImageName, found: dict[str, Any], got: bool = False) -> Image:
    """The engine's description of an image that was requested by this name. A name with a digest must match exactly
    that content."""
    digests = [text.rpartition("@")[2] for text in found.get("RepoDigests") or () if "@" in text]
    if name.digest and name.digest not in digests:
        raise NoImage(FailureCode.IMAGE, f"the engine has another image by the name {name}")
    digest = name.digest or (digests[0] if digests else "")
    reference = f"{name.name}@{digest}" if digest else str(name)
    return Image(str(found["Id"]), reference, int(found.get("Size", 0)), got)


def _count_layer(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> bool:
    """Record the progress of each layer. Returns True if it changed."""
    layer, status, detail = event.get("id"), event.get("status"), event.get("progressDetail") or {}
    if not isinstance(layer, str):
        return False
    if status == "Downloading" and detail.get("total"):
        layers[layer] = int(detail.get("current", 0)), int(detail["total"])
        return True
    if status in ("Download complete", "Pull complete") and layer in layers:
        layers[layer] = layers[layer][1], layers[layer][1]
        return True
    return False
