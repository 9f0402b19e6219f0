"""Checks the connection to the orchestrator step by step: name, connection, certificate, answer, token. If a step
fails, the rest is skipped. Then clocks, versions, and the orchestrator's own checks and nodes.
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
from holdfast.client.answers import trust
from holdfast.client.endpoint import guarded
from holdfast.diagnostics.findings import CheckResult
from holdfast.errors import Misconfigured
from holdfast.quantities import counted, spoken_ms

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.endpoint import Endpoint
    from holdfast.wire.http import NodeView

GROUP = "orchestrator"
STEP_S = 5.0
ANSWER_BYTES_MAX = 8 << 20
SKEW_S = 5.0
"""Clocks may differ by this much without a warning: dates in answers are whole seconds."""


class Reached:
    """The checks of one orchestrator."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self.endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.secure else 80)
        self.answered: HTTPResponse | None = None

    def examine(self) -> Iterator[CheckResult]:
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

    def _name(self) -> CheckResult:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as wrong:
            do = f"Check the spelling of {self.host} (--url, HOLDFAST_URL), and DNS: getent hosts {self.host}"
            return CheckResult(
                GROUP, "name", "fail", f"{self.host} cannot be resolved: {getattr(wrong, 'strerror', '') or wrong}", do
            )
        return CheckResult(GROUP, "name", "ok", f"{self.host} is {', '.join(sorted({str(f[4][0]) for f in found}))}")

    def _connection(self) -> CheckResult:
        began = time.monotonic()
        at = f"{self.host}:{self.port}"
        try:
            socket.create_connection((self.host, self.port), STEP_S).close()
        except TimeoutError:
            do = f"A firewall blocks it, or the machine is off: allow TCP {self.port}, try `ping {self.host}`."
            return CheckResult(GROUP, "connection", "fail", f"{at} did not answer within {STEP_S:g} s", do)
        except ConnectionRefusedError:
            do = "Start it there: holdfast up; or correct the port (--url, HOLDFAST_URL)."
            return CheckResult(GROUP, "connection", "fail", f"nothing listens at {at}", do)
        except OSError as wrong:
            do = f"Check this machine's network: ip route get {self.host}"
            return CheckResult(GROUP, "connection", "fail", f"{at} cannot be reached: {wrong.strerror or wrong}", do)
        return CheckResult(GROUP, "connection", "ok", f"{at} in {spoken_ms(round((time.monotonic() - began) * 1000))}")

    def _certificate(self) -> CheckResult:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only inspected here, not trusted
        try:
            with (
                socket.create_connection((self.host, self.port), STEP_S) as plain,
                context.wrap_socket(plain, server_hostname=self.host) as secure,
            ):
                shown = secure.getpeercert(binary_form=True) or b""
        except (OSError, ssl.SSLError) as wrong:
            do = "Check the port: is it the one of --http? On loopback an orchestrator speaks plain HTTP."
            return CheckResult(
                GROUP, "certificate", "fail", f"it does not speak TLS: {getattr(wrong, 'reason', '') or wrong}", do
            )
        pem = self.endpoint.certificate
        if not pem:
            return self._by_authorities()
        mark = hashlib.sha256(shown).hexdigest()[:16]
        with contextlib.suppress(ValueError):
            if ssl.PEM_cert_to_DER_cert(pem.strip()) == shown:
                return CheckResult(GROUP, "certificate", "ok", f"the pinned one (sha256 {mark}…)")
        do = (
            "If it was set up anew, copy its certificate.pem over a trusted channel and set HOLDFAST_CERTIFICATE=FILE; "
            "if not, someone may intercept the connection: send nothing there."
        )
        return CheckResult(GROUP, "certificate", "fail", f"not the pinned one (sha256 {mark}…)", do)

    def _by_authorities(self) -> CheckResult:
        try:
            with (
                socket.create_connection((self.host, self.port), STEP_S) as plain,
                ssl.create_default_context().wrap_socket(plain, server_hostname=self.host),
            ):
                return CheckResult(GROUP, "certificate", "ok", "signed by an authority that this system trusts")
        except (OSError, ssl.SSLError) as wrong:
            why = getattr(wrong, "verify_message", "") or str(wrong)
            do = "Pin it: HOLDFAST_CERTIFICATE=FILE with the orchestrator's certificate.pem."
            return CheckResult(
                GROUP, "certificate", "fail", f"not signed by an authority that this system trusts: {why}", do
            )

    def _answer(self) -> CheckResult:
        began = time.monotonic()
        try:
            self.answered, _ = self._asked("/healthz")
            status = self.answered.status
        except TimeoutError:
            do = (
                "It accepts connections but does not answer: frozen, swapping, or stopped (kill -STOP). On it: "
                "top, journalctl -u holdfast; then restart it: jobs continue meanwhile."
            )
            return CheckResult(GROUP, "answer", "fail", f"no answer within {STEP_S:g} s", do)
        except (OSError, HTTPException) as wrong:
            do = "Something else may listen at that port: check --url, and what listens there (ss -ltnp)."
            return CheckResult(
                GROUP, "answer", "fail", f"the server does not speak HTTP: {wrong or type(wrong).__name__}", do
            )
        if status == 503:
            do = "Check its store (disk, database) and its log; it recovers by itself."
            return CheckResult(GROUP, "answer", "fail", "it answers, but cannot decide anything now", do)
        if status != 200:
            do = "Check --url or HOLDFAST_URL: this seems to be another program, or a proxy in front."
            return CheckResult(GROUP, "answer", "fail", f"{self.endpoint.url}/healthz answers {status}", do)
        return CheckResult(GROUP, "answer", "ok", f"in {spoken_ms(round((time.monotonic() - began) * 1000))}")

    def _token(self) -> CheckResult:
        if not self.endpoint.token:
            do = "Give --token-file FILE, HOLDFAST_ACCESS_TOKEN, or HOLDFAST_ADMIN_TOKEN: the text of admin.token."
            return CheckResult(GROUP, "token", "fail", "there is none", do)
        try:
            guarded(self.endpoint, self.host)
            status = self._asked("/v1/jobs?limit=1", self.endpoint.token)[0].status
        except Misconfigured as wrong:
            return CheckResult(GROUP, "token", "fail", wrong.says, wrong.hint)
        except (OSError, HTTPException) as wrong:
            return CheckResult(GROUP, "token", "fail", f"no answer to a request with it: {wrong}", "Run this again.")
        if status == 401:
            do = "It belongs to another network, has expired or was revoked. Give another: --token-file FILE, such as "
            do += "admin.token from this orchestrator's folder."
            return CheckResult(GROUP, "token", "fail", "this orchestrator does not accept it", do)
        return CheckResult(GROUP, "token", "ok", "it is accepted")

    def _asked(self, path: str, token: str = "") -> tuple[HTTPResponse, bytes]:
        """Over a connection that trusts only the pinned certificate, because the token is sent."""
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

    def _clock(self) -> CheckResult:
        said = self.answered.getheader("Date") if self.answered is not None else None
        try:
            there = parsedate_to_datetime(said or "").timestamp()
        except (TypeError, ValueError):
            return CheckResult(GROUP, "clock", "ok", "its answer has no date")
        apart = there - time.time()
        if abs(apart) <= SKEW_S:
            return CheckResult(GROUP, "clock", "ok", "as here")
        which = "ahead of" if apart > 0 else "behind"
        says = f"its clock is {spoken_ms(round(abs(apart) * 1000))} {which} this one"
        return CheckResult(GROUP, "clock", "warn", says, "timedatectl set-ntp true, on the machine that is wrong")

    # --- the orchestrator's own checks ---

    def _inside(self) -> Iterator[CheckResult]:
        from holdfast.client import Client
        from holdfast.errors import HoldfastError

        endpoint = self.endpoint
        try:
            with Client(endpoint.url, endpoint.token, certificate=endpoint.certificate, patience_s=STEP_S) as client:
                yield from _own_checks(client)
                nodes = list(client.nodes.list())
        except HoldfastError as wrong:
            yield CheckResult(GROUP, "itself", "fail", wrong.says, wrong.hint)
            return
        yield _nodes(nodes)
        yield _versions(self._version(), nodes)

    def _version(self) -> str:
        """The orchestrator's version; empty if it does not report one."""
        try:
            _, body = self._asked("/schema/openapi.json", self.endpoint.token)
            return str(json.loads(body)["info"]["version"])
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            return ""


