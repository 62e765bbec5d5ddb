"""network/tls/stores.py: what is said of a file in a form that has to be converted, and that the command for it works."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls.ssl_context import client_context
from tests.fakes.certificates import Authority, Certificate
from tests.fakes.network_config import network_config

CANARY = "hunter2-canary"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


def context_of(**options: object) -> ssl.SSLContext:
    return client_context(network_config(security_protocol="SSL", **options))


def problem(**options: object) -> str:
    with pytest.raises(ConfigError) as raised:
        context_of(**options)
    assert CANARY not in raised.value.message
    return raised.value.message


def run_conversion(message: str) -> None:
    """Run the command that an error shows, as it stands."""
    command = message.partition("convert it with: ")[2].partition(", and append")[0]
    subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=True, timeout=60, capture_output=True)


def as_der(pem: str, folder: Path) -> Path:
    (folder / "ca.crt").write_bytes(ssl.PEM_cert_to_DER_cert(pem))
    return folder / "ca.crt"


def as_a_trusted_certificate(pem: str, folder: Path) -> Path:
    (folder / "plain").write_text(pem)
    command = ["openssl", "x509", "-trustout", "-in", str(folder / "plain"), "-out", str(folder / "my ca.pem")]
    subprocess.run(command, check=True, timeout=60)
    return folder / "my ca.pem"


def as_pkcs7(pem: str, folder: Path) -> Path:
    (folder / "plain").write_text(pem)
    command = ["openssl", "crl2pkcs7", "-nocrl", "-certfile", str(folder / "plain"), "-out", str(folder / "ca.p7b")]
    subprocess.run(command, check=True, timeout=60)
    return folder / "ca.p7b"


def as_pkcs7_in_der(pem: str, folder: Path) -> Path:
    (folder / "plain").write_text(pem)
    command = ["openssl", "crl2pkcs7", "-nocrl", "-certfile", str(folder / "plain"), "-outform", "der", "-out"]
    subprocess.run([*command, str(folder / "ca.p7b")], check=True, timeout=60)
    return folder / "ca.p7b"


def with_literal_line_breaks(pem: str, folder: Path) -> Path:
    (folder / "ca.pem").write_text(pem.replace("\n", "\\n"))
    return folder / "ca.pem"


def in_utf_16(pem: str, folder: Path) -> Path:
    (folder / "ca.pem").write_text(pem, encoding="utf-16")
    return folder / "ca.pem"


@needs_openssl
@pytest.mark.parametrize(
    ("write", "form"),
    [
        (as_der, "is a certificate in DER form"),
        (as_a_trusted_certificate, "there is no certificate in it. It holds TRUSTED CERTIFICATE, a form of OpenSSL's own"),
        (as_pkcs7, "there is no certificate in it. It holds PKCS7, a collection of certificates"),
        (as_pkcs7_in_der, "is a PKCS7 file"),
        (with_literal_line_breaks, "a certificate in it is malformed. Its line breaks are written as \\n, two characters each"),
        (in_utf_16, "is text in UTF-16"),
    ],
)
def test_a_truststore_in_another_form_is_told_with_the_command_that_converts_it(
    write: Callable[[str, Path], Path], form: str, authority: Authority, tmp_path: Path
) -> None:
    """A certificate in DER was "cannot be opened: ssl.truststore.password is not set, or it is not a PKCS12 store", a trusted
    one "there is no certificate in it"."""
    file = write(authority.pem, tmp_path)
    message = problem(ssl_truststore_location=str(file))
    assert form in message
    run_conversion(message)
    (new_file,) = set(tmp_path.glob("*.pem")) - {file}
    assert context_of(ssl_truststore_location=str(new_file)).get_ca_certs()


def test_a_store_with_a_byte_order_mark_is_read(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(authority.pem, encoding="utf-8-sig")
    assert context_of(ssl_truststore_location=str(tmp_path / "ca.pem")).get_ca_certs()


def test_texts_with_literal_line_breaks_are_told(me: Certificate) -> None:
    """As they come from JSON or from an environment variable. The error was "malformed, or too weak for OpenSSL"."""
    chain, key = me.chain_pem.replace("\n", "\\n"), me.key_pem().replace("\n", "\\n")
    remedy = 'Its line breaks are written as \\n, two characters each: convert it as text.replace("\\\\n", "\\n") does in Python'
    assert remedy in problem(ssl_truststore_certificates=chain)
    assert remedy in problem(ssl_keystore_key=key, ssl_keystore_certificate_chain=me.chain_pem)
    assert remedy in problem(ssl_keystore_key=me.key_pem(), ssl_keystore_certificate_chain=chain)


OLD_ENCRYPTIONS = {
    "PBE-MD5-DES": ["pkcs8", "-topk8", "-v1", "PBE-MD5-DES"],
    "PBE-SHA1-RC2-40": ["pkcs8", "-topk8", "-v1", "PBE-SHA1-RC2-40"],
    "DES": ["pkcs8", "-topk8", "-v2", "des"],
    "DES in the traditional form": ["ec", "-des"],
}


@needs_openssl
@pytest.mark.parametrize("encryption", OLD_ENCRYPTIONS)
def test_a_key_of_an_old_encryption_is_told_with_the_command_that_converts_it(
    encryption: str, me: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the right password, the error was "ssl.key.password may be wrong"."""
    (tmp_path / "plain").write_text(me.key_pem())
    file, providers = tmp_path / "me.pem", ["-provider", "legacy", "-provider", "default"]
    command = ["openssl", *OLD_ENCRYPTIONS[encryption], *providers, "-in", str(tmp_path / "plain"), "-out", str(file)]
    subprocess.run([*command, "-passout", f"pass:{CANARY}"], check=True, timeout=60, capture_output=True)
    file.write_text(file.read_text() + me.chain_pem)
    message = problem(ssl_keystore_location=str(file), ssl_key_password=CANARY)
    name = encryption.partition(" ")[0]
    assert f"cannot be used. Its private key is encrypted by {name}, which OpenSSL 3 reads with its legacy provider" in message
    monkeypatch.setenv("PASSWORD", CANARY)
    command_with_passwords = message.replace("openssl pkey", "openssl pkey -passin env:PASSWORD").replace(
        "-topk8", "-topk8 -passout env:PASSWORD"
    )
    run_conversion(command_with_passwords)
    new_file = tmp_path / "me-converted.pem"
    new_file.write_text(new_file.read_text() + me.chain_pem)
    context_of(ssl_keystore_location=str(new_file), ssl_key_password=CANARY)


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_a_key_in_der_form_is_told(form: serialization.PrivateFormat, me: Certificate, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(me.key_pem().encode(), None)
    (tmp_path / "me.key").write_bytes(key.private_bytes(serialization.Encoding.DER, form, serialization.NoEncryption()))
    message = problem(ssl_keystore_location=str(tmp_path / "me.key"))
    assert f"me.key is a private key in DER form; convert it with: openssl pkey -inform der -in {tmp_path}/me.key" in message
