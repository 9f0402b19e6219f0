"""Real container engines and a real image registry for tests. Each has its own folder and socket, is stopped by process
id, and leaves nothing on the machine.

    with Docker(live_restore=True) as engine:
        image = engine.add_image(busybox_tar())
        engine.kill()
        engine.start()

A process is ended only if it was started here, or descends from one that was: then its arguments name the engine's
own folder.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import psutil

from holdfast.node import linux
from holdfast.node.runtimes import scratch
from holdfast.node.runtimes.engine_api import Engine, EngineError, EngineGone, query
from holdfast.testing.processes import end, free_port, wait_for

READY_S = 90.0
STOP_S = 90.0


class Service:
    """A program in the foreground with its output in a file. Its folder is removed when it is closed."""

    def __init__(self, prefix: str) -> None:
        # Not below pytest's own folder: that path is too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "log"

    def command(self) -> list[str]:
        raise LookupError("a subclass says what is run")

    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
        return kept | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "HOME": str(self.folder)}

    def answers(self) -> bool:
        raise LookupError("a subclass knows when it is ready")

    def start(self) -> Self:
        """Start the program and return when it answers. After `stop` or `kill`, it starts again on the data it left."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self._up, lambda: f"{self.command()[0]} to answer:\n{self.tail()}", READY_S)
        return self

    def _up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.command()[0]} ended while starting:\n{self.tail()}")
        return self.answers()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        if self.process is not None and self.running():
            self.process.send_signal(number)

    def stop(self) -> None:
        """Send SIGTERM and wait for the end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
            raise

    def leftovers(self) -> list[psutil.Process]:
        """Processes that the service started and left behind, found by its folder in their arguments."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and any(str(self.folder) in word for word in process.cmdline()):
                    found.append(process)
        return found

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        end(self.leftovers())
        for place in scratch.mounts_below(str(self.folder)):
            with contextlib.suppress(OSError):
                linux.unmount(place)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.running() else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EngineService(Service):
    """A container engine. `socket` is where it listens, `api` is a client for it."""

    kind = ""

    @property
    def socket(self) -> str:
        return str(self.folder / "socket")

    @property
    def api(self) -> Engine:
        return Engine(self.socket)

    def answers(self) -> bool:
        try:
            return self.api.ask("GET", "/_ping", timeout_s=20).all()[0] == 200
        except EngineGone:
            return False

    def add_image(self, rootfs: bytes, name: str = "", changes: Iterable[str] = ()) -> str:
        """Import an image of one layer and return its id. The same image is imported only once. `changes`: Dockerfile
        lines such as `ENV COLOUR=green`."""
        lines = list(changes)
        name = name or "holdfast-test-" + hashlib.sha256(rootfs + "".join(lines).encode()).hexdigest()[:12]
        with contextlib.suppress(EngineError):
            return str(self.api.call("GET", f"/images/{name}:latest/json")["Id"])
        words = [("fromSrc", "-"), ("repo", name), ("tag", "latest"), *(("changes", line) for line in lines)]
        status, _, said = self.api.ask("POST", f"/images/create?{urlencode(words)}", rootfs, timeout_s=120).all()
        assert status == 200 and b'"error"' not in said, said
        return str(self.api.call("GET", f"/images/{name}:latest/json")["Id"])

    def containers(self) -> list[str]:
        """The names of all containers, including those that have ended."""
        found = self.api.call("GET", "/containers/json" + query(all=1)) or []
        return sorted(str(container["Names"][0]).lstrip("/") for container in found)

    def close(self) -> None:
        """Remove the containers first: they would outlive an engine that restores them."""
        with contextlib.suppress(OSError):
            for name in self.containers() if self.running() else ():
                self.api.remove(name)
        super().close()


