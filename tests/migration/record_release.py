"""Makes the data of a release: runs that release's own code, gives it work, and keeps what its orchestrator left.

    git archive COMMIT src | tar -x -C FOLDER
    PYTHONPATH=FOLDER/src .venv/bin/python tests/migration/record_release.py NAME [--to REVISION]

writes tests/migration/releases/NAME.tar.gz:

    sqlite.sql, postgres.sql   the whole database as SQL, once from each engine, after the same work
    sqlite/…, postgres/…       what lay beside it: logs and files
    sqlite.json, postgres.json what the release itself said of every job before it was stopped

Run once per schema, and never again for an old one: the dumps are evidence, and evidence is not remade. It uses only
what every release has. `--to`: a schema that no release had as its last, reached by this code's own migrations.
"""

import argparse
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path
from typing import Any

import holdfast
from holdfast.client import Client
from holdfast.testing.processes import LocalNetwork

HERE = Path(__file__).resolve().parent
STREAMS = ("stdout", "stderr")
SECRET = {"admin.token", "endpoint.json", "lock", "state.db", "state.db-wal", "state.db-shm"}
"""Not evidence: keys and tokens are made anew, and the database is kept as SQL."""


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("name")
    words.add_argument("--to", default="")
    asked = words.parse_args()
    target = HERE / "releases" / f"{asked.name}.tar.gz"
    target.parent.mkdir(exist_ok=True)
    assert not target.exists(), f"{target} is there, and evidence is not remade"
    folder = Path(tempfile.mkdtemp(prefix="hf-past-"))
    folder.chmod(0o755)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pgserver
        server = pgserver.get_server(folder / "pg", cleanup_mode="stop")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as box:
            for engine in ("sqlite", "postgres"):
                url = f"sqlite:///{folder / 'state.db'}"
                if engine == "postgres":
                    url = server.get_uri("postgres").replace("postgresql://", "postgresql+psycopg://", 1)
                said, data = work(folder / engine, url)
                if asked.to:
                    migrate_to(url, asked.to)
                sql = dump_sqlite(folder / "state.db") if engine == "sqlite" else dump_postgres(server.get_uri())
                put(box, f"{engine}.sql", sql.encode())
                put(box, f"{engine}.json", json.dumps(said, indent=1).encode())
                for path in sorted(data.rglob("*")):
                    if path.is_file() and path.name not in SECRET and path.suffix not in {".pem", ".key"}:
                        put(box, f"{engine}/{path.relative_to(data)}", path.read_bytes())
        target.write_bytes(packed.getvalue())
        server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{target}: {target.stat().st_size} bytes, from {holdfast.__file__} ({holdfast.__version__})")


def work(folder: Path, url: str) -> tuple[dict[str, object], Path]:
    """Some of everything a network can hold; what it said of it at the end, and its data folder."""
    files = (Path(holdfast.__file__).parent / "client" / "content.py").exists()
    with LocalNetwork(folder) as network:
        network.start_orchestrator(store_url=url)
        network.start_node("ada")
        network.start_node("bob")
        client = network.client()
        for number in range(4):
            client.jobs.submit(["printf", f"line %s\\n{number}\\n", str(number)], name=f"prints-{number}")
        fails = client.jobs.submit(["sh", "-c", "echo wrong >&2; exit 3"], name="fails")
        keyed = client.jobs.submit(["echo", "once"], name="keyed", key="a-key-of-the-past")
        if files:
            desk = network.desk
            (desk / "given.txt").write_text("given\n")
            script = "cat given.txt > made.txt; seq 2000 >> made.txt"
            network.cli("run", "--no-results", "--name", "makes", "--", "sh", "-c", script, check=0)
            array = client.arrays.submit(["echo", "{item}"], ["red", "green", "blue"], name="array")
            client.arrays.wait(array.id)
        stopped = client.jobs.submit(["sleep", "600"], name="stopped", cpu_milli=100)
        network.node_running(stopped.id)
        client.jobs.stop(stopped.id)
        network.nodes["bob"].terminate()  # a machine that left: its row stays
        runs = client.jobs.submit(["sleep", "600"], name="runs", cpu_milli=100)
        network.node_running(runs.id)
        waits = client.jobs.submit(["echo", "waited"], name="waits", cpu_milli=1_950)  # no room beside `runs`
        living = {waits.id, runs.id}
        network.wait_for(
            lambda: all(job.phase == "ended" for job in listed(client) if job.id not in living), "all to end", 60
        )
        client.jobs.wait(fails.id, check=False)
        jobs = {job.id: told(client, job.id) for job in listed(client)}
        nodes = {node.id: node.name for node in client.nodes.list()}
        assert network.orchestrator is not None
        network.orchestrator.terminate()
        kept = folder.parent / f"{folder.name}-data"
        shutil.copytree(network.home / "orchestrator", kept)
        return {"version": holdfast.__version__, "keyed": keyed.id, "jobs": jobs, "nodes": nodes}, kept


def listed(client: Client) -> list[Any]:
    """All jobs; releases differ in what a page is."""
    page = client.jobs.list()
    return list(getattr(page, "jobs", page))


def told(client: Client, job: str) -> dict[str, object]:
    """What a person can ask about a job, as far as every release can answer."""
    view = client.jobs.get(job)
    lines = list(client.jobs.logs(job))
    output = {stream: "".join(line.text for line in lines if line.stream == stream) for stream in STREAMS}
    return {
        "name": view.name,
        "argv": list(view.argv),
        "phase": view.phase,
        "verdict": view.verdict,
        "failure": view.failure.code if view.failure else None,
        "exit_code": view.exit_code,
        "result_sha256": view.result_sha256,
        "attempts_made": view.attempts_made,
        "submitted_ms": view.submitted_ms,
        "ended_ms": view.ended_ms,
        "files": getattr(getattr(view, "files", None), "manifest", None),
        "output": output,
    }


def migrate_to(url: str, revision: str) -> None:
    """The migrations of the tree this file stands in, up to one: no release stopped there."""
    code = (
        "import sys; from alembic import command; from sqlalchemy import create_engine\n"
        "from holdfast.state import migrate\n"
        "chosen = migrate.config(); engine = create_engine(sys.argv[1])\n"
        "with engine.begin() as connection:\n"
        "    chosen.attributes['connection'] = connection; command.upgrade(chosen, sys.argv[2])\n"
    )
    own = {**os.environ, "PYTHONPATH": str(HERE.parent.parent / "src")}
    subprocess.run([sys.executable, "-c", code, url, revision], env=own, check=True)


def dump_sqlite(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def dump_postgres(uri: str) -> str:
    import pgserver

    program = Path(pgserver.__file__).parent / "pginstall" / "bin" / "pg_dump"
    words = [program, "--inserts", "--no-owner", "--no-privileges", "--dbname", uri]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def put(box: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    box.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
