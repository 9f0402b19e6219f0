"""Python environments for jobs: built once per list of requirements, stored by its hash, shared read-only.

    venvs/KEY/tree     the environment; a body sees it as /venv, so its scripts name /venv/bin/python
                       (or under its real path, if bodies see the machine as it is)
    venvs/KEY/made     written last; a folder without it is debris
    venvs/KEY/users/   a file for each attempt that uses it; it counts while that attempt's folder exists
    venvs/KEY.lock     held during a build; `lock` is held while an environment is assigned or dropped
    venvs/building-*, venvs/dropped-*    incomplete: removed at the next start

An environment is built on the disk of the attempt that needs it first, by pip in that attempt's sandbox
(`venv_builder.py`). Then everything that ran there is dead, and the node copies what it finds into files of its own: no
job owns a file that another one runs. If the cache has no room, the environment stays on the attempt's disk and is not
shared. A key that exists is complete: it is copied under another name, and renamed. Knows no orchestrator.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from holdfast.model import Failure, FailureCode
from holdfast.node.attempt import requirements_file
from holdfast.node.attempt.disk_room import CACHES_FREE_BYTES_MIN
from holdfast.node.attempt.index_proxy import Target
from holdfast.node.attempt.pip_settings import PipUnusable, read_settings
from holdfast.node.attempt.requirements_file import RequirementsRefused
from holdfast.node.attempt.venv_builder import BuildReport, BuildRequest
from holdfast.node.core.order import Order
from holdfast.node.core.resource_usage import words
from holdfast.node.runtimes import child, scratch
from holdfast.passing import patiently

MIB_MAX = 20 * 1024
_WORDS_MAX = 1_500
"""How much of the end of pip's output the owner gets."""
_FREE_PERCENT = 5
"""How much of the machine's disk the cache leaves free, if it is more than every cache does."""
_LATE_S = 30.0
"""A builder that is this late does not end by itself any more."""
_UNREACHABLE = re.compile(
    r"connection broken by|NewConnectionError|ConnectTimeout|Read timed out|Name or service not known|"
    r"name resolution|Could not fetch URL|Max retries exceeded|5\d\d (Server|Bad|Service|Gateway)|ProxyError|SSLError",
    re.IGNORECASE,
)
_LIMITS = (FailureCode.OOM_JOB, FailureCode.OOM_NODE, FailureCode.DISK_QUOTA, FailureCode.NODE_DISK_FULL)
_LIMITS += (FailureCode.TIME_LIMIT,)


class VenvFailed(Exception):
    """The environment could not be built; `failure` has the reason and the blame."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail)


def key_of(requirements: Sequence[str], place: Path | None = None) -> str:
    """The name of the environment: a hash of the requirements, the Python, and the path if it is built for one."""
    python = [sys.implementation.cache_tag, platform.python_version(), platform.machine(), _python()]
    whole = [2, python, list(requirements), *([str(place)] if place else [])]
    return sha256(json.dumps(whole).encode()).hexdigest()[:40]


def _python() -> str:
    """The Python that jobs find on this node, which is not the node's own virtual environment."""
    base = os.path.realpath(sys.base_prefix)
    named = f"{base}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return named if os.access(named, os.X_OK) else os.path.realpath(sys.executable)


@cache
def _pip() -> tuple[str, str]:
    """The folder of a pip on this machine, and the Python that has it. Pip is run by the Python it installs for,
    isolated from other packages."""
    for python in (_python(), sys.executable):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ask = [python, "-c", "import os, pip; print(os.path.dirname(pip.__file__))"]
            found = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
            return found, python
    raise VenvFailed(FailureCode.RUNTIME_FAULT, "this node has no pip to install requirements with")


