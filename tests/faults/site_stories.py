"""Small pieces of work that visit sites which no job of a network comes by. Each can be repeated: done again after a
fault, it must end as if there had been none.

A story has a `do`, which may fail with an error that a person is told; a `holds`, which must be true at any moment
after the first `do` began, whatever happened to it; and a `done`, which must be true when `do` ended well. They run in
processes of their own (site_nursery.py).
"""

import asyncio
import contextlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast

STAGE = "HOLDFAST_TEST_STORY"
"""JSON: where the network is, and what there is in it."""


class Story(NamedTuple):
    do: Callable[[Path], None]
    holds: Callable[[Path], None]
    done: Callable[[Path], None]


def _free(folder: Path) -> None:
    """Nothing can be half here."""


def _stage() -> dict[str, Any]:
    return json.loads(os.environ[STAGE])


# --- files of people ---


def _add_context(folder: Path) -> None:
    from holdfast.client import contexts

    with contexts.changing(folder) as known:
        known.contexts["work"] = contexts.Context(url="http://127.0.0.1:7401", token="secret")


def _contexts_hold(folder: Path) -> None:
    from holdfast.client import contexts

    assert contexts.read(folder).contexts.keys() <= {"work"}


def _context_is_there(folder: Path) -> None:
    from holdfast.client import contexts

    assert contexts.read(folder).contexts["work"].token == "secret"
    assert not list(folder.glob("*.new"))


def _write_rc(folder: Path) -> None:
    from holdfast.cli.commands import completion

    rc = folder / "rc"
    if not rc.exists():
        rc.write_bytes(b"mine\n")
    completion._replace(rc, b"mine\nours\n")


def _rc_holds(folder: Path) -> None:
    assert (folder / "rc").read_bytes() in (b"mine\n", b"mine\nours\n")


def _rc_is_there(folder: Path) -> None:
    assert (folder / "rc").read_bytes() == b"mine\nours\n" and [path.name for path in folder.iterdir()] == ["rc"]


def _write_job_file(folder: Path) -> None:
    from holdfast.cli.commands import init as init_command

    init_command._write(folder / "holdfast.toml", "cpu = 1\n")


def _job_file_holds(folder: Path) -> None:
    path = folder / "holdfast.toml"
    assert not path.exists() or path.read_text() == "cpu = 1\n"


def _job_file_is_there(folder: Path) -> None:
    assert (folder / "holdfast.toml").read_text() == "cpu = 1\n"
    assert [path.name for path in folder.iterdir()] == ["holdfast.toml"]


# --- checkpoints of jobs ---


def _save_values(folder: Path) -> None:
    from holdfast import checkpoint

    os.environ["HOLDFAST_CHECKPOINT_DIR"] = str(folder)
    for _ in range(2):
        checkpoint.save({"step": checkpoint.load({"step": 0})["step"] + 1})


def _values_hold(folder: Path) -> None:
    from holdfast import checkpoint

    os.environ["HOLDFAST_CHECKPOINT_DIR"] = str(folder)
    assert checkpoint.load({"step": 0})["step"] in range(5)


def _values_are_there(folder: Path) -> None:
    from holdfast import checkpoint

    os.environ["HOLDFAST_CHECKPOINT_DIR"] = str(folder)
    assert checkpoint.load({"step": 0})["step"] >= 2
    assert len(list(folder.iterdir())) == 1


def _save_folders(folder: Path) -> None:
    from holdfast import checkpoint

    os.environ["HOLDFAST_CHECKPOINT_DIR"] = str(folder)
    for _ in range(2):
        with checkpoint.saving() as place:
            for name in ("a", "b"):
                (place / name).write_text("whole")


def _folders_hold(folder: Path) -> None:
    from holdfast import checkpoint

    os.environ["HOLDFAST_CHECKPOINT_DIR"] = str(folder)
    newest = checkpoint.newest()
    assert newest is None or [(newest / name).read_text() for name in ("a", "b")] == ["whole", "whole"]


def _folders_are_there(folder: Path) -> None:
    _folders_hold(folder)
    assert len(list(folder.iterdir())) == 1


# --- parts of a node ---


def _claim(folder: Path) -> None:
    from holdfast.node.attempt import attempt_folders

    (folder / "order.json").write_text("{}")
    if not attempt_folders.claim(folder) and not attempt_folders.is_claimed(folder):
        raise OSError("not claimed: whoever asked asks again")


def _claim_holds(folder: Path) -> None:
    assert not (folder / "shim.json").exists() or (folder / "shim.json").read_text() == "{}"


def _claimed(folder: Path) -> None:
    assert (folder / "shim.json").read_text() == "{}"


def _note_engine(folder: Path) -> None:
    from holdfast.node.runtimes import container
    from holdfast.node.runtimes.engine_api import Engine

    container.write_note(str(folder), Engine("/run/engine.sock"))


