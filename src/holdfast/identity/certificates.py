"""The orchestrator's certificate: generated once, self-signed, and trusted by its SHA-256.

There is no certificate authority: a node trusts exactly the certificate whose hash is in its join token. Names and
dates in it carry no trust. So the name is always the same (`SERVER_NAME`, because gRPC requires one), and the validity
is unlimited: a machine with a dead clock battery can still join.

TLS is the default for anything but loopback (`needs_tls`). Blocking; call from a thread where a loop runs.
"""

import datetime
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import grpc
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.errors import Misconfigured, Unreachable, Untrusted
from holdfast.identity import private_files

SERVER_NAME = "holdfast"
"""The name in every certificate, whatever the address."""
_NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280's value for no expiry."""


class Certificate(msgspec.Struct, frozen=True):
    """The orchestrator's own certificate. `key_pem` is secret."""

    pem: bytes
    key_pem: bytes
    pin: str
    """SHA-256 of the certificate's DER form, in hex."""
    cert_path: Path
    key_path: Path

    @staticmethod
    def load_or_make(folder: Path, hosts: Iterable[str] = ()) -> "Certificate":
        """`certificate.pem` and `certificate.key` in the folder; generated at the first start for `hosts`.

        Later starts keep them even if the hosts change: a new certificate would lock out every node that pinned the old
        one.
        """
        cert_path, key_path = folder / "certificate.pem", folder / "certificate.key"
        # The key first: after a crash between the two, the certificate is generated for the existing key.
        key_pem = private_files.make_once(key_path, "certificate key", _new_key_pem)
        try:
            key = load_pem_private_key(key_pem, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise _unusable(key_path, "holds no elliptic-curve key")
        pem = private_files.make_once(cert_path, "certificate", lambda: _self_signed(key, hosts), secret=False)
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except ValueError:
            raise _unusable(cert_path, "holds no certificate") from None
        if public != key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
            raise _unusable(cert_path, f"does not belong to {key_path}")
        return Certificate(pem, key_pem, pin_of(pem), cert_path, key_path)

    def __repr__(self) -> str:
        return f"Certificate({self.pin})"


def pin_of(pem: bytes | str) -> str:
    """SHA-256 of a PEM certificate's DER form, in lower-case hex."""
    text = pem if isinstance(pem, str) else pem.decode("ascii", "replace")
    return sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


def fetch_pinned(host: str, port: int, pin: str, timeout_s: float = 10.0) -> bytes:
    """The PEM of the certificate at an address, if it is the pinned one; to be used as gRPC's only root.

    Only a TLS handshake: nothing is sent, so an attacker on the port learns nothing. The handshake proves that the peer
    holds the key, and the calls that follow accept only this certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # No authority and no name is checked: the comparison with the pin below is the whole check.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2", "http/1.1"])
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            plain.settimeout(timeout_s)
            with context.wrap_socket(plain, server_hostname=SERVER_NAME) as secure:
                der = secure.getpeercert(binary_form=True)
    except ssl.SSLError:
        raise Untrusted(
            f"the server at {where} does not speak TLS like an orchestrator",
            hint="Check address and port; a plain (loopback) orchestrator hands out tokens without a pin.",
            code="not_tls",
        ) from None
    except (OSError, UnicodeError) as cause:
        raise Unreachable(
            f"no orchestrator can be reached at {where}: {getattr(cause, 'strerror', None) or cause}",
            hint="Check address and port, and whether the orchestrator runs.",
        ) from None
    if der is None or not hmac.compare_digest(sha256(der).hexdigest(), pin.lower()):
        raise Untrusted(
            f"the orchestrator at {where} shows another certificate than the one the token pins",
            hint="The address is wrong, or someone intercepts the connection, or the orchestrator was set up anew: "
            "ask its operator for a new token. No secret was sent.",
            code="pin_mismatch",
        )
    return ssl.DER_cert_to_PEM_cert(der).encode()


def server_credentials(certificate: Certificate) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(certificate.key_pem, certificate.pem)])


def client_credentials(pem: bytes) -> grpc.ChannelCredentials:
    """Trusts only this certificate. To be used with `wire.limits.client_options(SERVER_NAME)`."""
    return grpc.ssl_channel_credentials(root_certificates=pem)


def https_context(pem: bytes | str) -> ssl.SSLContext:
    """For HTTPS clients: trusts only this certificate, at any address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate itself is trusted; the address may have been unknown when it was generated.
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=pem if isinstance(pem, str) else pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError, TypeError):
        raise Misconfigured(
            "the given certificate is not a PEM certificate",
            hint="Use the orchestrator's certificate.pem.",
            code="bad_certificate",
        ) from None
    return context


def needs_tls(host: str) -> bool:
    """True for every address except loopback. A name other than `localhost` may resolve to anything: it needs TLS."""
    bare = host.strip("[]").lower()
    if bare == "localhost":
        return False
    try:
        return not ipaddress.ip_address(bare.partition("%")[0]).is_loopback
    except ValueError:
        return True


def _new_key_pem() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _self_signed(key: ec.EllipticCurvePrivateKey, hosts: Iterable[str]) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        # Not a certificate authority: its key can sign for no other certificate.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([SERVER_NAME, "localhost", "127.0.0.1", "::1", *hosts]):
        bare = host.strip("[]")
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(bare)))
        except ValueError:
            try:
                names.append(x509.DNSName(bare))
            except ValueError:
                raise Misconfigured(
                    f"{host!r} cannot be used in a certificate",
                    hint="Give host names in ASCII (punycode) or addresses.",
                    code="bad_host",
                ) from None
    return names


def _unusable(path: Path, why: str) -> Misconfigured:
    return Misconfigured(
        f"{path} {why}",
        hint="Restore it from a copy. Deleting both files makes a new one, and all nodes need new tokens.",
        code="bad_certificate",
    )
