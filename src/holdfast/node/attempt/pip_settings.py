"""Reads how pip is configured on this machine: that is the node's setting of where packages come from.

Pip's own files and variables are read by pip itself, outside of every sandbox, with nothing of a job in sight. A build
gets what concerns indexes, as variables; the proxy gets the list of hosts; the sandbox gets the local folders. Knows no
job and no sandbox.
"""

import ast
import contextlib
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from holdfast.node.attempt.index_proxy import ParentProxy, Target, target_of

_ASK = """
import json, runpy, sys
from pip._internal.models.index import PyPI
print(json.dumps([PyPI.simple_url, PyPI.file_storage_domain]), flush=True)
sys.argv = ["pip", "--disable-pip-version-check", "config", "list"]
runpy.run_module("pip", run_name="__main__")
"""
"""Prints the index that pip uses without a setting with the host of its files, then all settings."""
_SECTIONS = ("global", "download", "install", ":env:")
"""Later ones override earlier ones, as in pip."""
_PASSED = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "timeout", "default-timeout")
_PASSED += ("retries",)
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_LIST_S_MAX = 60.0
_LINE = re.compile(r"([^=\s]+)=('.*'|\".*\")")


class PipUnusable(Exception):
    """Pip's configuration on this machine cannot be read; the text says why."""


def _no_words() -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class PipSettings:
    variables: dict[str, str] = field(default_factory=_no_words)
    """What a build's pip is told, as environment variables."""
    hosts: frozenset[Target] = frozenset()
    """What it may connect to."""
    folders: tuple[str, ...] = ()
    """Local indexes, which it may read."""
    certificate: str = ""
    """A file with the authorities that it trusts; empty: those that pip has."""
    client_certificate: str = ""
    proxies: dict[str, str] = field(default_factory=_no_words)
    """How the node itself reaches the indexes, by scheme."""

    def parent_of(self, target: Target) -> ParentProxy | None:
        """The proxy of the machine for this target, by the rules of its variables."""
        host, port = target
        url = self.proxies.get("https" if port == 443 else "http", "") or self.proxies.get("all", "")
        if not url or _is_direct(host, self.proxies.get("no", "")):
            return None
        return ParentProxy(url if "://" in url else f"http://{url}")


@dataclass(frozen=True)
class DefaultIndex:
    """The index that pip uses if nothing else is set. Its files are on another host."""

    url: str
    file_host: str


def read_settings(python: str, more_hosts: frozenset[Target], private: tuple[str, ...]) -> PipSettings:
    """`python`: has pip. `more_hosts`: further hosts that the operator allows. `private`: folders of which no sandbox
    is shown a parent. Raises PipUnusable."""
    try:
        run = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_LIST_S_MAX, check=True)
        first, _, listing = run.stdout.partition("\n")
        default = DefaultIndex(*json.loads(first))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as wrong:
        raise PipUnusable(f"pip's configuration cannot be read: {wrong}") from None
    return settings_of(parsed(listing), dict(os.environ), default, more_hosts, private)


def parsed(listing: str) -> dict[str, str]:
    """The output of `pip config list` as one value for each option."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            section, _, name = match[1].rpartition(".")
            with contextlib.suppress(ValueError, SyntaxError):
                found.setdefault(section, {})[name] = str(ast.literal_eval(match[2]))
    whole: dict[str, str] = {}
    for section in _SECTIONS:
        whole |= found[section]
    return whole


def settings_of(
    options: dict[str, str],
    environ: dict[str, str],
    default: DefaultIndex,
    more_hosts: frozenset[Target],
    private: tuple[str, ...],
) -> PipSettings:
    variables = {f"PIP_{name.upper().replace('-', '_')}": options[name] for name in _PASSED if options.get(name)}
    indexes = [] if _is_on(options.get("no-index", "")) else [options.get("index-url") or default.url]
    indexes += options.get("extra-index-url", "").split()
    links = options.get("find-links", "").split()
    hosts = {target for url in (*indexes, *links) if (target := target_of(url)) is not None}
    if target_of(default.url) in hosts:
        hosts.add((default.file_host, 443))
    folders = {*_folders(indexes, private, around=True), *_folders(links, private, around=False)}
    authorities = [options.get("cert", ""), *(environ.get(name, "") for name in _CERTIFICATES)]
    return PipSettings(
        variables,
        frozenset(hosts) | more_hosts,
        tuple(sorted(folders)),
        next((path for path in authorities if path and os.path.isfile(path)), ""),
        options.get("client-cert", ""),
        _proxies(options.get("proxy", ""), environ),
    )


def _is_on(word: str) -> bool:
    return word.strip().lower() in ("1", "true", "yes", "on", "t", "y")


def _is_direct(host: str, listed: str) -> bool:
    """Whether the variable `no_proxy` names this host, or a domain that it is in."""
    names = [name.strip().lower().lstrip(".") for name in listed.split(",")]
    return any(name == "*" or host == name or host.endswith(f".{name}") for name in names if name)


def _proxies(given: str, environ: dict[str, str]) -> dict[str, str]:
    if given:
        return {"all": given}
    found = {"all": "", "http": "", "https": "", "no": ""}
    for name in found:
        # A lower-case name wins, as for every program that reads these variables.
        found[name] = environ.get(f"{name}_proxy", environ.get(f"{name}_proxy".upper(), ""))
    return {name: value for name, value in found.items() if value}


def _folders(places: list[str], private: tuple[str, ...], around: bool) -> set[str]:
    """Local folders among these places. `around`: pages of an index link to files beside it, so the folder around it is
    shown as well, if everybody on this machine may read it and it holds nothing private."""
    found: set[str] = set()
    for place in places:
        if (path := _local(place)) is None or not os.path.exists(path):
            continue
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        parent = os.path.dirname(folder)
        found.add(parent if around and _is_public(parent) and not _holds(parent, private) else folder)
    return {folder for folder in found if folder != "/"}


def _local(place: str) -> str | None:
    if place.startswith("file:"):
        return os.path.realpath(unquote(urlsplit(place).path))
    return None if "://" in place else os.path.realpath(os.path.expanduser(place))


def _is_public(folder: str) -> bool:
    if os.stat(folder).st_mode & 0o005 != 0o005:
        return False
    while folder != "/":
        folder = os.path.dirname(folder)
        if not os.stat(folder).st_mode & 0o001:
            return False
    return True


def _holds(folder: str, private: tuple[str, ...]) -> bool:
    around = folder.rstrip("/") + "/"
    return any((os.path.realpath(path) + "/").startswith(around) for path in private)