def _note_holds(folder: Path) -> None:
    from holdfast.node.runtimes import container

    path = folder / container.NOTE
    assert not path.exists() or json.loads(path.read_text()) == {"engine": "/run/engine.sock"}


def _note_is_there(folder: Path) -> None:
    from holdfast.node.runtimes import container

    assert [path.name for path in folder.iterdir()] == [container.NOTE]


def _measure(folder: Path) -> None:
    from holdfast.node import benchmark

    benchmark.BLOCK_BYTES = 1 << 20
    assert asyncio.run(benchmark.Benchmark(folder, "a machine", lambda: True).look()) in (True, False)


def _measured(folder: Path) -> None:
    from holdfast.node import benchmark

    assert benchmark.Benchmark(folder, "a machine", lambda: True).yardstick.machine == "a machine"
    assert [path.name for path in folder.iterdir()] == [benchmark.FILE]


def _fetch(folder: Path) -> None:
    from holdfast.node.attempt import web_inputs

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(_DATA)))
            self.end_headers()
            self.wfile.write(_DATA)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/data"
        web_inputs.AGAIN_S = 0.01
        fetch = web_inputs.fetch(url, folder / "data", bytes_max=1 << 20, seconds_max=30, sha256=_SHA, private=True)
        asyncio.run(fetch)
        server.shutdown()


_DATA = b"data" * 10_000
_SHA = sha256(_DATA).hexdigest()


def _fetched(folder: Path) -> None:
    assert (folder / "data").read_bytes() == _DATA


def _make_venv(folder: Path) -> None:
    from holdfast.node.attempt.venvs import Venvs
    from holdfast.node.core.order import Order
    from holdfast.node.runtimes.runtime import clean, runtime_named

    old = folder / "venvs" / "old"
    if not (folder / "venvs").exists():
        (old / "users").mkdir(parents=True)
        (old / "made").write_text('{"requirements": [], "mib": 100}')
    attempt = folder / "attempts" / f"att_x.{secrets.token_hex(4)}"
    attempt.mkdir(parents=True)
    order = Order(attempt.name, 1, "job_x", ("true",), 150_000, 1, 0, 0, requirements=True)
    venvs = Venvs(folder / "venvs", folder / "attempts", mib_max=100)
    venvs.sweep()
    try:
        runtime_named("bubblewrap").prepare(order, str(attempt))
        venvs.take(order, "")
    finally:
        clean(str(attempt))


def _venv_holds(folder: Path) -> None:
    """What has its name is whole: it says of itself what it is."""
    for place in (folder / "venvs").glob("*/"):
        if not place.name.startswith(("building-", "dropped-")):
            assert json.loads((place / "made").read_text())["requirements"] == []


def _venv_is_there(folder: Path) -> None:
    """And no litter is left beside it."""
    (place,) = (place for place in (folder / "venvs").glob("*/") if place.name != "old")
    assert (place / "tree" / "bin" / "python").exists()


def _show_status(folder: Path) -> None:
    from holdfast.node.operator import status_page

    async def ask() -> None:
        server = await status_page.serve_status(0, lambda: {"name": "ant"})
        port = server.sockets[0].getsockname()[1]
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            try:
                answer = await reader.read()
            except ConnectionError:
                answer = b""
            writer.close()
        server.close()
        assert answer.endswith(b'{"name":"ant"}')

    asyncio.run(ask())


def _ask_desk(folder: Path) -> None:
    from holdfast.node.operator import operator_socket

    assert "paused" in str(operator_socket.ask(Path(_stage()["home"]), {"ask": "status"}))


# --- clients ---


def _client() -> Any:
    from holdfast.client import Client

    return Client(_stage()["url"], _stage()["token"])


def _send_folder(folder: Path) -> Path:
    sent = folder / "sent"
    sent.mkdir(exist_ok=True)
    (sent / "text").write_text(folder.name)
    return sent


_SMALL: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}


def _submit(folder: Path) -> None:
    with _client() as client:
        package = client.content.send(_send_folder(folder), index_file=folder / "index").manifest
        job = client.jobs.submit(["cat", "text"], key=folder.name, name=folder.name, package=package, **_SMALL)
        assert job.wait(timeout_s=60).verdict == "succeeded"
        lines = list(client.jobs.logs(job.id, follow=True))
        assert [line.text for line in lines if line.stream == "stdout"] == [folder.name]


def _submitted_once(folder: Path) -> None:
    with _client() as client:
        assert len([job for job in client.jobs.list(limit=1000).jobs if job.name == folder.name]) <= 1


