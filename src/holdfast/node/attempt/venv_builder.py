"""The builder: a process that has pip install an attempt's requirements, in the sandbox of the attempt.

Pip runs as the attempt's user and within the limits of its order, on the attempt's disk, without a network: the builder
forwards its connections to the indexes of the node. A process of its own, because the agent has threads and must not
fork. It ends, and what it started with it, when the agent does. Knows no orchestrator.

Its stdin gets one line, a BuildRequest, and stays open; its stdout gets one line, a BuildReport. `pip_runner.py` is the
part inside the sandbox.
"""

import asyncio
import contextlib
import json
import os
import pkgutil
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.node import linux
from holdfast.node.attempt.index_proxy import IndexProxy
from holdfast.node.attempt.pip_settings import PipSettings
from holdfast.node.core.order import Order
from holdfast.node.core.resource_usage import excess
from holdfast.node.runtimes import child
from holdfast.node.runtimes.runtime import Body, BodyView, runtime_named
from holdfast.passing import once_more, patiently

_PIP_SEEN = "/.pip"
_CERTIFICATES = ("/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted")
_FILE_BYTES_MAX = 8 << 20
_SAID_BYTES_MAX = 64 * 1024
_LISTEN_S_MAX = 60.0
_LOOK_S = 0.5
_REAP_S = 0.02
_PIP = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "install", "--only-binary", ":all:")
_PIP += ("--no-warn-script-location", "--progress-bar", "off", "--no-color")


@dataclass(frozen=True)
class BuildRequest:
    folder: str
    """The attempt's folder. It has a folder `venv` on the attempt's disk."""
    order: dict[str, Any]
    requirements: tuple[str, ...]
    python: str
    pip_folder: str
    settings: PipSettings
    seconds_max: float

    def to_json(self) -> bytes:
        settings = asdict(self.settings) | {"hosts": sorted(self.settings.hosts)}
        return json.dumps(asdict(self) | {"settings": settings}).encode()

    @staticmethod
    def from_json(data: bytes) -> "BuildRequest":
        raw = json.loads(data)
        settings = raw["settings"]
        hosts = frozenset((str(host), int(port)) for host, port in settings["hosts"])
        whole = PipSettings(**(settings | {"hosts": hosts, "folders": tuple(settings["folders"])}))
        return BuildRequest(**(raw | {"settings": whole, "requirements": tuple(raw["requirements"])}))


def _no_names() -> list[str]:
    return []


@dataclass(frozen=True)
class BuildReport:
    """How it ended. At most one of the first three is set if it failed for such a reason."""

    code: str = ""
    """The failure code of a limit: `oom_job`, `disk_quota` …"""
    fault: str = ""
    """Why the sandbox could not be set up."""
    late: bool = False
    """It took longer than it was given."""
    exit_code: int | None = None
    guard: str = ""
    """What pip was refused: `build`, or `repository` and the program."""
    refused: list[str] = field(default_factory=_no_names)
    """Hosts that are none of the node's indexes."""
    unreachable: list[str] = field(default_factory=_no_names)
    said: str = ""
    """The end of pip's output."""


# --- what the sandbox gets ---


def _laid_out(request: BuildRequest) -> tuple[Order, BodyView]:
    """Fill the folder of the build. Returns the order for pip, and its view."""
    order = Order.from_dict(request.order)
    folder = os.path.join(os.path.realpath(request.folder), child.BUILD)
    owner = patiently(os.stat, folder)
    for name in ("tree", "tmp"):
        os.mkdir(os.path.join(folder, name), 0o755)
        os.chown(os.path.join(folder, name), owner.st_uid, owner.st_gid)
    sandboxed = order.runtime == "bubblewrap"
    work = "/work" if sandboxed else folder
    venv = child.VENV if sandboxed else f"{folder}/tree"
    settings = request.settings
    files = {"pip_runner.py": pkgutil.get_data(__package__ or "", "pip_runner.py") or b""}
    files["requirements.txt"] = "".join(f"{line}\n" for line in request.requirements).encode()
    env = {**settings.variables, "PIP_CONFIG_FILE": "/dev/null", "PIP_KEYRING_PROVIDER": "disabled"}
    env |= {"TMPDIR": f"{work}/tmp", "LANG": "C.UTF-8"}
    for name, variable, path in (
        ("cert.pem", "PIP_CERT", settings.certificate),
        ("client.pem", "PIP_CLIENT_CERT", settings.client_certificate),
    ):
        if path:
            env[variable] = f"{work}/{name}"
            files[name] = patiently(_content, path)
    for name, data in files.items():
        _put(os.path.join(folder, name), data, owner.st_gid)
    pip_folder = _PIP_SEEN if sandboxed else _alone(folder, request.pip_folder)
    words = (pip_folder, *_PIP, "-r", f"{work}/requirements.txt") if request.requirements else ()
    argv = (request.python, "-I", f"{work}/pip_runner.py", "make", "{control}", venv, *words)
    readable = {f"{_PIP_SEEN}/pip": request.pip_folder} | {path: path for path in settings.folders}
    readable |= {path: path for path in _CERTIFICATES if os.path.isdir(path) and not os.path.islink(path)}
    if prefix := child.python_prefix():
        readable[prefix] = prefix
    pip = replace(order, argv=argv, env=env, network=False, checkpoint=False, venv="", gpu_ids=())
    return pip, BodyView({"/work": folder, child.VENV: f"{folder}/tree"}, readable)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_FILE_BYTES_MAX)


