"""The configuration of an orchestrator: where its data is, where it listens, and who may join."""

import os
from pathlib import Path

import msgspec

from holdfast.errors import Misconfigured
from holdfast.model import Settings
from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.quantities import duration_ms

HTTP_DEFAULT = "127.0.0.1:7420"
NODES_DEFAULT = "127.0.0.1:7421"


def default_data() -> Path:
    return Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast") / "orchestrator"


class OrchestratorConfig(msgspec.Struct, frozen=True):
    data: Path = msgspec.field(default_factory=default_data)
    store: str = ""
    """`sqlite:////absolute/path.db` or `postgresql+psycopg://…`. Empty: SQLite in the data folder."""
    http: str = HTTP_DEFAULT
    """The address for people. Port 0: a free one; endpoint.json has the actual port."""
    nodes: str = NODES_DEFAULT
    """The address for nodes (gRPC)."""
    files: str = ""
    """The address for nodes' files (HTTP). Empty: the host of `nodes` at the next port, or a free port if `nodes` has
    port 0."""
    blobs: str = ""
    """`s3://BUCKET[/PREFIX]`, with the usual environment variables for the rest. Empty: a folder in the data folder."""
    s3_inputs: tuple[str, ...] = ()
    """`s3://BUCKET[/PREFIX]`, as for `blobs`: what jobs may read as inputs."""
    tls: bool | None = None
    """None: TLS on every address but loopback. True: on loopback as well. It cannot be switched off."""
    open_join: bool = False
    """Anyone may join without a token."""
    preset: str = "lan"
    settings: Settings | None = None
    """Replaces the preset, for tests and measurements."""
    limits: ConnectionLimits = ConnectionLimits()
    """On connections and requests."""
    joins: dict[str, int] = {}
    """Replaces settings of the preset on new machines (`JOIN_LIMITS`); 0: no limit."""
    keep: tuple[str, ...] = ()
    """`WHAT=DURATION`, such as `jobs=90d`: replaces a setting of the preset that says how long something is kept."""
    log_level: str = "info"

    def store_url(self) -> str:
        return self.store or f"sqlite:///{(self.data / 'state.db').absolute()}"

    def store_file(self) -> Path | None:
        """The file of a SQLite store; None for PostgreSQL."""
        prefix, url = "sqlite:///", self.store_url()
        return Path(url.removeprefix(prefix)) if url.startswith(prefix) else None

    def files_address(self) -> str:
        if self.files:
            return self.files
        host, port = host_and_port(self.nodes, "node")
        return joined(host, port + 1 if port else 0)

    def chosen_settings(self) -> Settings:
        try:
            settings = self.settings or Settings.preset(self.preset)
        except ValueError as wrong:
            raise Misconfigured(str(wrong), hint="Choose one of them with --preset.") from None
        chosen = dict(map(_kept, self.keep)) | {name: most or NO_LIMIT for name, most in self.joins.items()}
        return msgspec.structs.replace(settings, open_join=self.open_join or settings.open_join, **chosen)


JOIN_LIMITS = ("joins_max", "joins_per_address_max", "joins_per_token_max")
"""Settings that are limits as well, and chosen as these are."""
NO_LIMIT = 10**12


KEPT = ("files", "jobs", "journal", "logs", "nodes", "tokens")
"""What is kept for a time: the setting of each is called `<name>_keep_ms`."""


def _kept(words: str) -> tuple[str, int]:
    """The setting that `jobs=90d` sets, and its value."""
    what, _, duration = words.partition("=")
    if what not in KEPT:
        raise Misconfigured(f"{words[:80]!r} keeps nothing", hint=f"For example jobs=90d; there is {', '.join(KEPT)}.")
    ms = duration_ms(duration)
    if not ms:
        raise Misconfigured(f"{words[:80]!r} keeps nothing", hint="For example jobs=90d.")
    return f"{what}_keep_ms", ms


def host_and_port(address: str, what: str) -> tuple[str, int]:
    """`HOST:PORT`, also with an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise Misconfigured(
            f"the {what} address {address[:80]!r} is not HOST:PORT", hint="For example 127.0.0.1:7420 or [::1]:7420."
        )
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