def _own_checks(client: "Client") -> "Iterator[CheckResult]":
    from holdfast.errors import NotAllowed

    try:
        findings = client.doctor().findings
    except NotAllowed as refused:
        if refused.code != "forbidden":
            raise
        yield CheckResult(GROUP, "itself", "ok", "its own checks were left out: they need a network operator's token")
        return
    for finding in findings:
        do = "" if finding.ok else "Check its machine: df -h, its log, its database."
        yield CheckResult(GROUP, finding.name, "ok" if finding.ok else "fail", finding.says, do)


def _nodes(nodes: "Sequence[NodeView]") -> CheckResult:
    if all(node.state == "gone" for node in nodes):
        return CheckResult(
            GROUP, "nodes", "warn", "there are none: nothing can run", "holdfast token new gives a join command"
        )
    nodes = [node for node in nodes if node.state != "gone"]
    bad = [node for node in nodes if node.state in ("suspect", "quarantined", "lost")]
    aside = sum(node.draining or not node.connected for node in nodes if node not in bad)
    says = f"{len(nodes) - len(bad) - aside} of {counted(len(nodes), 'node')} can be given work"
    if aside:
        says += f"; {aside} drained, paused or not connected"
    if not bad:
        do = "holdfast nodes shows which, and who drained it; holdfast node drain NODE --off undoes it"
        alone = aside == len(nodes)
        return CheckResult(GROUP, "nodes", "warn" if alone else "ok", says, do if alone else "")
    named = ", ".join(f"{node.title} ({node.state}: {node.cause})" for node in bad[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return CheckResult(
        GROUP, "nodes", "warn", f"{says}; not {named}{more}", "holdfast nodes; on that machine: holdfast doctor --node"
    )


def _versions(orchestrator: str, nodes: "Sequence[NodeView]") -> CheckResult:
    here = holdfast.__version__
    there = [("the orchestrator", orchestrator), *((node.title, node.version) for node in nodes)]
    other = [(who, version) for who, version in there if version and version != here]
    if not other:
        return CheckResult(GROUP, "versions", "ok", f"{here} everywhere")
    named = ", ".join(f"{who} has {version}" for who, version in other[:3])
    more = f", and {len(other) - 3} more" if len(other) > 3 else ""
    do = (
        "Consecutive releases work together; upgrade one by one, each with the wheel of the newest: "
        "sh deploy/install.sh --wheel FILE, or pip install FILE"
    )
    return CheckResult(GROUP, "versions", "warn", f"{here} here; {named}{more}", do)
