"""What tests of several kinds share: fresh databases, SQLite and PostgreSQL."""

import fcntl
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

# A machine that runs other tests beside is slow now and then: that is no finding.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

pytest.register_assert_rewrite("holdfast.testing.store", "holdfast.testing.runtimes")

# Started in the background or by nohup, this and all that it starts would be deaf to signals which tests send. What has
# a handler here is not ignored by what is started from here. A hangup ends no worker: their parent did not ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "PYTEST_XDIST_WORKER" in os.environ:
    signal.signal(signal.SIGHUP, lambda *_: None)

_numbers = count(1)
SCRATCH = ("work", "checkpoint", "checkpoint.stash", "venv", "disk")


class PostgresServer:
    """A PostgreSQL of our own, reached by a Unix socket in its own folder."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where nothing of ours is put
            import pgserver

        self.folder = folder
        self._server = pgserver.get_server(folder / "data", cleanup_mode="stop")

    def url(self, database: str) -> str:
        return self._server.get_uri(database).replace("postgresql://", "postgresql+psycopg://", 1)

    def do(self, statement: str) -> None:
        with psycopg.connect(self._server.get_uri("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def stop(self) -> None:
        self._server.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for each test process."""
    # Not under pytest's own folder: that path is too long for a socket, and closed to the server's user.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    folder.chmod(0o755)
    lock = Path(tempfile.gettempdir()) / f"holdfast-pg-{os.getuid()}.lock"
    with lock.open("w") as turn:
        # Starting as root makes a user account first; two processes at once would trip over each other.
        fcntl.flock(turn, fcntl.LOCK_EX)
        server = PostgresServer(folder)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a database made for this test alone."""
    name = f"fresh_{next(_numbers)}"
    postgres_server.do(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.do(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a file made for this test alone."""
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The test runs twice: on SQLite and on PostgreSQL."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(autouse=True)
def _nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """A node that is killed with its test, and not started again, clears up after none of its attempts."""
    yield
    folder = getattr(request.node, "funcargs", {}).get("tmp_path")
    if folder is None:
        return
    from holdfast.node.runtimes import cgroups, runtime, scratch

    places = {Path(place).parent for place in scratch.mounts_below(str(folder)) if Path(place).name in SCRATCH}
    for depth in range(1, 5):
        places |= {record.parent for record in folder.glob("*/" * depth + cgroups.RECORD)}
    for place in sorted(place for place in places if (place / "order.json").exists()):
        runtime.clean(str(place))
