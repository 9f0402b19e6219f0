"""Tests whether an engine can be used for jobs, by starting a container exactly like a job's. For a process with one
thread. Decides nothing: it returns what is wrong, for the operator."""

import io
import os
import tarfile

from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, container_request, trials
from holdfast.node.runtimes.engine_api import API_LEAST, Engine, EngineError, query
from holdfast.node.runtimes.runtime import Ended, runtime_named

IMAGE = "holdfast-trial"
"""An empty image: the test is about the engine, and about the shell that the node lends."""
_TRIAL_S = 60.0


def try_engine(socket: str) -> str:
    """Why the engine behind this socket cannot be used; empty if it can."""
    if not socket:
        return "no container engine was found: start Docker or Podman, or name its socket in DOCKER_HOST"
    engine = Engine(socket)
    try:
        version = str(engine.version().get("ApiVersion", "0.0"))
        if tuple(int(part) for part in version.split(".")[:2]) < API_LEAST:
            least = ".".join(str(part) for part in API_LEAST)
            return f"the engine at {socket} speaks API {version}; {least} is the oldest that can be used"
        return _try_to_run(engine, _image(engine))
    except EngineError as error:
        return f"the engine at {socket} refuses: {error.says}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _image(engine: Engine) -> str:
    name = f"{IMAGE}:latest"
    try:
        return str(engine.call("GET", f"/images/{name}/json")["Id"])
    except EngineError as error:
        if error.status != 404:
            raise
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as tar:
        for folder in ("dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    engine.ask("POST", "/images/create" + query(fromSrc="-", repo=IMAGE, tag="latest"), empty.getvalue()).all()
    return str(engine.call("GET", f"/images/{name}/json")["Id"])


def _try_to_run(engine: Engine, image: str) -> str:
    runtime = runtime_named("container")
    lent = container_request.lent_shell()
    words = (*lent, "-c", ": >trial && echo it works")
    order = Order("trial", 0, "trial", words, 1, 1, 0, 0, resources={"disk_mib": 4, "memory_mib": 64},
                  runtime="container", image=image, engine=engine.path)  # fmt: skip
    said = os.memfd_create("said")
    try:
        with trials.folder_for("container", runtime.clean) as folder:
            runtime.prepare(order, folder)
            body = runtime.start(order, folder, said, said)
            status = child.wait(body.pid, _TRIAL_S)
            printed = os.pread(said, 2_000, 0).decode(errors="replace").strip()
            ended = body.ended(status, printed)
    finally:
        os.close(said)
    if ended == Ended(exit_code=0) and printed == "it works":
        return ""
    return ended.fault or ended.code or f"a container ended with {ended.exit_code}: {printed}"
