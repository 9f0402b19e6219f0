"""A real S3 endpoint on loopback for tests. Buckets are folders, filled before it starts. It can be killed, frozen and
started again on the same port.

    with S3Server() as s3:
        s3.bucket("data").joinpath("x").write_text("content")
        network.start_orchestrator(env=s3.keys())
        s3.kill()
        s3.start()
"""

import sysconfig
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from holdfast.testing.engines import Service
from holdfast.testing.processes import free_port

ACCESS, SECRET = "holdfastaccess", "holdfastsecretkey"


class S3Server(Service):
    """`root`: the folder of the buckets; a folder inside its own by default."""

    def __init__(self, root: Path | None = None) -> None:
        super().__init__("hf-s3-")
        self.port = free_port()
        self.root = root or self.folder / "data"
        self.root.mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str) -> Path:
        """The folder of a bucket, which is created if it is missing."""
        (self.root / name).mkdir(exist_ok=True)
        return self.root / name

    def keys(self, url: str = "") -> dict[str, str]:
        """The environment variables of a client that may use it. `url`: set if it is reached by another address."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def command(self) -> list[str]:
        program = Path(sysconfig.get_path("scripts")) / "rclone"
        words = ["serve", "s3", "--auth-key", f"{ACCESS},{SECRET}", "--config", str(self.folder / "none.conf")]
        words += ["--addr", f"127.0.0.1:{self.port}", "--vfs-cache-mode", "off"]
        return [str(program), *words, str(self.root)]

    def answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
