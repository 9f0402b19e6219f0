"""`holdfast backup` as an operator types it, beside an orchestrator that runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.commands.backup import _tell
from holdfast.orchestrator.backup import Backup
from holdfast.testing.processes import LocalNetwork

pytestmark = [pytest.mark.xdist_group("cli-backup"), pytest.mark.spec("J14")]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("network")) as network:
        network.start_orchestrator()
        yield network


def test_a_backup_says_what_it_holds_and_what_to_do_with_it(network: LocalNetwork, tmp_path: Path) -> None:
    # given a job that waits with a file, for there is no node
    (network.desk / "given.txt").write_text("given\n")
    network.client().jobs.submit(["true"], package=network.client().content.send(network.desk).manifest)
    # when its operator makes a backup, then that says how large it is, and which command starts from it
    target = tmp_path / "monday"
    done = network.cli("backup", str(target), check=0)
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith(f"Backed up to {target}: ") and first.endswith("iB, read back and compared.")
    assert second.startswith("It holds: state (") and second.endswith("), 2 files, 0 logs, 2 keys.")
    assert rest == ["Start an orchestrator from it:", f"  holdfast up --data-dir {target}"]
    assert done.stderr == ""
    # and nothing is ever replaced; and what one left that died, with the keys of the network, is not passed over
    (left := tmp_path / "sunday.part").mkdir()
    (left / "backup.json").write_text("{}")
    again = network.cli("backup", str(target), check=73)
    warning, advice, refused, *_ = again.stderr.splitlines()
    assert warning == f"-- unfinished in {tmp_path}: sunday.part. If no backup is being written"
    assert advice.endswith("delete that: it may hold the admin token, and nothing else removes it.")
    assert refused.startswith(f"error: {target} already exists [in_the_way]")


def test_a_backup_is_told_to_programs(network: LocalNetwork, tmp_path: Path) -> None:
    data = network.home / "orchestrator"
    done = network.cli("backup", "tuesday", "--data-dir", str(data), "--json", check=0)
    made = json.loads(done.stdout)
    assert made["target"] == str(network.desk / "tuesday") and made["left_out"] == [] == made["damaged"]
    assert made["bytes"] == made["state_bytes"] + sum(
        path.stat().st_size
        for path in Path(made["target"]).rglob("*")
        if path.is_file() and path.name not in ("state.db", "backup.json")
    )


def test_what_lies_elsewhere_stays_there_and_that_is_said(network: LocalNetwork, tmp_path: Path) -> None:
    # files in S3
    done = network.cli("backup", str(tmp_path / "one"), "--blobs", "s3://bucket/files", check=0)
    assert "The files stay in s3://bucket/files: " in done.stdout
    assert done.stdout.endswith(f"  holdfast up --data-dir {tmp_path / 'one'} --blobs s3://bucket/files\n")
    assert not (tmp_path / "one" / "blobs").exists()
    # a state that has a place of its own is copied to the usual one
    (other := tmp_path / "data").mkdir()
    (other / "blobs").mkdir()
    store = f"sqlite+pysqlite:///{network.home / 'orchestrator' / 'state.db'}?timeout=5"
    words = ("--data-dir", str(other), "--store", store)
    done = network.cli("backup", str(tmp_path / "two"), *words, check=1)  # whose files are not in this folder
    assert "[backup_damaged]" in done.stderr and (tmp_path / "two" / "state.db").exists()
    assert done.stdout.endswith(f"  holdfast up --data-dir {tmp_path / 'two'}\n")
    # a store that nobody knows is refused by name
    done = network.cli("backup", str(tmp_path / "three"), "--store", "mysql://db/holdfast", check=74)
    assert "[store_failed]" in done.stderr and not (tmp_path / "three").exists()
    # and a folder without data, or without the part that was left out, names the flag that is missing
    done = network.cli("backup", str(tmp_path / "four"), "--data-dir", str(tmp_path / "one"), check=78)
    assert "[config]" in done.stderr and "--blobs" in done.stderr


def test_with_postgresql_the_order_is_said_and_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    made = Backup("/mnt/monday", "0.1.0", 1, blobs=3, bytes=2048, left_out=("database",))
    _tell(made, "postgresql+psycopg://holdfast:secret@db/holdfast", "")
    told = capsys.readouterr().out
    assert "Keep it with a dump of the database that was made before it." in told and "pg_dump" in told
    assert "--store postgresql+psycopg://holdfast:***@db/holdfast" in told and "secret" not in told
