"""A node's folders with attempts that need Python packages, and an index of packages that a test serves on loopback."""

import contextlib
import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.attempt import attempt_folders
from holdfast.node.attempt.venvs import VenvFailed, Venvs
from holdfast.node.core.order import Order
from holdfast.node.runtimes import runtime as runtimes
from holdfast.testing.packages import make_wheel


class Node:
    """A node's folders, and an index of packages beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels, self.home, self.attempts = folder / "wheels", folder / "venvs", folder / "attempts"
        for made in (self.wheels, self.attempts):
            made.mkdir()
        make_wheel(self.wheels, "apple", "1.0", "pear>=2")
        make_wheel(self.wheels, "apple", "1.1", "pear>=2")
        make_wheel(self.wheels, "pear", "1.0")
        make_wheel(self.wheels, "pear", "2.0")

    def venvs(self, **limits: float) -> Venvs:
        return Venvs(self.home, self.attempts, **limits)  # pyright: ignore[reportArgumentType]

    def prepared(self, attempt: str, runtime: str = "bubblewrap", **changes: Any) -> Order:
        """An attempt with folders and limits, as the agent prepares it."""
        fields: dict[str, Any] = {"time_limit_ms": 150_000, "orphan_ms_max": 150_000, "stop_grace_ms": 300}
        fields |= {"log_bytes_max": 1 << 20, "resources": {"memory_mib": 256, "disk_mib": 64}, "requirements": True}
        order = Order(attempt, 7, "job_0a", ("true",), **{**fields, "runtime": runtime, **changes})
        folder = self.attempts / attempt
        folder.mkdir(exist_ok=True)
        runtimes.runtime_named(runtime).prepare(order, str(folder))
        return order

    def take(self, attempt: str, text: str, **limits: float) -> Path:
        order = self.prepared(attempt, "process" if limits.get("in_place") else "bubblewrap")
        return self.venvs(**limits).take(order, text)

    def end(self, *attempts: str) -> None:
        """Nothing of these attempts is left."""
        for attempt in attempts:
            attempt_folders.clean(self.attempts / attempt)
            attempt_folders.remove(self.attempts / attempt)

    def there(self) -> list[str]:
        return sorted(place.parent.name for place in self.home.glob("*/made"))


@pytest.fixture(name="node")
def node_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(node.wheels))
    yield node
    node.end(*os.listdir(node.attempts))


def failed(node: Node, text: str, attempt: str = "att_f", **limits: float) -> VenvFailed:
    with pytest.raises(VenvFailed) as wrong:
        node.take(attempt, text, **limits)
    assert node.there() == []
    assert not [name for name in os.listdir(node.home) if name.startswith(("building", "dropped"))]
    return wrong.value


class PackageIndex:
    """A package index on loopback: `simple/NAME/` lists the files of the folder that begin with the name. `asked`: the
    paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        index = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                words = self.path.strip("/").split("/")
                if words[0] != "simple":
                    super().do_GET()
                    return
                names = [name for name in sorted(os.listdir(folder)) if name.startswith(f"{words[-1]}-")]
                page = "".join(f'<a href="/{name}">{name}</a>\n' for name in names).encode()
                self.send_response(200 if names else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        handler = functools.partial(Handler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "PackageIndex":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"


@contextlib.contextmanager
def served(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The node's wheels, as an index that its settings name."""
    with PackageIndex(node.wheels) as index:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield index
