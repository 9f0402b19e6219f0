"""One certificate, made once, trusted by its hash and by nothing else."""

import datetime
import ipaddress
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from holdfast.errors import Misconfigured, Unreachable, Untrusted
from holdfast.identity import certificates
from holdfast.identity.certificates import Certificate, fetch_pinned, https_context, needs_tls, pin_of

pytestmark = pytest.mark.spec("N1", "N6")


@contextmanager
def listening(serve) -> Iterator[int]:
    """A port on which `serve(connection)` answers each caller, until the block is left."""
    listener = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def tls_server(certificate: Certificate, received: list[bytes]):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_path, certificate.key_path)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            received.append(secure.recv(1024))
            secure.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    return serve


def test_the_certificate_is_made_once_and_kept_whatever_the_hosts(tmp_path: Path) -> None:
    first = Certificate.load_or_make(tmp_path, ["10.0.0.7", "node.example"])
    again = Certificate.load_or_make(tmp_path, ["10.0.0.8"])
    assert (again.pin, again.pem) == (first.pin, first.pem)
    assert stat.S_IMODE(first.key_path.stat().st_mode) == 0o600
    assert "PRIVATE" not in repr(first)


def test_the_certificate_names_its_hosts_and_does_not_run_out(tmp_path: Path) -> None:
    made = x509.load_pem_x509_certificate(
        Certificate.load_or_make(tmp_path, ["10.0.0.7", "[fe80::1]", "node.example"]).pem
    )
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"holdfast", "localhost", "node.example"} == set(names.get_values_for_type(x509.DNSName))
    assert {ipaddress.ip_address("10.0.0.7"), ipaddress.ip_address("fe80::1")} < set(
        names.get_values_for_type(x509.IPAddress)
    )
    assert made.not_valid_before_utc < datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    assert made.not_valid_after_utc.year == 9999
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_crash_between_key_and_certificate_is_made_good(tmp_path: Path) -> None:
    made = Certificate.load_or_make(tmp_path)
    made.cert_path.unlink()
    remade = Certificate.load_or_make(tmp_path)
    assert remade.key_pem == made.key_pem and remade.pin != made.pin


def test_a_certificate_of_another_key_is_refused(tmp_path: Path) -> None:
    one, two = Certificate.load_or_make(tmp_path / "1"), Certificate.load_or_make(tmp_path / "2")
    one.cert_path.write_bytes(two.pem)
    with pytest.raises(Misconfigured, match="does not belong"):
        Certificate.load_or_make(tmp_path / "1")


@pytest.mark.parametrize("name", ["certificate.key", "certificate.pem"])
def test_a_damaged_file_is_named_and_never_replaced(tmp_path: Path, name: str) -> None:
    Certificate.load_or_make(tmp_path)
    (tmp_path / name).write_bytes(b"junk")
    with pytest.raises(Misconfigured, match=name) as refused:
        Certificate.load_or_make(tmp_path)
    assert refused.value.code == "bad_certificate"
    assert (tmp_path / name).read_bytes() == b"junk"


def test_a_host_that_cannot_stand_in_a_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="höst"):
        Certificate.load_or_make(tmp_path, ["höst.example"])


def test_the_right_pin_gives_the_certificate(tmp_path: Path) -> None:
    certificate = Certificate.load_or_make(tmp_path)
    with listening(tls_server(certificate, [])) as port:
        pem = fetch_pinned("127.0.0.1", port, certificate.pin.upper(), timeout_s=10)
    assert pin_of(pem) == certificate.pin


def test_a_wrong_pin_is_refused_and_the_stranger_learns_nothing(tmp_path: Path) -> None:
    certificate = Certificate.load_or_make(tmp_path)
    received: list[bytes] = []
    with listening(tls_server(certificate, received)) as port, pytest.raises(Untrusted) as refused:
        fetch_pinned("127.0.0.1", port, "00" * 32, timeout_s=10)
    assert refused.value.code == "pin_mismatch"
    assert b"".join(received) == b""


@pytest.mark.parametrize("pin", ["", "00", "not hex at all"])
def test_a_pin_that_is_no_pin_trusts_nobody(tmp_path: Path, pin: str) -> None:
    certificate = Certificate.load_or_make(tmp_path)
    with listening(tls_server(certificate, [])) as port, pytest.raises(Untrusted):
        fetch_pinned("127.0.0.1", port, pin, timeout_s=10)


def test_something_else_on_the_port_is_told_apart_from_nothing() -> None:
    with listening(lambda c: c.sendall(b"220 mail.example ESMTP\r\n" * 40)) as port, pytest.raises(Untrusted) as other:
        fetch_pinned("127.0.0.1", port, "00" * 32, timeout_s=10)
    assert other.value.code == "not_tls"
    with socket.socket() as nobody:  # bound, so that no neighbour takes the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(Unreachable, match=str(port)):
            fetch_pinned("127.0.0.1", port, "00" * 32, timeout_s=10)
    with pytest.raises(Unreachable):
        fetch_pinned("a" * 70 + ".example", 1, "00" * 32, timeout_s=1)


def test_a_port_that_never_speaks_is_given_up_in_time() -> None:
    with (
        listening(lambda c: c.recv(1 << 16) and c.recv(1 << 16)) as port,
        pytest.raises(Unreachable, match="timed out"),
    ):
        fetch_pinned("127.0.0.1", port, "00" * 32, timeout_s=0.3)


def test_https_trusts_this_certificate_at_any_address_and_no_other(tmp_path: Path) -> None:
    own, other = Certificate.load_or_make(tmp_path / "1"), Certificate.load_or_make(tmp_path / "2")

    def ask(context: ssl.SSLContext, port: int, name: str) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
        ):
            secure.sendall(b"GET /")
            return secure.recv(100)

    with listening(tls_server(own, [])) as port:
        assert b"204" in ask(https_context(own.pem), port, "unknown.example")
        strict = https_context(own.pem.decode())
        strict.verify_flags |= ssl.VERIFY_X509_STRICT
        assert b"204" in ask(strict, port, "unknown.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(https_context(other.pem), port, "localhost")


@pytest.mark.parametrize("pem", [b"", b"junk", b"\xff\xfe"])
def test_https_with_no_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(Misconfigured):
        https_context(pem)


@pytest.mark.parametrize(
    ("host", "needed"),
    [
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("[::1]", False),
        ("localhost", False),
        ("LOCALHOST", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("localhost.example", True),
        ("node.example", True),
        ("", True),
    ],
)
def test_tls_is_the_default_for_anything_but_loopback(host: str, needed: bool) -> None:
    assert needs_tls(host) is needed


def test_the_name_in_the_certificate_is_the_one_that_grpc_is_told(tmp_path: Path) -> None:
    pem = Certificate.load_or_make(tmp_path).pem
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert certificates.SERVER_NAME in names.value.get_values_for_type(x509.DNSName)
