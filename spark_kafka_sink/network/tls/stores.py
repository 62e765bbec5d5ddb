"""Files with keys and certificates, as ssl.keystore.* and ssl.truststore.* name them: what a file is, and what is in it.

PEM files and PEM texts need no package; PKCS12 stores need `cryptography` (extra `pkcs12`). Only Java can read JKS stores, and
the error explains how to convert them. ssl_context.py gives their content to Python.
Laws: the content of a file decides what it is; an ssl.….type that is set must agree with it. Every error names the option
and never quotes the content of a store or its password.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from spark_kafka_sink.config.producer_config import ProducerConfig

MAX_STORE_BYTES = 16 * 1024 * 1024  # a truststore of all public certificate authorities has 250 KB


class StoreFormat(Enum):
    """What a file is, whatever its name. The values are those of ssl.keystore.type and ssl.truststore.type."""

    PEM = "PEM"
    PKCS12 = "PKCS12"
    JKS = "JKS"


def java_store_problem(prefix: str, location: str) -> str | None:
    """What is wrong if the file at `location` is a store that only Java can read; else None, also if the file cannot be read.

    Args:
        prefix: ssl.keystore or ssl.truststore.
    """
    try:
        with Path(location).open("rb") as file:
            beginning = Secret(file.read(4).decode("latin-1"))
    except OSError:
        return None
    return _java_store_text(prefix, location) if _format_of(beginning) is StoreFormat.JKS else None


def _java_store_text(prefix: str, location: str) -> str:
    return f"{prefix}.location={location} is a JKS store, which only Java can read; {_conversion(prefix, location)}"


def read_store(prefix: str, location: str, config: ProducerConfig) -> tuple[StoreFormat, Secret]:
    """What the file is, PEM or PKCS12, and its bytes as latin-1.

    Args:
        prefix: ssl.keystore or ssl.truststore.

    Raises:
        ConfigError: the file cannot be read, is larger than MAX_STORE_BYTES, is not what ssl.….type says, or only Java reads it.
    """
    option = f"{prefix}.location={location}"
    content = _read(option, location)
    store_format = _format_of(content)
    if store_format is None:
        raise ConfigError(f"{option} is {_other_form(content, location) or 'neither a PEM file nor a PKCS12 store'}")
    if store_format is StoreFormat.JKS:
        raise ConfigError(_java_store_text(prefix, location))
    # Kafka's default, JKS, does not count: Java reads PKCS12 under that name too.
    name, option_type = store_format.value, getattr(config, f"{prefix}.type".replace(".", "_"))
    if f"{prefix}.type" in config.given_keys and (store_format is StoreFormat.PEM) != (option_type == "PEM"):
        raise ConfigError(f"{option} is {name}, but {prefix}.type={option_type}; set it to {name}, or remove it")
    return store_format, content


def _read(option: str, location: str) -> Secret:
    try:
        with Path(location).open("rb") as file:
            content = Secret(file.read(MAX_STORE_BYTES + 1).decode("latin-1"))
    except FileNotFoundError as error:
        directory_hint = "" if os.path.isabs(location) else f" in the working directory {os.getcwd()}"
        raise ConfigError(f"{option}: there is no such file{directory_hint}") from error
    except OSError as error:
        raise ConfigError(f"{option} cannot be read: {error.strerror or error}") from error
    if len(content.reveal()) > MAX_STORE_BYTES:
        raise ConfigError(f"{option} is larger than {MAX_STORE_BYTES:,} bytes: it is not a keystore or truststore")
    return content


def _format_of(content: Secret) -> StoreFormat | None:
    if content.reveal().startswith(("\xfe\xed\xfe\xed", "\xce\xce\xce\xce")):  # JKS and JCEKS
        return StoreFormat.JKS
    if "-----BEGIN" in content.reveal():
        return StoreFormat.PEM
    is_sequence = content.reveal().startswith("\x30")  # of ASN.1, as all that has the form DER
    return StoreFormat.PKCS12 if is_sequence and not _other_form(content, "") else None


# The beginning of a sequence in DER, and of what it contains: a number, the name of an algorithm, or another sequence.
_LENGTH = r"(?:[\x00-\x80]|\x81.|\x82..|\x83...)"
_DER = re.compile(rf"\x30{_LENGTH}(?:\x02\x01(?P<version>.)|(?P<name>\x06)|\x30{_LENGTH}(?P<inner>.))", re.DOTALL)


def _other_form(content: Secret, location: str) -> str:
    """What a file is that is neither PEM nor a store, and the command that converts it. Empty if it may be a PKCS12 store."""
    file, pem = shlex.quote(location), _converted(location)
    if content.reveal().startswith(("\xff\xfe", "\xfe\xff")):
        return f"text in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8 {file} > {pem}"
    match = _DER.match(content.reveal())
    if match is None:
        return ""
    if match["inner"] in ("\xa0", "\x02"):
        return f"a certificate in DER form; convert it with: openssl x509 -inform der -in {file} -out {pem}"
    if match["name"]:
        return f"a PKCS7 file; convert it with: openssl pkcs7 -inform der -print_certs -in {file} -out {pem}"
    if match["inner"] == "\x06" or match["version"] in ("\x00", "\x01"):
        return (
            f"a private key in DER form; convert it with: openssl pkey -inform der -in {file} -out {pem}, and append its"
            " certificate, also in PEM form"
        )
    return ""


def _conversion(prefix: str, location: str) -> str:
    """How to convert a Java store to PEM, with the tools that come with Java and OpenSSL."""
    file, stem = shlex.quote(location), os.path.splitext(location)[0]
    pem, pkcs12 = shlex.quote(stem + ".pem"), shlex.quote(stem + ".p12")
    if prefix == "ssl.truststore":
        return f"convert it with: keytool -list -rfc -keystore {file} > {pem}"
    return (
        f"convert it with: keytool -importkeystore -srckeystore {file} -destkeystore {pkcs12} -deststoretype PKCS12 &&"
        f" openssl pkcs12 -in {pkcs12} -out {pem} (its new password is then ssl.key.password)"
    )


# PEM. As lenient as Java: text around the blocks, and blocks on a single line. These functions do not raise, since a traceback
# may print the locals of their frames.

# The line before or after a block, with one dash on each side. A pattern for a whole block would take quadratic time.
_MARK = re.compile(r"-\s*(BEGIN|END)\s+([A-Z0-9]+(?: [A-Z0-9]+)*)\s*-")


def pem_certificates(pem: Secret) -> list[str]:
    """The certificates in a PEM text, each a PEM text of its own."""
    return [_pem_block("CERTIFICATE", body) for label, body in _blocks(pem) if label in ("CERTIFICATE", "X509 CERTIFICATE")]


def pem_keys(pem: Secret) -> list[Secret]:
    """The private keys in a PEM text, encrypted ones included."""
    return [Secret(_pem_block(label, body)) for label, body in _blocks(pem) if label.endswith("PRIVATE KEY")]


def _blocks(pem: Secret) -> list[tuple[str, str]]:
    """Label and body of each block. A block without an end is left out, as Java does."""
    marks = [*_MARK.finditer(pem.reveal())]
    return [
        (begin_mark[2], begin_mark.string[begin_mark.end() : end_mark.start()].strip("-"))
        for begin_mark, end_mark in pairwise(marks)
        if (begin_mark[1], end_mark[1], begin_mark[2]) == ("BEGIN", "END", end_mark[2])
    ]


def _pem_block(label: str, body: str) -> str:
    """A block in the form that OpenSSL reads: lines of 64 characters; the headers of old encrypted keys stay."""
    headers = [line.strip() for line in body.splitlines() if ":" in line]
    base64 = "".join("".join(line.split()) for line in body.splitlines() if ":" not in line)
    lines = [base64[start : start + 64] for start in range(0, len(base64), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *headers, *([""] if headers else []), *lines, f"-----END {label}-----", ""])


def _converted(location: str) -> str:
    """A name for the PEM file that a command converts another file to, as a shell takes it."""
    stem, extension = os.path.splitext(location)
    return shlex.quote(stem + ("-converted.pem" if extension == ".pem" else ".pem"))


# What else may stand in a PEM text, and what to do.
_OTHER_BLOCKS = {
    "TRUSTED CERTIFICATE": "a form of OpenSSL's own: convert it with: openssl x509 -in {file} -out {new_file}",
    "PKCS7": "a collection of certificates: convert it with: openssl pkcs7 -print_certs -in {file} -out {new_file}",
    "CERTIFICATE REQUEST": "which an authority answers with a certificate",
    "OPENSSH PRIVATE KEY": "a form of SSH's own: convert a copy with: ssh-keygen -p -m PKCS8 -f {file}",
}
# Names in DER of ways to encrypt a key that OpenSSL 3 has in its legacy provider alone, by their names there.
_PKCS5, _PKCS12 = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05", b"\x06\x0a\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x01"
_LEGACY_ENCRYPTIONS = {
    _PKCS5 + b"\x01": "PBE-MD2-DES",
    _PKCS5 + b"\x03": "PBE-MD5-DES",
    _PKCS5 + b"\x04": "PBE-MD2-RC2-64",
    _PKCS5 + b"\x06": "PBE-MD5-RC2-64",
    _PKCS5 + b"\x0a": "PBE-SHA1-DES",
    _PKCS5 + b"\x0b": "PBE-SHA1-RC2-64",
    _PKCS12 + b"\x01": "PBE-SHA1-RC4-128",
    _PKCS12 + b"\x02": "PBE-SHA1-RC4-40",
    _PKCS12 + b"\x05": "PBE-SHA1-RC2-128",
    _PKCS12 + b"\x06": "PBE-SHA1-RC2-40",
    b"\x06\x05\x2b\x0e\x03\x02\x07": "DES",
}


def other_pem_form(pem: Secret, location: str | None) -> str:
    """What a PEM text is that cannot be used as it is, and how to convert it, to be appended to an error. Empty if not known.

    Args:
        pem: the text.
        location: the file that it stands in, if any.
    """
    file = "FILE" if location is None else shlex.quote(location)
    new_file = "FILE.pem" if location is None else _converted(location)
    blocks = _blocks(pem)
    if any("\\n" in body for _, body in blocks):
        how = (
            'as text.replace("\\\\n", "\\n") does in Python'
            if location is None
            else f"with: printf '%b' \"$(cat {file})\" > {new_file}"
        )
        return f". Its line breaks are written as \\n, two characters each: convert it {how}"
    for label, body in blocks:
        encryption = _legacy_encryption(label, body)
        if encryption is not None:
            command = f"openssl pkey -provider legacy -provider default -in {file} | openssl pkcs8 -topk8 -out {new_file}"
            return (
                f". Its private key is encrypted by {encryption}, which OpenSSL 3 reads with its legacy provider only: convert it"
                f" with: {command}, and append the certificates"
            )
    other_label = next((label for label, _ in blocks if label in _OTHER_BLOCKS), None)
    if other_label is None:
        return ""
    return f". It holds {other_label}, {_OTHER_BLOCKS[other_label].format(file=file, new_file=new_file)}"


def _legacy_encryption(label: str, body: str) -> str | None:
    """The encryption of a private key if only OpenSSL's legacy provider has it."""
    if "DEK-Info: DES-CBC," in body or "DEK-Info: RC2" in body:
        return "DES" if "DES-CBC," in body else "RC2"
    if label != "ENCRYPTED PRIVATE KEY":
        return None
    beginning = "".join(body.split())[:200]
    try:
        names = base64.b64decode(beginning, validate=True)
    except ValueError:
        return None
    return next((encryption for name, encryption in _LEGACY_ENCRYPTIONS.items() if name in names), None)


