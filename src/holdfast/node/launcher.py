"""Starts shims: a small process that never imports gRPC and forks a shim whenever the agent asks for one.

Forking a process with gRPC's threads is unsafe, and starting a new Python takes ten times as long as forking a warm
one. The launcher ends when the agent does; the shims do not. Decides nothing.

Its socket to the agent carries one JSON message per packet: `{"spawn": FOLDER}` → `{"pid": N}` or `{"error": …}`.
"""

import errno
import gc
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from holdfast.node import linux, shim
from holdfast.node.runtimes.runtime import preload
from holdfast.passing import briefly

_PACKET_BYTES_MAX = 64 * 1024
_ANSWER_S_MAX = 30.0
"""A launcher that needs longer for a fork is considered dead."""


class LauncherError(RuntimeError):
    """A shim could not be started, and nothing runs. `errno_name` is the name of the kernel's error (`ENOSPC`;
    `EEXIST`: the attempt has, or had, a shim), or empty."""

    def __init__(self, text: str, errno_name: str = "") -> None:
        super().__init__(text)
        self.errno_name = errno_name


# --- in the launcher's process ---


def serve(line: socket.socket) -> None:
    """Answer requests until the agent is gone."""
    preload()
    linux.name_process("holdfast-launch")
    for number in (signal.SIGINT, signal.SIGHUP):  # handled by the agent; its end is seen as end of file
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # keeps memory pages shared with the shims
    while request := line.recv(_PACKET_BYTES_MAX):
        try:
            answer = _spawn(json.loads(request)["spawn"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer = _refusal(error)
        try:
            line.send(answer)
        except OSError:
            return


def _refusal(error: Exception) -> bytes:
    number = error.errno if isinstance(error, OSError) else None
    name = errno.errorcode.get(number or 0, "")
    return json.dumps({"error": f"{type(error).__name__}: {error}", "errno": name}).encode()


def _spawn(home: str) -> bytes:
    """Fork twice: the shim is no child of the launcher, so it outlives it and leaves no zombie. Returns its answer."""
    log = briefly(os.open, os.path.join(home, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        hear, say = briefly(os.pipe)
    except OSError:
        os.close(log)
        raise
    try:
        middle = os.fork()
        if middle == 0:
            _be_middle(home, log, say)
    finally:
        os.close(log)
        os.close(say)
    said = _heard(hear)
    os.waitpid(middle, 0)
    if not said:
        raise OSError("the fork failed")
    return said


def _heard(pipe: int) -> bytes:
    said = b""
    try:
        while part := briefly(os.read, pipe, _PACKET_BYTES_MAX):
            said += part
    finally:
        os.close(pipe)
    return said


def _be_middle(home: str, log: int, say: int) -> None:
    code = 70
    try:
        code = 0 if os.fork() else _be_shim(home, log, say)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _be_shim(home: str, log: int, say: int) -> int:
    """Answers once the attempt is claimed: from then on its folder holds its whole state."""
    null = briefly(os.open, "/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, place)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        shim.claim(home)
        os.write(say, json.dumps({"pid": os.getpid()}).encode())
    except OSError as error:
        os.write(say, _refusal(error))
        return shim.UNUSABLE
    os.closerange(3, max(int(name) for name in briefly(os.listdir, "/proc/self/fd")) + 1)
    return shim.stand_by()


# --- in the agent's process ---


class Launcher:
    """Start it before gRPC is imported. Thread-safe; a launcher that died is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None
        self._line: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        with self._lock:
            self._start()

    def spawn_now(self, home: str) -> int:
        """Start the shim of the attempt in folder `home` and return its pid. `shim.json` exists when this returns."""
        request = json.dumps({"spawn": os.path.abspath(home)}).encode()
        with self._lock:
            answer = self._ask(request)
            if answer is None:
                self._stop()
                self._start()
                answer = self._ask(request)
                if answer is not None and answer.get("errno") == "EEXIST":
                    # The launcher had started the shim before it died.
                    with open(os.path.join(home, "shim.json")) as file:
                        answer = json.load(file)
        if answer is None:
            raise LauncherError("the launcher does not answer, nor does a fresh one")
        if "pid" not in answer:
            raise LauncherError(f"no shim for {home}: {answer.get('error')}", str(answer.get("errno", "")))
        return int(answer["pid"])

    async def spawn(self, home: str) -> int:
        import asyncio

        return await asyncio.to_thread(self.spawn_now, home)

    def close(self) -> None:
        """End the launcher. The shims keep running."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_S_MAX)
        command = [sys.executable, "-m", "holdfast.node.launcher"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True, cwd="/")
        self._line = ours

    def _ask(self, request: bytes) -> dict[str, Any] | None:
        if self._line is None:
            return None
        try:
            self._line.send(request)
            answer = self._line.recv(_PACKET_BYTES_MAX)
        except OSError:
            return None
        return json.loads(answer) if answer else None

    def _stop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
