"""Orchestrator processes for tests: started in a tenth of a second, killed where a fail point says, started again.

They are forked from a process that has already imported everything, and run the same entry as `holdfast up`.
"""

import multiprocessing
import os
import signal
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPSConnection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import msgspec

from holdfast.client import Client
from holdfast.model import Settings
from holdfast.orchestrator import failpoints
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.leader import record
from holdfast.orchestrator.serve import run_orchestrator
from holdfast.testing.processes import free_port, wait_for

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    ["holdfast.orchestrator.serve", "holdfast.testing.processes", "litestar.plugins.pydantic", "pytest"]
)

KILLED = -signal.SIGKILL
START_S = 120.0
"""For a process to come up, or to end, on a machine that runs other tests beside it."""

PATIENT = msgspec.structs.replace(
    Settings.test(),
    silence_floor_ms=5_000,
    silence_ceiling_ms=8_000,
    idle_silence_ms=20_000,
    offer_ms_max=10_000,
    lease_ms=15_000,
)
"""Nodes of these tests live in the process of the test. Where that stands still for a second or two, because the
machine has other things to do, none of them fell silent. Stories about silence have settings of their own."""


def _serve(config: bytes, failpoint: str | None, recording: str | None, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    failpoints.arm(failpoint)
    os.environ.pop(record.ENVIRONMENT, None)
    if recording:
        os.environ[record.ENVIRONMENT] = recording
    raise SystemExit(run_orchestrator(msgspec.json.decode(config, type=OrchestratorConfig, dec_hook=_path)))


def _path(kind: type, value: Any) -> Any:
    return kind(value)


class OrchestratorProcess:
    """One orchestrator with its data, over any number of lives. Its ports stay the same."""

    def __init__(
        self,
        folder: Path,
        store: str = "",
        settings: Settings | None = None,
        open_join: bool = False,
        tls: bool | None = None,
    ) -> None:
        self.folder = folder
        self.config = OrchestratorConfig(
            data=folder / "data",
            store=store,
            http=f"127.0.0.1:{free_port()}",
            nodes=f"127.0.0.1:{free_port()}",
            files=f"127.0.0.1:{free_port()}",  # else the port beside that of the nodes, which may be another's
            open_join=open_join,
            tls=tls,
            settings=settings or PATIENT,
        )
        self.log = folder / "orchestrator.log"
        self.process: BaseProcess | None = None
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        return f"http://{self.config.http}"

    @property
    def listen(self) -> str:
        return self.config.nodes

    def start(
        self, failpoint: str | None = None, recording: Path | None = None, wait: bool = True
    ) -> "OrchestratorProcess":
        encoded = msgspec.json.encode(self.config, enc_hook=str)
        process = _fork.Process(
            target=_serve, args=(encoded, failpoint, str(recording) if recording else None, str(self.log)), daemon=True
        )
        process.start()
        self.process = process
        if wait:
            wait_for(self.healthy, "the orchestrator to lead", START_S)
        return self

    def healthy(self) -> bool:
        assert self.process is not None
        if self.process.exitcode is not None:
            raise AssertionError(f"the orchestrator ended with {self.process.exitcode}:\n{self.tail()}")
        return self.health() == 200

    def health(self) -> int:
        """The status of /healthz; 0: nobody answers."""
        # Not httpx: it prepares for TLS on every call, which costs more than the orchestrator's whole start.
        if self.config.tls:
            unchecked = ssl._create_unverified_context()
            connection: HTTPConnection = HTTPSConnection(self.config.http, timeout=20, context=unchecked)
        else:
            connection = HTTPConnection(self.config.http, timeout=20)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    @property
    def pid(self) -> int:
        assert self.process is not None and self.process.pid is not None
        return self.process.pid

    def died(self) -> bool:
        assert self.process is not None
        return self.process.exitcode is not None

    def exit_code(self, timeout_s: float = START_S) -> int | None:
        assert self.process is not None
        self.process.join(timeout_s)
        return self.process.exitcode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.exit_code() == KILLED

    def stop(self) -> int | None:
        if not self.died():
            os.kill(self.pid, signal.SIGTERM)
        return self.exit_code()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self.process is not None and not self.died():
            self.process.kill()
            self.process.join(10)

    def admin_token(self) -> str:
        return (self.config.data / "admin.token").read_text().strip()

    def client(self, patience_s: float = 60.0) -> Client:
        client = Client(self.url, self.admin_token(), patience_s=patience_s)
        self._clients.append(client)
        return client

    def http(self, **headers: str) -> httpx.Client:
        """Bare HTTP, with the admin token unless another `Authorization` is given."""
        given = {
            "Authorization": f"Bearer {self.admin_token()}",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        return httpx.Client(base_url=self.url, headers=given, timeout=60, trust_env=False, verify=False)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def __enter__(self) -> "OrchestratorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Starter = Callable[..., OrchestratorProcess]
