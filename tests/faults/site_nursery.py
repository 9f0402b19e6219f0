"""Starts `holdfast` processes whose sites can be made to fail, each in a tenth of a second: forked from one that has
everything imported (see warm.py), with the sites replaced as fault_sites.py says.

Asked by lines of JSON: `{"words", "env", "log"}` starts one and answers with its pid, `{"pid"}` answers with its exit
status, or null while it runs. `{"story", "stage", "folder", "env", "log"}` plays a stage of a story (site_stories.py).
Ends with its standard input, and what it started ends with it.
"""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def serve() -> None:
    import warm

    for name in ("holdfast.orchestrator.serve", "holdfast.cli.app", "holdfast.node.run", "alembic.command"):
        __import__(name)
    gc.freeze()
    ended: dict[int, int] = {}

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "pid" in asked:
            answer = ended.get(int(asked["pid"]))
        else:
            answer = os.fork()
            if answer == 0:
                _be(warm, asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _be(warm: Any, asked: dict[str, Any]) -> None:
    from holdfast.node import linux

    code: Any = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.die_with_parent()  # a run of the tests that is killed leaves nothing behind
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if "story" in asked:
            code = _play(asked)
        else:
            warm._be(asked["words"], asked["env"], asked["log"])
            code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _play(asked: dict[str, Any]) -> int:
    from site_stories import play

    os.environ.update(asked["env"])
    out = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for place in (1, 2):
        os.dup2(out, place)
    return play(asked["story"], asked["stage"], asked["folder"])


class Nursery:
    """The other side of its pipes."""

    def __init__(self, env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        path = os.pathsep.join([env.get("PYTHONPATH", ""), str(HERE)])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "site_nursery.py")],
            env={**env, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: dict[str, Any]) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with self._lock:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Nursed:
    """As much of `subprocess.Popen` as `Program` uses."""

    def __init__(self, nursery: Nursery, asked: dict[str, Any]) -> None:
        self._nursery = nursery
        self.pid = int(nursery.ask(asked))
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.ask({"pid": self.pid})
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        from holdfast.testing.processes import wait_for

        wait_for(lambda: self.poll() is not None, f"process {self.pid} to end", timeout or 60.0)
        assert self._status is not None
        return self._status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    serve()