def _submit_async(folder: Path) -> None:
    from holdfast import AsyncClient

    async def submit() -> None:
        async with AsyncClient(_stage()["url"], _stage()["token"]) as client:
            job = await client.jobs.submit(["echo", folder.name], key=folder.name, name=folder.name, **_SMALL)
            assert (await job.wait(timeout_s=60)).verdict == "succeeded"
            lines = [line async for line in client.jobs.logs(job.id, follow=True)]
            assert [line.text for line in lines if line.stream == "stdout"] == [f"{folder.name}\n"]

    asyncio.run(submit())


def _get_results(folder: Path) -> None:
    with _client() as client:
        client.jobs.results(_stage()["job"], to=folder / "results")


def _results_hold(folder: Path) -> None:
    from holdfast.client.results import RECORD

    record = folder / "results" / RECORD
    if record.exists() and json.loads(record.read_text())["complete"]:
        _results_are_there(folder)


def _results_are_there(folder: Path) -> None:
    assert (folder / "results" / "out").read_text() == (folder / "results" / "stdout.log").read_text() == "made\n"
    assert not [path for path in (folder / "results").rglob("*") if "holdfast-part" in path.name]


def _get_array(folder: Path) -> None:
    with _client() as client:
        client.arrays.results(_stage()["array"], to=folder / "results")


def _array_holds(folder: Path) -> None:
    for index in (folder / "results").glob("index.json"):
        assert json.loads(index.read_text())["array"] == _stage()["array"]


def _array_is_there(folder: Path) -> None:
    assert sorted(path.read_text() for path in folder.rglob("stdout.log")) == ["a\n", "b\n"]


# --- backups ---


def _back_up(folder: Path) -> None:
    from holdfast.orchestrator import backup
    from holdfast.orchestrator.config import OrchestratorConfig

    copy = folder / "copy"
    if not copy.exists():
        backup.back_up(OrchestratorConfig(data=Path(_stage()["data"])), copy)

    class Numbers:
        def skip_ahead(self, count: int, least: int, attempts: int) -> None:
            (folder / "skipped").write_text(str(count))

    backup.begin_from(copy, cast(Any, Numbers()))


def _backup_holds(folder: Path) -> None:
    """What has the name of a backup is one: its state is whole, and numbers are skipped before it is used."""
    from holdfast.orchestrator.backup import NOTE

    if (folder / "copy").exists():
        with contextlib.closing(sqlite3.connect(folder / "copy" / "state.db")) as state:
            assert [row[0] for row in state.execute("PRAGMA integrity_check")] == ["ok"]
            assert state.execute("SELECT count(*) FROM jobs").fetchone()[0] > 0
        assert (folder / "copy" / NOTE).exists() or (folder / "skipped").exists()


def _backed_up(folder: Path) -> None:
    _backup_holds(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["copy", "skipped"]


STORIES: dict[str, Story] = {
    "a context is added": Story(_add_context, _contexts_hold, _context_is_there),
    "completion is installed": Story(_write_rc, _rc_holds, _rc_is_there),
    "a job file is made": Story(_write_job_file, _job_file_holds, _job_file_is_there),
    "a job saves values": Story(_save_values, _values_hold, _values_are_there),
    "a job saves folders": Story(_save_folders, _folders_hold, _folders_are_there),
    "an attempt is claimed": Story(_claim, _claim_holds, _claimed),
    "an engine is noted": Story(_note_engine, _note_holds, _note_is_there),
    "a machine is measured": Story(_measure, _free, _measured),
    "an input is fetched": Story(_fetch, _free, _fetched),
    "an environment is built": Story(_make_venv, _venv_holds, _venv_is_there),
    "a status is shown": Story(_show_status, _free, _free),
    "an operator asks": Story(_ask_desk, _free, _free),
    "a job is submitted": Story(_submit, _submitted_once, _submitted_once),
    "a job is submitted in a loop": Story(_submit_async, _submitted_once, _submitted_once),
    "results are fetched": Story(_get_results, _results_hold, _results_are_there),
    "results of an array are fetched": Story(_get_array, _array_holds, _array_is_there),
    "a backup is made and started from": Story(_back_up, _backup_holds, _backed_up),
}


def play(name: str, stage: str, folder: str) -> int:
    """One stage of a story; 0: it went well, 1: with an error for a person, 3: something does not hold."""
    from subprocess import SubprocessError

    from holdfast.errors import HoldfastError
    from holdfast.node.attempt.venvs import VenvFailed
    from holdfast.node.attempt.web_inputs import Unfetched

    try:
        getattr(STORIES[name], stage)(Path(folder))
    except AssertionError:
        import traceback

        traceback.print_exc()
        return 3
    except (OSError, HoldfastError, SubprocessError, Unfetched, VenvFailed) as told:
        os.write(2, f"{type(told).__name__}: {told}\n".encode())
        return 1
    return 0
