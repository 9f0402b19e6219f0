"""Finds the address of the network and the credentials: flags first, then the environment, then the current context,
then the files that `holdfast up` left here.

    address      --url           HOLDFAST_URL                                     orchestrator/endpoint.json
    token        --token-file    HOLDFAST_ACCESS_TOKEN, HOLDFAST_ADMIN_TOKEN      orchestrator/admin.token
    certificate  --certificate   HOLDFAST_CERTIFICATE (a PEM file)                orchestrator/endpoint.json

The token is an access token or the admin token; of the two variables, the first that is set is taken. Each may have the
suffix _FILE, and then names a file.

HOLDFAST_CONTEXT, or `holdfast context use`, selects a network of `contexts`, which has all three. An address that is
given directly takes precedence over a context.

`HOLDFAST_HOME` replaces ~/.holdfast. The token and certificate of this machine's orchestrator, or of a context, are
used for its own address only: they are never sent or applied to an address from another source. A context never gets
the token from the environment, which was meant for another network; and if HOLDFAST_URL is set, that token goes only to
that address. Over plain HTTP a token is sent only to this machine (`guarded`).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.contexts import LOCAL, Contexts, read
from holdfast.errors import Misconfigured


class Endpoint(msgspec.Struct, frozen=True):
    url: str
    token: str = ""
    certificate: str = ""
    """PEM of the one certificate to trust; empty: the system's authorities."""
    context: str = ""
    """The name of this network here; empty: it was given by its address."""

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
    typed, said = (url or "").rstrip("/"), environ.get("HOLDFAST_URL", "").rstrip("/")
    address = typed or said
    contexts = read(home(environ))
    name = "" if address else environ.get("HOLDFAST_CONTEXT") or contexts.current or LOCAL
    if not name:
        name = _named(address, contexts, environ)
    known = _known(name, contexts, environ) if name else {}
    if not address:
        address = str(known["url"])
        if name != LOCAL:
            # The token and certificate in the environment belong to another network.
            environ = {}
    elif typed and typed != said and (said or known.get("token")):
        # They belong to HOLDFAST_URL; and if that is not set, a network with its own token needs no other.
        environ = {}
    pem_file = certificate_file or environ.get("HOLDFAST_CERTIFICATE")
    certificate = _text(pem_file, "certificate") if pem_file else str(known.get("certificate") or "")
    return Endpoint(address, _token(known, token_file, environ), certificate, name)


def guarded(endpoint: Endpoint, host: str) -> Endpoint:
    """Raises Misconfigured if the token could be read in transit. Every sender calls this; `host`: as it will
    connect."""
    if endpoint.token and not endpoint.url.lower().startswith("https:") and not _is_here(host):
        raise Misconfigured(
            f"{endpoint.url[:200]} is plain HTTP to another machine: the token could be read in transit",
            hint="Write https://, and pin the orchestrator's certificate.pem with HOLDFAST_CERTIFICATE=FILE; or "
            "go through `ssh -L 7420:127.0.0.1:7420 HOST` to http://127.0.0.1:7420.",
            code="plain_http",
        )
    return endpoint


def _is_here(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    from ipaddress import ip_address

    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def local_folder(contexts: Contexts, environ: Mapping[str, str] = os.environ) -> Path:
    """The data folder of this machine's orchestrator: the default one, or the one that `up` recorded."""
    usual = home(environ) / "orchestrator"
    said = contexts.get(LOCAL).folder
    return Path(said) if said and not (usual / "endpoint.json").exists() else usual


def known_as(name: str, environ: Mapping[str, str] = os.environ) -> tuple[Endpoint, str]:
    """The network with this local name, without an address if it is not running; and its folder, if it is on this
    machine."""
    contexts = read(home(environ))
    context = contexts.get(name)
    if context.url:
        return Endpoint(context.url, context.token, context.certificate, name), ""
    folder = local_folder(contexts, environ)
    found = _local(folder)
    token = folder / str(found.get("token_file") or "admin.token")
    said = _text(token, "admin token").strip() if found and token.exists() else ""
    return Endpoint(str(found.get("url") or ""), said, str(found.get("certificate") or ""), name), str(folder)


def name_of(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The local name of the network at this address; empty if it has none, or if no contexts are stored."""
    contexts = read(home(environ))
    return _named(url, contexts, environ) if contexts.contexts else ""


def _named(address: str, contexts: Contexts, environ: Mapping[str, str]) -> str:
    """The local name of the network at this address; empty if it has none."""
    if address == _local(local_folder(contexts, environ)).get("url"):
        return LOCAL
    return next((name for name, known in sorted(contexts.contexts.items()) if known.url == address), "")


def _known(name: str, contexts: Contexts, environ: Mapping[str, str]) -> dict[str, Any]:
    """Address, certificate, and token or token file, of a network known by name."""
    context = contexts.get(name)
    if context.url:
        return {"url": context.url, "certificate": context.certificate, "token": context.token}
    folder = local_folder(contexts, environ)
    found = _local(folder)
    if "url" not in found:
        raise Misconfigured(
            f"no orchestrator is known here: there is no {folder / 'endpoint.json'}",
            hint="Start one with `holdfast up`, or say where it is with --url, HOLDFAST_URL or `holdfast context`.",
            code="no_endpoint",
        )
    return {**found, "token_file": folder / str(found.get("token_file") or "admin.token")}


def _token(known: Mapping[str, Any], token_file: str | Path | None, environ: Mapping[str, str]) -> str:
    if token_file:
        return _text(token_file, "token").strip()
    # The access token comes first: it allows less.
    for variable, what in (("HOLDFAST_ACCESS_TOKEN", "access token"), ("HOLDFAST_ADMIN_TOKEN", "admin token")):
        if environ.get(variable):
            return environ[variable].strip()
        if environ.get(f"{variable}_FILE"):
            return _text(environ[f"{variable}_FILE"], what).strip()
    if "token_file" in known:
        return _text(known["token_file"], "admin token").strip()
    return str(known.get("token") or "")


def _local(folder: Path) -> dict[str, Any]:
    path = folder / "endpoint.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as cause:
        raise Misconfigured(
            f"{path} cannot be read: {cause}", hint="Restart `holdfast up`; it writes the file again."
        ) from None


def _text(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise Misconfigured(
            f"the {what} file {path} cannot be read: {cause}", hint="Check the path and its rights."
        ) from None