def _put(path: str, data: bytes, group: int) -> None:
    """For the attempt's user to read: a key of the node's is among these, so nobody else may."""
    fd = patiently(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with open(fd, "wb") as file:
        os.fchown(fd, -1, group)
        file.write(data)


def _alone(folder: str, pip_folder: str) -> str:
    """A folder that has pip and nothing else, to import it from."""
    place = os.path.join(folder, "pip-alone")
    os.mkdir(place)
    os.symlink(pip_folder, os.path.join(place, "pip"))
    return place


# --- running it ---


class _Build:
    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._order, view = _laid_out(request)
        settings = request.settings
        rate = self._order.limits.get("net_kib_s", 0)
        self._proxy = IndexProxy(settings.hosts, settings.parent_of, rate)
        self._deadline = time.monotonic() + request.seconds_max
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hear, say = patiently(os.pipe)
        argv = tuple(word.replace("{control}", str(theirs.fileno())) for word in self._order.argv)
        runtime = runtime_named(self._order.runtime)
        view = replace(view, keep=(theirs.fileno(),))
        try:
            self._body: Body = runtime.start_build(replace(self._order, argv=argv), request.folder, view, say, say)
        finally:
            theirs.close()
            os.close(say)
        self._said = b""
        self._guard = ""
        self._code = ""
        self._late = False

    async def run(self) -> BuildReport:
        loop = asyncio.get_running_loop()
        self._line.setblocking(False)
        os.set_blocking(self._hear, False)
        loop.add_reader(self._hear, self._listen)
        loop.add_reader(0, self._agent_spoke)
        serving = asyncio.create_task(self._serve(), name="serve the indexes")
        try:
            status = await self._until_dead()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        while self._listen():
            pass
        self._hear_runner()
        text = self._said.decode(errors="replace")
        ended = self._body.ended(status, text[-500:])
        return BuildReport(
            "" if self._late else self._code or ended.code,
            ended.fault,
            self._late,
            ended.exit_code,
            self._guard,
            self._proxy.refused,
            self._proxy.unreachable,
            text,
        )

    def _agent_spoke(self) -> None:
        """The agent says nothing more: this is its end."""
        self._body.signal(signal.SIGKILL)
        os._exit(1)

    def _listen(self) -> bool:
        """Take what pip printed. False: there is nothing now."""
        with contextlib.suppress(BlockingIOError):
            chunk = once_more(os.read, self._hear, 1 << 16)
            if chunk:
                self._said = (self._said + chunk)[-_SAID_BYTES_MAX:]
                return True
            asyncio.get_running_loop().remove_reader(self._hear)
        return False

    async def _serve(self) -> None:
        """Forward what comes in at the socket that the runner hands out, which is in the sandbox's network."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_LISTEN_S_MAX):
            handed: asyncio.Future[list[int]] = loop.create_future()
            loop.add_reader(self._line, lambda: self._take_door(handed))
            doors = await handed
        server = await self._proxy.serve(socket.socket(fileno=doors[0]))
        try:
            await server.serve_forever()
        finally:
            server.close()

    def _take_door(self, handed: "asyncio.Future[list[int]]") -> None:
        asyncio.get_running_loop().remove_reader(self._line)
        try:
            _, doors, _, _ = socket.recv_fds(self._line, 64, 1)
        except OSError:
            doors = []
        if doors:
            handed.set_result(doors)
        else:
            handed.cancel()

    def _hear_runner(self) -> None:
        with contextlib.suppress(OSError):
            said = self._line.recv(256).decode(errors="replace").split(" ", 1)
            self._guard = said[1] if said[0] == "refused" and len(said) == 2 else ""

    async def _until_dead(self) -> int:
        """Returns the wait status when nothing of it is left."""
        status: int | None = None
        look_at = 0.0
        while True:
            reaped = _reaped()
            if reaped is None:
                assert status is not None
                return status
            if self._body.pid in reaped:
                status = reaped[self._body.pid]
                self._look()  # a short build may have used too much between two looks
            if status is not None:
                self._body.signal(signal.SIGKILL)
            elif time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                self._look()
            await asyncio.sleep(_REAP_S)

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # too many open files, for example: checked again soon
            used = self._body.usage()
            self._code = self._code or excess(self._order, used.cpu_ms, used.memory_mib, used.disk_mib, used.oom_kills)
        self._late = self._late or time.monotonic() > self._deadline
        if self._code or self._late:
            self._body.signal(signal.SIGKILL)


def _reaped() -> dict[int, int] | None:
    """The wait statuses of children that ended; None: there are no children left."""
    found: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found or None
        if pid == 0:
            return found
        found[pid] = status


def build(request: BuildRequest) -> BuildReport:
    linux.adopt_orphans()
    linux.name_process("holdfast-build")
    try:
        whole = _Build(request)
    except OSError as wrong:
        return BuildReport(fault=f"the sandbox could not be set up: {wrong.strerror or wrong}")
    return asyncio.run(whole.run())


def main() -> None:
    # Standard output is for the report alone.
    report = patiently(os.dup, 1)
    os.dup2(2, 1)
    request = BuildRequest.from_json(sys.stdin.buffer.readline())
    with open(report, "wb") as line:
        line.write(json.dumps(asdict(build(request))).encode())


if __name__ == "__main__":
    main()
