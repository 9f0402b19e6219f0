"""Where the network is and how to prove who asks: flags, then environment, then the context in use, then what
`holdfast up` left here.

    address      --url           HOLDFAST_URL                                     orchestrator/endpoint.json
    admin token  --token-file    HOLDFAST_ADMIN_TOKEN, HOLDFAST_ADMIN_TOKEN_FILE  orchestrator/admin.token
    certificate  --certificate   HOLDFAST_CERTIFICATE (a PEM file)                orchestrator/endpoint.json

HOLDFAST_CONTEXT, or `holdfast context use`, names a network of `contexts`, which has all three. An address that is
given by itself counts more than a context.

`HOLDFAST_HOME` takes the place of ~/.holdfast. The token and certificate of this machine's orchestrator, or of a
context, are used for its own address only: they are never sent or applied to an address that came from somewhere
else. Nor does a context get the token of the environment, which was meant for another; and where HOLDFAST_URL says for
which, no address gets it but that one. Over plain HTTP a token goes to this machine only (`guarded`).
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
    """What this network is called here; empty: it was given by its address."""

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
            # What the environment says of tokens and certificates was said of another network.
            environ = {}
    elif typed and typed != said and (said or known.get("token")):
        # They were said of HOLDFAST_URL; and where that is not set, a network with a token of its own needs no other.
        environ = {}
    pem_file = certificate_file or environ.get("HOLDFAST_CERTIFICATE")
    certificate = _text(pem_file, "certificate") if pem_file else str(known.get("certificate") or "")
    return Endpoint(address, _token(known, token_file, environ), certificate, name)


def guarded(endpoint: Endpoint, host: str) -> Endpoint:
    """Misconfigured where its token could be read on the way. Called by all that send one; `host`: as they dial it."""
    if endpoint.token and not endpoint.url.lower().startswith("https:") and not _is_here(host):
        raise Misconfigured(
            f"{endpoint.url[:200]} is plain HTTP to another machine: all on the way could read the admin token",
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
    """Where this machine's orchestrator keeps everything: where it usually does, or where `up` said it does."""
    usual = home(environ) / "orchestrator"
    said = contexts.get(LOCAL).folder
    return Path(said) if said and not (usual / "endpoint.json").exists() else usual


def known_as(name: str, environ: Mapping[str, str] = os.environ) -> tuple[Endpoint, str]:
    """The network that is called so here, without an address where it does not run; and its folder, if it is on this
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
    """What the network at this address is called here; empty if it is not known, or if no other is either."""
    contexts = read(home(environ))
    return _named(url, contexts, environ) if contexts.contexts else ""


def _named(address: str, contexts: Contexts, environ: Mapping[str, str]) -> str:
    """What the network at this address is called here; empty if it is not known."""
    if address == _local(local_folder(contexts, environ)).get("url"):
        return LOCAL
    return next((name for name, known in sorted(contexts.contexts.items()) if known.url == address), "")


def _known(name: str, contexts: Contexts, environ: Mapping[str, str]) -> dict[str, Any]:
    """Address, certificate, and token or its file, of a network that is known by name."""
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
        return _text(token_file, "admin token").strip()
    if environ.get("HOLDFAST_ADMIN_TOKEN"):
        return environ["HOLDFAST_ADMIN_TOKEN"].strip()
    if environ.get("HOLDFAST_ADMIN_TOKEN_FILE"):
        return _text(environ["HOLDFAST_ADMIN_TOKEN_FILE"], "admin token").strip()
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
            f"{path} cannot be read: {cause}", hint="Restart `holdfast up`; it writes the file anew."
        ) from None


def _text(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise Misconfigured(
            f"the {what} file {path} cannot be read: {cause}", hint="Check the path and its rights."
        ) from None