class Docker(EngineService):
    kind = "docker"

    def __init__(self, live_restore: bool = False, flags: Iterable[str] = (), data: Path | None = None) -> None:
        """`data`: the folder of its images and containers; a folder inside its own by default."""
        super().__init__("hf-docker-")
        self.live_restore = live_restore
        self.flags = tuple(flags)
        self.data = data or self.folder / "data"

    def command(self) -> list[str]:
        places = ["--data-root", str(self.data), "--exec-root", str(self.folder / "exec")]
        places += ["--pidfile", str(self.folder / "pid"), "--host", f"unix://{self.socket}"]
        lonely = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        more = [*(["--live-restore"] if self.live_restore else []), *self.flags]
        return ["dockerd", *lonely, *places, "--config-file", str(self.folder / "daemon.json"), *more]

    def start(self) -> Self:
        (self.folder / "daemon.json").write_text("{}")  # not the machine's configuration
        return super().start()

    def kill(self) -> None:
        """containerd dies with Docker, but a moment later: a new containerd would find the old one's lock. If nothing
        reaps orphans, the pid stays in use and the next Docker would wait for it, so the pid files are removed."""
        super().kill()
        wait_for(lambda: not self._containerd(), "containerd to end", STOP_S)
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)

    def _containerd(self) -> list[psutil.Process]:
        return [p for p in self.leftovers() if p.is_running() and p.name() == "containerd"]


class Podman(EngineService):
    kind = "podman"

    def __init__(self, insecure: Iterable[str] = ()) -> None:
        """`insecure`: registries that are used without TLS, as HOST:PORT."""
        super().__init__("hf-podman-")
        (self.folder / "containers.conf").write_text(
            "[containers]\n"
            'default_ulimits=["nofile=1024:1024","nproc=4096:4096"]\n'
            "[engine]\n"
            'runtime="runc"\n'
            'cgroup_manager="cgroupfs"\n'
            'events_logger="file"\n'
            'lock_type="file"\n'  # locks in shared memory belong to the whole machine, and each start frees them all
        )
        entries = "".join(f'[[registry]]\nlocation="{address}"\ninsecure=true\n' for address in insecure)
        (self.folder / "registries.conf").write_text(entries)
        (self.folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))

    def environment(self) -> dict[str, str]:
        confs = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }
        own = self.folder / "uploads"  # otherwise uploads would remain in the machine's own temporary folder
        own.mkdir(exist_ok=True)
        return super().environment() | confs | {"TMPDIR": str(own)}

    def command(self) -> list[str]:
        places = ["--root", str(self.folder / "data"), "--runroot", str(self.folder / "run")]
        places += ["--tmpdir", str(self.folder / "tmp")]
        return ["podman", *places, "system", "service", "--time", "0", f"unix://{self.socket}"]