class Venvs:
    """`attempts`: the folder that holds a folder for each attempt of this node. `in_place`: bodies are not sandboxed
    and see an environment at its real path. `hosts`: what pip may connect to beside the indexes it is configured
    with."""

    def __init__(
        self,
        folder: Path,
        attempts: Path,
        *,
        mib_max: int = MIB_MAX,
        build_s_max: float = 600.0,
        in_place: bool = False,
        hosts: frozenset[Target] = frozenset(),
    ) -> None:
        self._folder = folder
        self._attempts = attempts
        self._mib_max = mib_max
        self._build_s_max = build_s_max
        self._in_place = in_place
        self._hosts = hosts
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, order: Order, text: str) -> Path:
        """The environment for these requirements, for `Order.venv`; built if it does not exist. It is kept as long as
        the attempt's folder, which the runtime has prepared. Blocking. Raises VenvFailed, or OSError of the disk."""
        try:
            requirements = requirements_file.listed(text)
        except RequirementsRefused as wrong:
            raise VenvFailed(FailureCode.BUILD, str(wrong)) from None
        key = key_of(requirements, self._folder if self._in_place else None)
        with self._alone(f"{key}.lock"):
            if (found := patiently(self._give, key, order.attempt)) is not None:
                return found
            for litter in self._folder.glob(f"building-{key}-*"):  # not in use: we hold the lock
                shutil.rmtree(litter, ignore_errors=True)
            tree = self._build(order, requirements)
            # Each of these steps can be repeated: what it had done when it failed is done again, or was undone.
            if not patiently(self._make_room, scratch.measured_mib(str(tree)) + 1):
                patiently(_freeze, tree)
                return tree
            patiently(self._keep, key, requirements, tree)
            found = patiently(self._give, key, order.attempt)
        assert found is not None
        patiently(_empty, tree.parent)
        return found

    def held_mib(self) -> int:
        """What the kept environments take."""
        made = self._folder.glob("*/made")
        return sum(int(json.loads(place.read_text())["mib"]) for place in made)

    def limit(self, mib_max: int) -> None:
        self._mib_max = mib_max

    def sweep(self) -> None:
        """Remove what an agent that died left incomplete. Call it before anything is taken."""
        for litter in (*self._folder.glob("building-*"), *self._folder.glob("dropped-*")):
            shutil.rmtree(litter, ignore_errors=True)

    # --- assigning and dropping ---

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        lock = patiently(os.open, self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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

    def _make_room(self, wanted_mib: int) -> bool:
        """Drop the least recently used ones until there is room for this much. False: there is not, because the others
        are in use or the machine's disk is nearly full."""
        dropped: list[Path] = []
        with self._alone("lock"):
            there = [place.parent for place in self._folder.glob("*/made")]
            sizes = {place: int(json.loads((place / "made").read_text())["mib"]) for place in there}
            total = sum(sizes.values()) + wanted_mib
            short = wanted_mib - self._free_mib()
            for place in sorted(there, key=lambda place: place.stat().st_mtime_ns):
                if (total > self._mib_max or short > 0) and not self._in_use(place):
                    dropped.append(place.rename(self._folder / f"dropped-{place.name}-{secrets.token_hex(4)}"))
                    total -= sizes[place]
                    short -= sizes[place]
        for place in dropped:
            shutil.rmtree(place, ignore_errors=True)
        return total <= self._mib_max and short <= 0

    def _free_mib(self) -> int:
        """How much of the machine's disk the cache may still take."""
        disk = os.statvfs(self._folder)
        least = max(CACHES_FREE_BYTES_MIN, disk.f_blocks * disk.f_frsize * _FREE_PERCENT // 100)
        return (disk.f_bavail * disk.f_frsize - least) >> 20

    def _keep(self, key: str, requirements: Sequence[str], tree: Path) -> None:
        new = self._folder / f"building-{key}-{secrets.token_hex(4)}"
        try:
            (new / "users").mkdir(mode=0o755, parents=True)
            new.chmod(0o755)
            _copy(tree, new / "tree")
            if self._in_place:
                _rename_in_scripts(new / "tree" / "bin", str(tree), str(self._folder / key / "tree"))
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

    # --- building ---

    def _build(self, order: Order, requirements: Sequence[str]) -> Path:
        """Have it built on the attempt's disk. Returns its folder; nothing that ran there is left."""
        pip_folder, pip_python = _pip()
        private = (str(self._folder), os.path.expanduser("~"))
        try:
            settings = read_settings(pip_python, self._hosts, private)
        except PipUnusable as wrong:
            raise VenvFailed(FailureCode.RUNTIME_FAULT, str(wrong)) from None
        folder = self._attempts / order.attempt
        seconds = min(self._build_s_max, order.time_limit_ms / 1000)
        raw = order.to_dict()
        request = BuildRequest(str(folder), raw, tuple(requirements), _python(), pip_folder, settings, seconds)
        report = self._run(request)
        if (failure := failure_of(order, report, self._build_s_max)) is not None:
            raise VenvFailed(failure.code, failure.detail)
        return folder / child.BUILD / "tree"

    def _run(self, request: BuildRequest) -> BuildReport:
        """Run a builder. Its marker lets the removal of the attempt find it."""
        env = os.environ | {child.WORK_DIR: f"{os.path.realpath(request.folder)}/work"}
        command = [sys.executable, "-m", "holdfast.node.attempt.venv_builder"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as builder:
            assert builder.stdin is not None and builder.stdout is not None
            try:
                builder.stdin.write(request.to_json() + b"\n")
                builder.stdin.flush()  # it stays open: its end is the end of the build
                said = builder.stdout.read()
            except OSError:
                said = b""
            finally:
                builder.kill()
        try:
            return BuildReport(**json.loads(said))
        except (ValueError, TypeError):
            return BuildReport(fault="the builder of the environment ended without a report")


def failure_of(order: Order, report: BuildReport, build_s_max: float) -> Failure | None:
    """Decide who is to blame for how a build ended; None: it is complete."""
    if report.late:
        if order.time_limit_ms <= build_s_max * 1000:
            return Failure(FailureCode.TIME_LIMIT, "installing the requirements took longer than the job's time limit")
        return Failure(FailureCode.BUILD, f"installing the requirements took over {build_s_max:g} s")
    for code in _LIMITS:
        if report.code == code.value:
            return Failure(code, f"while its requirements were installed, {words(order, code.value)}")
    if report.fault or report.exit_code is None:
        why = report.fault or _last(report.said)
        return Failure(FailureCode.RUNTIME_FAULT, f"the requirements could not be installed: {why}")
    if report.exit_code == 0:
        return None
    said = _last(report.said)
    if report.guard:
        why = "a package asks for something that is not a wheel, and nothing is built"
        return Failure(FailureCode.BUILD, f"the requirements cannot be met: {why}: {said}")
    if report.refused:
        hosts = ", ".join(report.refused)
        why = f"a package asks for {hosts}, which is none of this node's indexes"
        return Failure(FailureCode.BUILD, f"the requirements cannot be met: {why}: {said}")
    if report.unreachable or _UNREACHABLE.search(report.said):
        return Failure(FailureCode.NETWORK, f"the package index could not be reached: {said}")
    return Failure(FailureCode.BUILD, f"the requirements cannot be met: {said}")


def _last(said: str) -> str:
    """The end of pip's output, without its notices about itself."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(("[notice]", "Looking in"))]
    return "\n".join(lines)[-_WORDS_MAX:]


# --- from a job's disk to the node's ---


def _copy(source: Path, target: Path) -> None:
    """Copy folders, plain files and the links of a virtual environment into files of the node's own, which others may
    only read. No link is followed. Raises VenvFailed if there is anything else, and OSError."""
    target.mkdir(mode=0o755)
    for here, folders, files, at in os.fwalk(source, follow_symlinks=False):
        place = target / os.path.relpath(here, source)
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                (place / name).mkdir(mode=0o755)
            elif stat.S_ISREG(found.st_mode):
                _copy_file(name, at, place / name, 0o755 if found.st_mode & 0o100 else 0o644)
            elif stat.S_ISLNK(found.st_mode) and _is_usual(to := os.readlink(name, dir_fd=at)):
                (place / name).symlink_to(to)
            else:
                said = f"the requirements could not be installed: {name[:100]!r} is neither a file nor a folder"
                raise VenvFailed(FailureCode.BUILD, said)


def _copy_file(name: str, at: int, target: Path, mode: int) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=at), "rb") as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        os.fchmod(file.fileno(), mode)


def _is_usual(to: str) -> bool:
    """Whether a virtual environment has such links: `lib64`, and its names for the interpreter."""
    return to in ("lib", _python()) or re.fullmatch(r"python(3(\.\d+)?)?", to) is not None


def _freeze(tree: Path) -> None:
    """An environment that stays on the attempt's disk: its user may read it only."""
    for _, folders, files, at in os.fwalk(tree, follow_symlinks=False):
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=at, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                os.chmod(name, 0o755 if found.st_mode & 0o100 else 0o644, dir_fd=at)
    os.chown(tree, os.geteuid(), os.getegid())
    tree.chmod(0o755)


def _empty(folder: Path) -> None:
    """Give the space back to the job."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _rename_in_scripts(folder: Path, called: str, place: str) -> None:
    """Scripts name their Python by its path, in the first two lines at most."""
    for script in folder.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        head, rest = content[:1024], content[1024:]
        if head.startswith(b"#!") and called.encode() in head:
            script.write_bytes(head.replace(called.encode(), place.encode(), 2) + rest)
