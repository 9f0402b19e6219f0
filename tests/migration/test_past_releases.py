"""What every earlier schema held is still there after the upgrade, on both engines, and work goes on from it.

The data are real: `record_release.py` ran the code of that time and kept what its orchestrator left, and what it said
of each job before it was stopped.
"""

import io
import json
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from holdfast.client import Client
from holdfast.model import Node
from holdfast.model.cause_text import draining_text
from holdfast.state import Store, migrate
from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.spec("J14", "N12")

RELEASES = Path(__file__).parent / "releases"
REVISIONS = ("0001", "0002", "0003", "0004")
MADE = "given\n" + "".join(f"{number}\n" for number in range(1, 2001))


class Past:
    """The data of one release, put back as it lay."""

    def __init__(self, revision: str, engine: str, url: str, folder: Path) -> None:
        self.schema = revision
        self.url = url
        self.data = folder / "home" / "orchestrator"
        self.data.mkdir(parents=True)
        with tarfile.open(RELEASES / f"schema-{revision}.tar.gz") as box:
            files = {entry.name: read(box, entry) for entry in box.getmembers()}
        for name, content in files.items():
            owner, _, rest = name.partition("/")
            if owner == engine and rest:
                (self.data / rest).parent.mkdir(parents=True, exist_ok=True)
                (self.data / rest).write_bytes(content)
        self.said: dict[str, Any] = json.loads(files[f"{engine}.json"])
        self.jobs: dict[str, dict[str, Any]] = self.said["jobs"]
        sql = files[f"{engine}.sql"].decode()
        if engine == "sqlite":
            with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
                connection.executescript(sql)
            connection.close()
        else:
            with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
                connection.execute(sql.encode())

    def named(self, name: str) -> str:
        return next(job for job, told in self.jobs.items() if told["name"] == name)

    def revision(self) -> str:
        engine = create_engine(self.url)
        with engine.begin() as connection:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
        engine.dispose()
        return str(found)


def read(box: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = box.extractfile(entry)
    assert file is not None
    return io.BufferedReader(file).read()


@pytest.fixture(params=[(revision, engine) for revision in REVISIONS for engine in ("sqlite", "postgres")])
def past(request: pytest.FixtureRequest, tmp_path: Path) -> Past:
    revision, engine = request.param
    return Past(revision, engine, request.getfixturevalue(f"{engine}_url"), tmp_path)


def printed(client: Client, job: str) -> dict[str, str]:
    lines = list(client.jobs.logs(job))
    return {stream: "".join(line.text for line in lines if line.stream == stream) for stream in ("stdout", "stderr")}


def head() -> str:
    return str(ScriptDirectory.from_config(migrate.config()).get_current_head())


def test_every_schema_that_ever_was_has_its_data_here() -> None:
    known = {script.revision for script in ScriptDirectory.from_config(migrate.config()).walk_revisions()}
    # Schemas since the last release have no data until the next one is made.
    since = known - set(REVISIONS)
    assert known >= set(REVISIONS) and head() in since and min(since) > max(REVISIONS)
    assert {path.name for path in RELEASES.iterdir()} == {f"schema-{revision}.tar.gz" for revision in REVISIONS}


def test_a_database_of_the_past_is_upgraded_with_every_row(past: Past) -> None:
    # Given what a release left, in its own schema
    assert past.revision() == past.schema

    # When the present program opens it
    store = Store.open(past.url)
    try:
        # Then the schema is the present one, and no job or machine is missing
        assert past.revision() == head()
        assert {str(job.id) for job in store.jobs(limit=1_000)} == set(past.jobs)
        assert {str(node.id) for node in store.nodes()} == set(past.said["nodes"])
    finally:
        store.close()


@pytest.mark.parametrize(
    "past", [("0001", "sqlite"), ("0002", "sqlite"), ("0001", "postgres"), ("0004", "postgres")], indirect=True
)
def test_the_present_orchestrator_goes_on_where_the_past_one_stopped(past: Past, tmp_path: Path) -> None:
    # Given what a release left: jobs that ended well and badly, one that was running, and one that waited
    with LocalNetwork(tmp_path) as network:
        # When the present orchestrator starts on it
        network.start_orchestrator(store_url=past.url)

        # Then it says of every job that had ended what was said before, word for word, and has its output
        everything_is_there(network.client(), past)


@pytest.mark.parametrize("past", [("0004", "sqlite")], indirect=True)
def test_work_of_the_past_is_finished_and_its_files_are_handed_out(past: Past, tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        network.start_orchestrator(store_url=past.url)
        client = network.client()
        everything_is_there(client, past)

        # When a submission that was answered before the upgrade is sent again, then it is the same job
        again = client.jobs.submit(["echo", "once"], name="keyed", key="a-key-of-the-past")
        assert again.id == past.said["keyed"] and again.again

        # When a machine joins the upgraded network, then the job that waited through the upgrade runs
        network.start_node("new")
        waited = client.jobs.wait(past.named("waits"), timeout_s=60)
        assert waited.verdict == "succeeded"
        assert printed(client, waited.id)["stdout"] == "waited\n"

        # And the files that a job made before it can be fetched after it
        network.cli("results", past.named("makes"), check=0)
        made = next(network.desk.glob("results/*/made.txt"))
        assert made.read_text() == MADE


def everything_is_there(client: Client, past: Past) -> None:
    for job, before in past.jobs.items():
        view = client.jobs.get(job)
        assert view.name == before["name"] and list(view.argv) == before["argv"]
        if before["phase"] != "ended":
            continue
        now = {key: getattr(view, key) for key in ("phase", "verdict", "exit_code", "result_sha256", "ended_ms")}
        assert now == {key: before[key] for key in now}
        assert (view.failure.code if view.failure else None) == before["failure"]
        assert printed(client, job) == before["output"]
        if before["files"]:
            assert view.files is not None and view.files.manifest == before["files"]


def test_an_older_program_refuses_the_upgraded_database(tmp_path: Path, sqlite_url: str) -> None:
    # Given a database that a program with one more migration has upgraded
    past = Past("0001", "sqlite", sqlite_url, tmp_path)
    Store.open(past.url).close()
    connection = sqlite3.connect(past.url.removeprefix("sqlite:///"))
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = msgspec.json.encode(past.revision())

    # When this one is started on it, then it does not start, and says what happened and what to do
    with LocalNetwork(tmp_path) as network:
        started = network.start_orchestrator(store_url=past.url, wait=False)
        try:
            code = started.process.wait(90)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it started on a schema it does not know:\n{started.tail()}")
        assert code != 0
        said = started.output()
    assert "9999" in said and "newer version" in said and "restore a backup" in said and "Traceback" not in said
    assert msgspec.json.encode(past.revision()) == before


@pytest.mark.spec("N7")
@pytest.mark.parametrize(("leaving", "network"), [(False, True), (True, False)])
def test_a_drain_that_0_1_wrote_down_is_whose_it_was(leaving: bool, network: bool) -> None:
    row = {"id": "node_1", "public_key": "", "version": "0.1.0", "hardware": {}, "joined_ms": 0, "draining": True}
    node = msgspec.convert({**row, "leaving": leaving}, Node)
    assert node.drained_by_network is network
    assert draining_text(node) == ("drained by the network's operator" if network else "paused by its own operator")
