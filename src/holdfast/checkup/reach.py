"""The way to the orchestrator, step by step: name, connection, certificate, answer, token. Where a step fails, the rest
is not tried. Then clocks and versions, and what the orchestrator says of itself and of its nodes.
"""

import contextlib
import hashlib
import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import holdfast
from holdfast.checkup.findings import Found
from holdfast.client.answers import trust
from holdfast.client.endpoint import guarded
from holdfast.errors import Misconfigured
from holdfast.quantities import counted, spoken_ms

if TYPE_CHECKING:
    from holdfast.client.endpoint import Endpoint
    from holdfast.wire.http import NodeView

GROUP = "orchestrator"
STEP_S = 5.0
ANSWER_BYTES_MAX = 8 << 20
SKEW_S = 5.0
"""Clocks may differ by that much before anything is said: dates in answers are whole seconds."""


class Reached:
    """One orchestrator, as it was found."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self.endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.secure else 80)
        self.answered: HTTPResponse | None = None

    def examine(self) -> Iterator[Found]:
        steps = (
            self._name,
            self._connection,
            *((self._certificate,) if self.secure else ()),
            self._answer,
            self._token,
        )
        for step in steps:
            found = step()
            yield found
            if found.state == "fail":
                return
        yield self._clock()
        yield from self._inside()

    def _name(self) -> Found:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as wrong:
            do = f"Look at how {self.host} is spelled (--url, HOLDFAST_URL), and at DNS: getent hosts {self.host}"
            return Found(
                GROUP, "name", "fail", f"{self.host} leads nowhere: {getattr(wrong, 'strerror', '') or wrong}", do
            )
        return Found(GROUP, "name", "ok", f"{self.host} is {', '.join(sorted({str(f[4][0]) for f in found}))}")

    def _connection(self) -> Found:
        began = time.monotonic()
        at = f"{self.host}:{self.port}"
        try:
            socket.create_connection((self.host, self.port), STEP_S).close()
        except TimeoutError:
            do = (
                f"A firewall is in the way, or the machine is off: allow TCP {self.port}, look with `ping {self.host}`."
            )
            return Found(GROUP, "connection", "fail", f"{at} does not answer within {STEP_S:g} s", do)
        except ConnectionRefusedError:
            do = "Start it there: holdfast up; or correct the port (--url, HOLDFAST_URL)."
            return Found(GROUP, "connection", "fail", f"nothing listens at {at}", do)
        except OSError as wrong:
            do = f"Look at this machine's network: ip route get {self.host}"
            return Found(GROUP, "connection", "fail", f"{at} cannot be reached: {wrong.strerror or wrong}", do)
        return Found(GROUP, "connection", "ok", f"{at} in {spoken_ms(round((time.monotonic() - began) * 1000))}")

    def _certificate(self) -> Found:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # looked at here, trusted by nobody
        try:
            with (
                socket.create_connection((self.host, self.port), STEP_S) as plain,
                context.wrap_socket(plain, server_hostname=self.host) as secure,
            ):
                shown = secure.getpeercert(binary_form=True) or b""
        except (OSError, ssl.SSLError) as wrong:
            do = "Look at the port: is it the one of --http? On loopback an orchestrator speaks plain HTTP."
            return Found(
                GROUP, "certificate", "fail", f"no TLS is spoken there: {getattr(wrong, 'reason', '') or wrong}", do
            )
        pem = self.endpoint.certificate
        if not pem:
            return self._by_authorities()
        mark = hashlib.sha256(shown).hexdigest()[:16]
        with contextlib.suppress(ValueError):
            if ssl.PEM_cert_to_DER_cert(pem.strip()) == shown:
                return Found(GROUP, "certificate", "ok", f"the pinned one (sha256 {mark}…)")
        do = (
            "If it was set up anew, fetch its certificate.pem over a way you trust, and HOLDFAST_CERTIFICATE=FILE; "
            "if not, someone may stand in between: send nothing there."
        )
        return Found(GROUP, "certificate", "fail", f"another one than the pinned is shown (sha256 {mark}…)", do)

    def _by_authorities(self) -> Found:
        try:
            with (
                socket.create_connection((self.host, self.port), STEP_S) as plain,
                ssl.create_default_context().wrap_socket(plain, server_hostname=self.host),
            ):
                return Found(GROUP, "certificate", "ok", "an authority that this system trusts vouches for it")
        except (OSError, ssl.SSLError) as wrong:
            why = getattr(wrong, "verify_message", "") or str(wrong)
            do = "Pin it: HOLDFAST_CERTIFICATE=FILE with the orchestrator's certificate.pem."
            return Found(GROUP, "certificate", "fail", f"nobody that this system trusts vouches for it: {why}", do)

    def _answer(self) -> Found:
        began = time.monotonic()
        try:
            self.answered, _ = self._asked("/healthz")
            status = self.answered.status
        except TimeoutError:
            do = (
                "It takes connections and says nothing: frozen, swapping, or stopped (kill -STOP). On its machine: "
                "top, journalctl -u holdfast; then restart it: jobs go on meanwhile."
            )
            return Found(GROUP, "answer", "fail", f"no answer within {STEP_S:g} s", do)
        except (OSError, HTTPException) as wrong:
            do = "Something else may listen at that port: look at --url, and at who has it (ss -ltnp)."
            return Found(
                GROUP, "answer", "fail", f"what answers there speaks no HTTP: {wrong or type(wrong).__name__}", do
            )
        if status == 503:
            do = "Look at its store (disk, database) and its log; it takes work again by itself."
            return Found(GROUP, "answer", "fail", "it answers, but cannot decide anything now", do)
        if status != 200:
            do = "Look at --url or HOLDFAST_URL: this seems to be another program, or a proxy in front."
            return Found(GROUP, "answer", "fail", f"{self.endpoint.url}/healthz answers {status}", do)
        return Found(GROUP, "answer", "ok", f"in {spoken_ms(round((time.monotonic() - began) * 1000))}")

    def _token(self) -> Found:
        if not self.endpoint.token:
            do = "Give --token-file FILE or HOLDFAST_ADMIN_TOKEN: it is admin.token in the orchestrator's folder."
            return Found(GROUP, "token", "fail", "there is none", do)
        try:
            guarded(self.endpoint, self.host)
            status = self._asked("/v1/jobs?limit=1", self.endpoint.token)[0].status
        except Misconfigured as wrong:
            return Found(GROUP, "token", "fail", wrong.says, wrong.hint)
        except (OSError, HTTPException) as wrong:
            return Found(GROUP, "token", "fail", f"no answer to a question with it: {wrong}", "Run this again.")
        if status in (401, 403):
            do = "It may be another network's. Take admin.token from this orchestrator's folder: --token-file FILE."
            return Found(GROUP, "token", "fail", "it is not this orchestrator's", do)
        return Found(GROUP, "token", "ok", "it is accepted")

    def _asked(self, path: str, token: str = "") -> tuple[HTTPResponse, bytes]:
        """Over a connection that trusts nobody but the pinned certificate: the token goes along."""
        if isinstance(context := trust(self.endpoint), ssl.SSLContext):
            line: HTTPConnection = HTTPSConnection(self.host, self.port, timeout=STEP_S, context=context)
        elif self.secure:
            line = HTTPSConnection(self.host, self.port, timeout=STEP_S)
        else:
            line = HTTPConnection(self.host, self.port, timeout=STEP_S)
        with contextlib.closing(line):
            line.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = line.getresponse()
            return answer, answer.read(ANSWER_BYTES_MAX)

    def _clock(self) -> Found:
        said = self.answered.getheader("Date") if self.answered is not None else None
        try:
            there = parsedate_to_datetime(said or "").timestamp()
        except (TypeError, ValueError):
            return Found(GROUP, "clock", "ok", "it does not say what time it is there")
        apart = there - time.time()
        if abs(apart) <= SKEW_S:
            return Found(GROUP, "clock", "ok", "as here")
        which = "ahead of" if apart > 0 else "behind"
        says = f"its clock is {spoken_ms(round(abs(apart) * 1000))} {which} this one"
        return Found(GROUP, "clock", "warn", says, "timedatectl set-ntp true, on the machine that is wrong")

    # --- what it says ---

    def _inside(self) -> Iterator[Found]:
        from holdfast.client import Client
        from holdfast.errors import HoldfastError

        endpoint = self.endpoint
        try:
            with Client(endpoint.url, endpoint.token, certificate=endpoint.certificate, patience_s=STEP_S) as client:
                for finding in client.doctor().findings:
                    do = "" if finding.ok else "Look at its machine: df -h, its log, its database."
                    yield Found(GROUP, finding.name, "ok" if finding.ok else "fail", finding.says, do)
                nodes = list(client.nodes.list())
        except HoldfastError as wrong:
            yield Found(GROUP, "itself", "fail", wrong.says, wrong.hint)
            return
        yield _nodes(nodes)
        yield _versions(self._version(), nodes)

    def _version(self) -> str:
        """The orchestrator's; empty where it does not say."""
        try:
            _, body = self._asked("/schema/openapi.json", self.endpoint.token)
            return str(json.loads(body)["info"]["version"])
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            return ""