class Registry(Service):
    """Debian's docker-registry on loopback. `address` is the prefix of its image names."""

    def __init__(self) -> None:
        super().__init__("hf-registry-")
        self.address = f"127.0.0.1:{free_port()}"
        self.storage = self.folder / "storage"
        (self.folder / "config.yml").write_text(
            "version: 0.1\n"
            "log: {accesslog: {disabled: false}, level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.storage}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.address}'}}\n"
        )

    def command(self) -> list[str]:
        return ["docker-registry", "serve", str(self.folder / "config.yml")]

    def answers(self) -> bool:
        try:
            return self._ask("GET", "/v2/")[0] == 200
        except (OSError, HTTPException):
            return False

    def add_image(self, name: str, rootfs: bytes, tag: str = "latest", config: dict[str, Any] | None = None) -> str:
        """Upload an image of one layer as `push` would, and return its reference by digest. `config`: `Env`, `Volumes`
        …"""
        layer = gzip.compress(rootfs, 1, mtime=0)
        inside = {"type": "layers", "diff_ids": [_digest(rootfs)]}
        whole = {"architecture": _machine(), "os": "linux", "config": config or {}, "rootfs": inside}
        about = json.dumps(whole | {"history": [{"created_by": "a test"}]}).encode()
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        parts = (("container.image.v1+json", about), ("image.rootfs.diff.tar.gzip", layer))
        described = [
            {"mediaType": f"application/vnd.docker.{name}", "size": len(content), "digest": _digest(content)}
            for name, content in parts
        ]
        for content in (about, layer):
            self._upload(name, content)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": described[0], "layers": described[1:]})
        status, _ = self._ask("PUT", f"/v2/{name}/manifests/{tag}", manifest.encode(), kind)
        assert status == 201, status
        return f"{self.address}/{name}@{_digest(manifest.encode())}"

    def fetches(self, name: str) -> int:
        """How many blobs of this image were downloaded. Manifests do not count."""
        return len(re.findall(rf'"GET /v2/{name}/blobs/\S+ HTTP/1.1" 200', self.log.read_text(errors="replace")))

    def layers(self, reference: str) -> list[Path]:
        """The files of an image's layers. `reference` includes a digest."""
        manifest = json.loads(self.blob(reference.partition("@")[2]).read_bytes())
        return [self.blob(layer["digest"]) for layer in manifest["layers"]]

    def _upload(self, name: str, content: bytes) -> None:
        status, place = self._ask("POST", f"/v2/{name}/blobs/uploads/")
        assert status == 202, status
        path = place.partition(self.address)[2]
        status, _ = self._ask("PUT", f"{path}&digest={_digest(content)}", content, "application/octet-stream")
        assert status == 201, status

    def _ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, str]:
        """The status and `Location` header of the answer."""
        connection = HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Location", "")
        finally:
            connection.close()

    def blob(self, digest: str) -> Path:
        """The file that holds the content of `sha256:…`."""
        kind, _, number = digest.partition(":")
        return self.storage / "docker/registry/v2/blobs" / kind / number[:2] / number / "data"


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _machine() -> str:
    """This machine's processor architecture as images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


# --- images without a registry ---


def busybox_tar(programs: Mapping[str, Path] | None = None, libraries: Iterable[Path] = ()) -> bytes:
    """A file system with busybox and its commands, as a tar archive. `programs`, by command name, and `libraries` of
    this machine are added in /opt together with the loader and their dependencies: in the usual folders, a static
    busybox would load some of them and crash. Equal calls give equal bytes."""
    busybox = Path(shutil.which("busybox", path="/usr/bin:/bin") or "/bin/busybox")
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = {"bin/busybox": busybox.read_bytes()}
    for command, program in (programs or {}).items():
        needed = _needed_by(program)
        loader = next(path for name, path in needed if name.startswith("ld-"))
        run = f'exec /opt/{loader.name} --library-path /opt /opt/{program.name} "$@"\n'
        files[f"usr/local/bin/{command}"] = b"#!/bin/busybox sh\n" + run.encode()
        files |= {f"opt/{path.name}": path.read_bytes() for path in (program, *(path for _, path in needed))}
    for library in libraries:
        files |= {f"opt/{path.name}": path.read_bytes() for path in (library, *(p for _, p in _needed_by(library)))}
    folders = ("bin", "etc", "opt", "tmp", "usr", "usr/bin", "usr/local", "usr/local/bin", "var")
    return tar_of(files, {f"bin/{name}": "busybox" for name in commands if name != "busybox"}, folders)


def tar_of(files: Mapping[str, bytes], links: Mapping[str, str] | None = None, folders: Iterable[str] = ()) -> bytes:
    """A file system with these programs, symbolic links and folders, as a tar archive. Equal calls give equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in folders:
            _add(tar, name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755)
        for name, content in files.items():
            _add(tar, name, tarfile.REGTYPE, 0o755, content)
        for name, target in (links or {}).items():
            _add(tar, name, tarfile.SYMTYPE, 0o777, link=target)
    return out.getvalue()


def _needed_by(program: Path) -> list[tuple[str, Path]]:
    """The libraries and the loader of a program, by name."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+)", said, re.MULTILINE)]
    return [(path.name, path) for path in paths]


def _add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, content: bytes = b"", link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), link
    tar.addfile(entry, io.BytesIO(content))
