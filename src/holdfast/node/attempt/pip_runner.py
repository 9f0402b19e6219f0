"""Runs inside the sandbox of a build: makes the virtual environment, then has pip install wheels into it.

Standard library only: the sandbox gets this one file. It runs twice, first with the Python of the machine (`make`),
then with the one of the new environment (`install`). The only way out of its network is a socket that it opens on
loopback and hands to the builder, which forwards to the indexes of the node. Pip starts no other program: only building
does, and nothing is built here.

    pip_runner.py make CONTROL_FD VENV PIP_FOLDER WORD...

Messages on the control socket, one per packet: `listening` with the socket, then `refused WHAT NAME` at most once.
"""

import os
import runpy
import socket
import sys

_PROGRAMS = frozenset(
    ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.system", "os.spawn")
)
_REPOSITORIES = frozenset(("git", "hg", "svn", "bzr"))
_NAME_MAX = 200


def make(control: int, venv_folder: str, words: list[str]) -> None:
    import venv

    line = socket.socket(fileno=control)
    door = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = door.getsockname()[1]
    socket.send_fds(line, [b"listening"], [door.fileno()])
    os.environ["PIP_PROXY"] = f"http://127.0.0.1:{port}"
    venv.create(venv_folder, symlinks=True, with_pip=False)
    if not words:
        return
    os.set_inheritable(control, True)
    python = f"{venv_folder}/bin/python"
    os.execv(python, [python, "-I", __file__, "install", str(control), str(port), *words])


def install(control: int, port: int, pip_folder: str, words: list[str]) -> None:
    sys.path.insert(0, pip_folder)
    sys.addaudithook(_Guard(control, port))
    sys.argv = ["pip", *words]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


class _Guard:
    """Refuses programs and connections. The sandbox is what confines a hostile package; this keeps its code from
    running at all, and tells the builder what was tried."""

    def __init__(self, control: int, port: int) -> None:
        self._control = control
        self._door = ("127.0.0.1", port)
        self._said = False

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event in _PROGRAMS:
            self._refuse_program(str(args[0]) if args else "")
        elif event == "socket.connect" and args[1] != self._door:
            raise PermissionError(13, "only the indexes of this node can be reached")

    def _refuse_program(self, program: str) -> None:
        name = os.path.basename(program)
        if name.startswith("python"):
            self._say("refused build")
        elif name in _REPOSITORIES:
            self._say(f"refused repository {name}")
        raise PermissionError(13, "only wheels are installed, and no other program is started")

    def _say(self, text: str) -> None:
        if not self._said:
            self._said = True
            os.write(self._control, text.encode()[:_NAME_MAX])


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        install(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
