"""Python environments for jobs: built once per list of requirements, stored by its hash, shared read-only.

    venvs/KEY/tree     the environment; a body sees it as /venv, so its scripts name /venv/bin/python
                       (or under its real path, if bodies see the machine as it is)
    venvs/KEY/made     written last; a folder without it is debris
    venvs/KEY/users/   a file for each attempt that uses it; it counts while that attempt's folder exists
    venvs/KEY.lock     held during a build; `lock` is held while an environment is assigned or dropped
    venvs/building-*, venvs/dropped-*    incomplete: removed at the next start

A key that exists is complete: it is built under another name, and renamed. Requirements are untrusted: only names and
versions, and only wheels, so that none of their code runs before the job does. Pip fetches them with this node's own
configuration and installs them without a network. Knows no job and no orchestrator.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from holdfast.model import Failure, FailureCode
from holdfast.node.runtimes import scratch
from holdfast.node.runtimes.child import VENV

TEXT_BYTES_MAX = 256 * 1024
LINES_MAX = 2_000
_WORDS_MAX = 1_500
"""How much of the end of pip's output the owner gets."""
_LOOK_S = 0.2
_VERSION = r"(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9][A-Za-z0-9.*+!_-]*"
_HASH = r"--hash=sha(256|384|512):[0-9a-f]{64,128}"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\s*(\[[A-Za-z0-9._,\s-]{0,200}\])?\s*"
    rf"({_VERSION}(\s*,\s*{_VERSION}){{0,20}})?\s*(;[A-Za-z0-9_.<>=!~'\"(),+*\s-]{{1,300}}?)?(\s+{_HASH}){{0,200}}"
)
_UNREACHABLE = re.compile(
    r"connection broken by|NewConnectionError|ConnectTimeout|Read timed out|Name or service not known|"
    r"name resolution|Could not fetch URL|Max retries exceeded|5\d\d (Server|Bad|Service|Gateway)|ProxyError|SSLError",
    re.IGNORECASE,
)
_ENVIRONMENT = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "HOME", "LANG")
_PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "--no-cache-dir")
_PIP_SEEN = "/.pip"
_NOT_SHOWN = ("proc", "dev", "sys", "lost+found")


class VenvFailed(Exception):
    """The environment could not be built; `failure` has the reason and the blame."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail)


def listed(text: str) -> tuple[str, ...]:
    """The requirements in this text, without comments. Raises VenvFailed if one is more than a name with versions:
    options, URLs and paths could make the node fetch, or reveal, its own files."""
    if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise VenvFailed(FailureCode.BUILD, f"the requirements are longer than {TEXT_BYTES_MAX >> 10} KiB")
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines()]
    found = tuple(" ".join(line.split()) for line in lines if line)
    if len(found) > LINES_MAX:
        raise VenvFailed(FailureCode.BUILD, f"there are more than {LINES_MAX} requirements")
    for line in found:
        options = [word for word in line.split() if word.startswith("-") and not re.fullmatch(_HASH, word)]
        if options or not _REQUIREMENT.fullmatch(line):
            takes = "it takes names and versions; no options, addresses or paths"
            raise VenvFailed(FailureCode.BUILD, f"the requirement {line[:100]!r} cannot be used: {takes}")
    return found


def key_of(requirements: Sequence[str], place: Path | None = None) -> str:
    """The name of the environment: a hash of the requirements, the Python, and the path if it is built for one."""
    python = [sys.implementation.cache_tag, platform.python_version(), platform.machine(), _python()]
    whole = [1, python, list(requirements), *([str(place)] if place else [])]
    return sha256(json.dumps(whole).encode()).hexdigest()[:40]


def _python() -> str:
    """The Python that jobs find on this node, which is not the node's own virtual environment."""
    base = os.path.realpath(sys.base_prefix)
    named = f"{base}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return named if os.access(named, os.X_OK) else os.path.realpath(sys.executable)