def _nodes(nodes: "Sequence[NodeView]") -> Found:
    if all(node.state == "gone" for node in nodes):
        return Found(
            GROUP, "nodes", "warn", "there are none: nothing can run", "holdfast token new gives a join command"
        )
    nodes = [node for node in nodes if node.state != "gone"]
    bad = [node for node in nodes if node.state in ("suspect", "quarantined", "lost")]
    aside = sum(node.draining or not node.connected for node in nodes if node not in bad)
    says = f"{len(nodes) - len(bad) - aside} of {counted(len(nodes), 'node')} can be given work"
    if aside:
        says += f"; {aside} drained, paused or not back yet"
    if not bad:
        do = "holdfast nodes says which, and who wants it so; holdfast node drain NODE --off takes one back"
        alone = aside == len(nodes)
        return Found(GROUP, "nodes", "warn" if alone else "ok", says, do if alone else "")
    named = ", ".join(f"{node.name or node.id} ({node.state}: {node.cause})" for node in bad[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return Found(
        GROUP, "nodes", "warn", f"{says}; not {named}{more}", "holdfast nodes; on that machine: holdfast doctor --node"
    )


def _versions(orchestrator: str, nodes: "Sequence[NodeView]") -> Found:
    here = holdfast.__version__
    there = [("the orchestrator", orchestrator), *((node.name or node.id, node.version) for node in nodes)]
    other = [(who, version) for who, version in there if version and version != here]
    if not other:
        return Found(GROUP, "versions", "ok", f"{here} everywhere")
    named = ", ".join(f"{who} has {version}" for who, version in other[:3])
    more = f", and {len(other) - 3} more" if len(other) > 3 else ""
    do = (
        "Releases that follow each other work together; upgrade one by one, each with the wheel of the newest: "
        "sh deploy/install.sh --wheel FILE, or pip install FILE"
    )
    return Found(GROUP, "versions", "warn", f"{here} here; {named}{more}", do)
