"""Certificate authorities and the certificates they issue, made anew for a test: nothing in the repository ever expires.

    authority = Authority("ca")
    broker = authority.issue("broker")                       # for localhost, 127.0.0.1 and ::1
    context = broker.server_context(clients=authority)       # asks clients for a certificate of this authority

Keys are of elliptic curves: making one takes no time.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jobs.java import find_java

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
DAY = datetime.timedelta(days=1)
KEYTOOL_TIMEOUT_S = 60


@dataclass(frozen=True)
class Certificate:
    """One certificate with its key and its issuers, itself first."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...]

    @property
    def pem(self) -> str:
        """The certificate alone."""
        return _pem(self.chain[:1])

    @property
    def chain_pem(self) -> str:
        """Without the root, as servers send it."""
        return _pem(self.chain[:-1] or self.chain)

    def key_pem(self, password: str | None = None, format: PrivateFormat = PrivateFormat.PKCS8) -> str:
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, format, encryption).decode()

    def pkcs12(self, password: str | None) -> bytes:
        """A keystore, the chain in no good order."""
        others = list(reversed(self.chain[1:]))
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"me", self.key, self.chain[0], others, encryption)

    def server_context(self, clients: Certificate | None = None) -> ssl.SSLContext:
        """For a server in a test; with `clients`, it asks for a certificate that these have issued."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.key_pem() + self.chain_pem)
            file.flush()
            context.load_cert_chain(file.name)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.pem)
        return context


class Authority(Certificate):
    """A root, or with `issuer` an authority below another."""

    def __init__(self, name: str, issuer: Authority | None = None) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, key, issuer).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        certificate = builder.sign(issuer.key if issuer else key, hashes.SHA256())
        super().__init__(key, (certificate, *(issuer.chain if issuer else ())))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = LOCAL_NAMES,
        expired: bool = False,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, key, self, expired=expired)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        return Certificate(key, (builder.sign(self.key, hashes.SHA256()), *self.chain))


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: Certificate | None, *, expired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    authority_key = (issuer.key if issuer else key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.chain[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now - DAY if expired else now + DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def keytool_truststore(authority: Certificate, file: Path, password: str, store_type: str = "PKCS12", *flags: str) -> Path:
    """A truststore as Java's keytool writes it. `flags` are the JVM's, as -J-Dkeystore.pkcs12.legacy=true."""
    pem = file.with_suffix(".keytool.pem")
    pem.write_text(authority.pem)
    command = [*flags, "-importcert", "-noprompt", "-alias", "ca", "-file", str(pem), "-keystore", str(file)]
    _keytool(*command, "-storetype", store_type, "-storepass", password)
    return file


def keytool_keystore(file: Path, password: str, store_type: str = "PKCS12", *flags: str) -> Path:
    """A keystore with a key of its own, as Java's keytool makes it."""
    command = [*flags, "-genkeypair", "-alias", "me", "-keyalg", "EC", "-dname", "CN=me", "-keystore", str(file)]
    _keytool(*command, "-storetype", store_type, "-storepass", password, "-keypass", password)
    return file


def _keytool(*command: str) -> None:
    keytool = find_java().with_name("keytool")
    subprocess.run([keytool, *command], check=True, capture_output=True, timeout=KEYTOOL_TIMEOUT_S)