@cache
def _pip_folder() -> str:
    """The folder of a pip on this machine. It is run by the Python it installs for, isolated from other packages."""
    for python in (_python(), sys.executable):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ask = [python, "-c", "import os, pip; print(os.path.dirname(pip.__file__))"]
            return subprocess.run(ask, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    raise VenvFailed(FailureCode.RUNTIME_FAULT, "this node has no pip to install requirements with")


class Venvs:
    """`attempts`: the folder that holds a folder for each attempt of this node. `in_place`: bodies are not sandboxed
    and see an environment at its real path; such a node has no working bubblewrap to build with either."""

    def __init__(
        self,
        folder: Path,
        attempts: Path,
        *,
        mib_max: int = 20 * 1024,
        build_mib_max: int = 8 * 1024,
        build_s_max: float = 600.0,
        in_place: bool = False,
    ) -> None:
        self._folder = folder
        self._attempts = attempts
        self._mib_max = mib_max
        self._build_mib_max = build_mib_max
        self._build_s_max = build_s_max
        self._in_place = in_place
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, attempt: str, text: str) -> Path:
        """The environment for these requirements, for `Order.venv`; built if it does not exist. It is kept as long as
        the attempt's folder, which must exist already. Blocking. Raises VenvFailed, or OSError of the disk."""
        requirements = listed(text)
        key = key_of(requirements, self._folder if self._in_place else None)
        with self._alone(f"{key}.lock"):
            if (found := self._give(key, attempt)) is not None:
                return found
            for litter in self._folder.glob(f"building-{key}-*"):  # not in use: we hold the lock
                shutil.rmtree(litter, ignore_errors=True)
            self._build(key, requirements)
            found = self._give(key, attempt)
        assert found is not None
        self._make_room(key)
        return found

    def sweep(self) -> None:
        """Remove what an agent that died left incomplete. Call it before anything is taken."""
        for litter in (*self._folder.glob("building-*"), *self._folder.glob("dropped-*")):
            shutil.rmtree(litter, ignore_errors=True)

    # --- assigning and dropping ---

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        lock = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _give(self, key: str, attempt: str) -> Path | None:
        place = self._folder / key
        with self._alone("lock"):
            if not (place / "made").exists():
                return None
            (place / "users" / attempt).touch()
            os.utime(place, ns=(time.time_ns(), time.time_ns()))  # the kernel's own clock is coarser
        return place / "tree"

    def _in_use(self, place: Path) -> bool:
        return any((self._attempts / user.name).exists() for user in (place / "users").iterdir())

    def _make_room(self, but: str) -> None:
        """Drop the least recently used ones until the rest is small enough."""
        with self._alone("lock"):
            there = [place.parent for place in self._folder.glob("*/made") if place.parent.name != but]
            sizes = {place: int(json.loads((place / "made").read_text())["mib"]) for place in there}
            kept_mib = int(json.loads((self._folder / but / "made").read_text())["mib"])
            total = sum(sizes.values()) + kept_mib
            dropped: list[Path] = []
            for place in sorted(there, key=lambda place: place.stat().st_mtime_ns):
                if total > self._mib_max and not self._in_use(place):
                    dropped.append(place.rename(self._folder / f"dropped-{place.name}-{secrets.token_hex(4)}"))
                    total -= sizes[place]
        for place in dropped:
            shutil.rmtree(place, ignore_errors=True)

    # --- building ---

    def _build(self, key: str, requirements: Sequence[str]) -> None:
        new = self._folder / f"building-{key}-{secrets.token_hex(4)}"
        try:
            for name in ("tree", "wheels", "users", "tmp"):
                (new / name).mkdir(mode=0o755, parents=True)
            new.chmod(0o755)
            (new / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
            if requirements:
                self._fetch(new)
            self._install(new, str(self._folder / key / "tree"))
            for name in ("wheels", "tmp"):
                shutil.rmtree(new / name)
            made = {"requirements": list(requirements), "mib": scratch.measured_mib(str(new)) + 1}
            with (new / "made").open("w") as file:
                json.dump(made, file)
                file.flush()
                os.fsync(file.fileno())
            os.sync()  # after a power cut the new name must not refer to empty files
            new.rename(self._folder / key)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    def _fetch(self, new: Path) -> None:
        """Fetch the wheels with the node's network and pip configuration; only the folder of wheels is writable."""
        wheels = str(new / "wheels")
        words = ("download", "--only-binary", ":all:", "--dest", wheels, "-r", str(new / "requirements.txt"))
        words += ("--progress-bar", "off", "--retries", "2", "--timeout", "20")
        env = {key: word for key, word in os.environ.items() if key.upper().startswith(_ENVIRONMENT)}
        shown = [*_machine(), "--bind", wheels, wheels]
        code, said = self._run(["--share-net", *shown], [_python(), *_PIP, *words], env, new)
        if code == 0:
            return
        if _UNREACHABLE.search(said):
            raise VenvFailed(FailureCode.NETWORK, f"the package index could not be reached: {_last(said)}")
        raise VenvFailed(FailureCode.BUILD, f"the requirements cannot be met: {_last(said)}")

    def _install(self, new: Path, place: str) -> None:
        """Install without a network, into a folder that has the same path as it will have for the job."""
        wheels = sorted(str(wheel) for wheel in (new / "wheels").iterdir())
        shown = [*_machine(), "--dir", VENV, "--bind", str(new / "tree"), VENV]
        called = str(new / "tree") if self._in_place else VENV
        make = [_python(), "-m", "venv", "--without-pip", called]
        words = ("install", "--no-index", "--no-deps", "--no-warn-script-location")
        install = [f"{called}/bin/python", *_PIP, *words, *wheels]
        for step in (make, install) if wheels else (make,):
            code, said = self._run(shown, step, {"LANG": "C.UTF-8"}, new)
            if code:
                raise VenvFailed(FailureCode.BUILD, f"the requirements could not be installed: {_last(said)}")
        if self._in_place:
            _rename_in_scripts(new / "tree" / "bin", called, place)

    def _run(self, shown: list[str], command: list[str], env: dict[str, str], new: Path) -> tuple[int, str]:
        """Run a command within the limits of a build. Returns its exit code and its output."""
        deadline = time.monotonic() + self._build_s_max
        tmp = str(new / "tmp")
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR": tmp, "PYTHONPATH": _PIP_SEEN} | env
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
        argv += [*shown, "--bind", tmp, tmp, "--ro-bind", _pip_folder(), f"{_PIP_SEEN}/pip", "--chdir", "/"]
        argv += ["--", *command]
        if self._in_place:
            # Only wheels are installed, so no untrusted code runs here either.
            alone = new / "tmp" / "pip-alone"
            alone.mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (alone / "pip").symlink_to(_pip_folder())
            argv, env = command, env | {"PYTHONPATH": str(alone)}
        log = new / "log"
        with log.open("ab") as out, contextlib.ExitStack() as at_end:
            began = out.tell()
            process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            at_end.callback(_ended(process))
            code: int | None = None
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_S)
                # Checked after the end as well: the command may end before the first check.
                if time.monotonic() > deadline:
                    raise VenvFailed(
                        FailureCode.BUILD, f"installing the requirements took over {self._build_s_max:g} s"
                    )
                if scratch.measured_mib(str(new)) > self._build_mib_max:
                    raise VenvFailed(FailureCode.BUILD, f"the requirements take over {self._build_mib_max} MiB")
                if code is not None:
                    return code, log.read_bytes()[began:].decode(errors="replace")


def _ended(process: "subprocess.Popen[bytes]") -> Callable[[], None]:
    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    return end


def _rename_in_scripts(folder: Path, called: str, place: str) -> None:
    """Scripts name their Python by its path, in the first two lines at most."""
    for script in folder.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        head, rest = content[:1024], content[1024:]
        if head.startswith(b"#!") and called.encode() in head:
            script.write_bytes(head.replace(called.encode(), place.encode(), 2) + rest)


def _machine() -> list[str]:
    """The whole machine, read-only, in a root that further folders can be mounted into."""
    words: list[str] = []
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        if name in _NOT_SHOWN or path == VENV:
            continue
        words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    return words


def _last(said: str) -> str:
    """The end of pip's output, without its notices about itself."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(("[notice]", "Looking in"))]
    return "\n".join(lines)[-_WORDS_MAX:]