# PKCS12


class Pkcs12(NamedTuple):
    """What is in a PKCS12 store, as PEM texts. A truststore's key is left out."""

    key: Secret | None
    certificates: list[str]  # with a key: the one for the key first, then its issuers in order


def open_pkcs12(prefix: str, location: str, content: Secret, password: Secret | None) -> Pkcs12:
    """Read a PKCS12 store.

    Args:
        prefix: ssl.keystore or ssl.truststore.
        content: as `read_store` returns it.

    Raises:
        ConfigError: it is not a PKCS12 store, the password is missing or wrong, or the package `cryptography` is not installed.
    """
    option = f"{prefix}.location={location}"
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise ConfigError(
            f"{option} is a PKCS12 store; to read it: pip install cryptography (on the executors too), or"
            f" {_conversion_of_pkcs12(prefix, location)}"
        ) from error
    data = SecretBytes(content.reveal().encode("latin-1"))
    try:
        try:
            store = pkcs12.load_pkcs12(data, None if password is None else SecretBytes(password.reveal().encode("utf-8")))
        except ValueError:
            store = pkcs12.load_pkcs12(data, None)  # as Java, which ignores the password of a store that has none
    except (ValueError, TypeError) as error:  # the library's error does not tell a wrong password from a wrong format
        cause = f"{prefix}.password may be wrong" if password is not None else f"{prefix}.password is not set"
        raise ConfigError(f"{option} cannot be opened: {cause}, or it is not a PKCS12 store") from error
    other_certificates = [each.certificate for each in store.additional_certs]
    if store.cert is None or store.key is None:
        return Pkcs12(None, [_pem_of(certificate) for certificate in other_certificates])
    own_certificate = store.cert.certificate
    if prefix == "ssl.truststore":  # as in Java, an entry with a key is trusted by its own certificate
        return Pkcs12(None, [_pem_of(certificate) for certificate in [own_certificate, *other_certificates]])
    return Pkcs12(_pem_of_key(store.key), [_pem_of(certificate) for certificate in _chain(own_certificate, other_certificates)])


def _conversion_of_pkcs12(prefix: str, location: str) -> str:
    file, pem = shlex.quote(location), shlex.quote(os.path.splitext(location)[0] + ".pem")
    if prefix == "ssl.truststore":
        return f"convert it with: openssl pkcs12 -in {file} -nokeys -out {pem}"
    return f"convert it with: openssl pkcs12 -in {file} -out {pem} (its new password is then ssl.key.password)"


def _chain(own_certificate: x509.Certificate, other_certificates: list[x509.Certificate]) -> list[x509.Certificate]:
    """A certificate, its issuer, the issuer's issuer, …, as far as `other_certificates` has them."""
    certificates_by_subject = {certificate.subject: certificate for certificate in other_certificates}
    chain = [own_certificate]
    while (issuer := certificates_by_subject.pop(chain[-1].issuer, None)) is not None:
        chain.append(issuer)
    return chain


def _pem_of(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _pem_of_key(key: PrivateKeyTypes) -> Secret:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"))
