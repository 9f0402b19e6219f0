"""Stands in for `holdfast` while the pages are run: types the command as printed, but for what no page can know.

The rules (CONTRIBUTING.md tells them to authors):

- `HOST:PORT` and `TOKEN` are those of the network that the test started.
- `ID` is what the page made last: a job, or the array of a detached run. After `node` it is a machine: the one
  that the page itself lent, else any. `NODE` is a machine on which that job is not.
- `up` and `node` serve, so they are started and left running once they are ready; `up` gets free ports. Beside a node
  that `up --node` started, `node` is another machine, with a folder of its own.

Machines come and go as the network sees them: one that is silent for a moment is waited for, and not taken for another.

Standard library only: it runs once for each command, and must cost next to nothing.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATE = Path(os.environ["DOCS_STATE"])
READY_S = 60.0
ADDRESSES = ("--http", "--listen", "--files")


def asked(path: str) -> Any:
    """What the network answers."""
    request = urllib.request.Request(os.environ["HOLDFAST_URL"] + path)
    request.add_header("Authorization", f"Bearer {os.environ['HOLDFAST_ADMIN_TOKEN']}")
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        return json.load(answer)


def soon(look: Callable[[], str | None], what: str) -> str:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited {READY_S:g} s in vain for {what}")


def made_last() -> str:
    noted = STATE / "detached"
    return noted.read_text() if noted.exists() else asked("/v1/jobs?limit=1")["jobs"][0]["id"]


def connected() -> list[str]:
    return [node["id"] for node in asked("/v1/nodes") if node["connected"] and node["state"] in ("ready", "probation")]


def machine() -> str:
    lent = STATE / "lent"
    return lent.read_text() if lent.exists() else soon(lambda: next(iter(connected()), None), "a machine")


def elsewhere() -> str:
    """A machine on which the job that was made last is not; waits until the job is somewhere."""

    def another() -> str | None:
        job = asked(f"/v1/jobs/{made_last()}")
        return next((node for node in connected() if job["phase"] == "running" and node != job["node"]), None)

    return soon(another, "the job that was made last to run, and a machine beside it")


def filled(words: list[str]) -> list[str]:
    """The words with their placeholders filled in. Only looks up what is asked for."""
    stand_ins = {
        "HOST:PORT": lambda: os.environ["DOCS_LISTEN"],
        "TOKEN": lambda: os.environ["DOCS_TOKEN"],
        "ID": machine if words[0] == "node" else made_last,
        "job:ID": lambda: f"job:{made_last()}",
        "NODE": elsewhere,
    }
    own = words.index("--") if "--" in words else len(words)
    head = []
    for word in words[:own]:
        name, equals, value = word.partition("=")
        value = value if equals else name
        put = stand_ins[value]() if value in stand_ins else value
        head.append(f"{name}={put}" if equals else put)
    return head + words[own:]


def is_supervised() -> bool:
    """Whether the page started `up --node`."""
    return (Path(os.environ["HOLDFAST_HOME"]) / "orchestrator" / "supervisor.json").exists()


def own_node() -> str:
    """The id of the machine that the page lends, once it has made one for itself."""
    made = Path(os.environ["HOLDFAST_HOME"]) / ("other" if is_supervised() else "node") / "uuid"
    return "node_" + made.read_text().strip().replace("-", "") if made.exists() else ""


def serve(words: list[str]) -> None:
    """Start it, leave it running, and return when it is ready."""
    log = STATE / f"{words[0]}-{time.monotonic_ns()}.log"
    if words[0] == "up":
        kept = [w for i, w in enumerate(words) if w not in ADDRESSES and words[i - 1] not in ADDRESSES]
        free = os.environ["DOCS_PORTS"].split()
        ports = [word for flag, port in zip(ADDRESSES, free, strict=True) for word in (flag, f"127.0.0.1:{port}")]
        words = [*kept, *ports, *([] if "--preset" in kept else ["--preset", "test"])]
    elif os.environ.get("DOCS_UNSAFE"):
        words = [*words, "--unsafe-process-runtime"]
    if words[0] == "node" and is_supervised():
        words = [*words, "--home", str(Path(os.environ["HOLDFAST_HOME"]) / "other")]
    if "--detach" in words:
        subprocess.run([sys.executable, "-m", "holdfast.cli", *words], stdin=subprocess.DEVNULL, check=True)
        return
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    (STATE / f"serving-{process.pid}").touch()
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        if words[0] == "up" and "holdfast run" in log.read_text():
            return
        if words[0] == "node" and (lent := own_node()) in connected():
            (STATE / "lent").write_text(lent)
            return
        time.sleep(0.05)
    raise SystemExit(f"`holdfast {' '.join(words)}` did not come up:\n{log.read_text()}")


def main(words: list[str]) -> int:
    with (STATE / "typed").open("a") as typed:
        typed.write(json.dumps(words) + "\n")
    words = filled(words)
    serves = words[:1] == ["up"] or (words[:1] == ["node"] and all(w.startswith("-") for w in words[1:2]))
    if serves and "--help" not in words:
        serve(words)
        return 0
    command = [sys.executable, "-m", "holdfast.cli", *words]
    if words[0] not in ("run", "rerun"):
        os.execv(command[0], command)
    if "--detach" not in words and words[0] == "run":
        (STATE / "detached").unlink(missing_ok=True)
        os.execv(command[0], command)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    ids = [word for word in done.stdout.split() if word.startswith(("job_", "arr_"))]
    if ids:
        (STATE / "detached").write_text(ids[-1].strip(".,:"))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
