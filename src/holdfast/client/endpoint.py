"""Where the network is and how to prove who asks: flags, then environment, then what `holdfast up` left here.

    address      --url           HOLDFAST_URL                                     orchestrator/endpoint.json
    admin token  --token-file    HOLDFAST_ADMIN_TOKEN, HOLDFAST_ADMIN_TOKEN_FILE  orchestrator/admin.token
    certificate  --certificate   HOLDFAST_CERTIFICATE (a PEM file)                orchestrator/endpoint.json

`HOLDFAST_HOME` takes the place of ~/.holdfast. The local token and certificate are used for the local address
only: they are never sent or applied to an address that came from somewhere else.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import Misconfigured


class Endpoint(msgspec.Struct, frozen=True):
    url: str
    token: str = ""
    certificate: str = ""
    """PEM of the one certificate to trust; empty: the system's authorities."""

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"


def home(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast")


def find(
    url: str | None = None,
    token_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    folder = home(environ) / "orchestrator"
    address = (url or environ.get("HOLDFAST_URL") or "").rstrip("/")
    local = _local(folder)
    if address and address != local.get("url"):
        local = {}
    if not address:
        if "url" not in local:
            raise Misconfigured(
                f"no orchestrator is known here: there is no {folder / 'endpoint.json'}",
                hint="Start one with `holdfast up`, or say where it is with --url or HOLDFAST_URL.",
                code="no_endpoint",
            )
        address = str(local["url"])
    pem_file = certificate_file or environ.get("HOLDFAST_CERTIFICATE")
    certificate = _text(pem_file, "certificate") if pem_file else str(local.get("certificate") or "")
    return Endpoint(address, _token(folder, local, token_file, environ), certificate)


def _token(folder: Path, local: Mapping[str, Any], token_file: str | Path | None, environ: Mapping[str, str]) -> str:
    if token_file:
        return _text(token_file, "admin token").strip()
    if environ.get("HOLDFAST_ADMIN_TOKEN"):
        return environ["HOLDFAST_ADMIN_TOKEN"].strip()
    if environ.get("HOLDFAST_ADMIN_TOKEN_FILE"):
        return _text(environ["HOLDFAST_ADMIN_TOKEN_FILE"], "admin token").strip()
    if local:
        return _text(folder / str(local.get("token_file") or "admin.token"), "admin token").strip()
    return ""


def _local(folder: Path) -> dict[str, Any]:
    path = folder / "endpoint.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as cause:
        raise Misconfigured(
            f"{path} cannot be read: {cause}", hint="Restart `holdfast up`; it writes the file anew."
        ) from None


def _text(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise Misconfigured(
            f"the {what} file {path} cannot be read: {cause}", hint="Check the path and its rights."
        ) from None
