"""network/tls/ssl_context.py and stores.py: every kind of store a user may bring, and what is said of one that cannot be used.

test_stores.py has the files that have to be converted.
"""

from __future__ import annotations

import builtins
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12

from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls import stores
from spark_kafka_sink.network.tls.ssl_context import allowed_ciphers, client_context, describe_trust, openssl_cipher_name
from tests.fakes.certificates import Authority, Certificate, keytool_keystore, keytool_truststore
from tests.fakes.network_config import network_config

CANARY = "hunter2-canary"
WAIT_SECONDS = 10


@pytest.fixture(scope="module")
def truststore(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PKCS12 from keytool, password changeit."""
    return keytool_truststore(authority, tmp_path_factory.mktemp("store") / "ts.p12", "changeit")


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


def context_of(**options: object) -> ssl.SSLContext:
    return client_context(network_config(security_protocol="SSL", **options))


def problem(**options: object) -> str:
    """The error's text; nothing of the error, its traceback with locals included, shows the canary or a key."""
    with pytest.raises(ConfigError) as raised:
        context_of(**options)
    shown = raised.value.message + "".join(locals_of_ours(raised.value))
    assert CANARY not in shown
    assert not re.search(r"PRIVATE KEY-----(\\n|\n)\w", shown)
    return raised.value.message


def locals_of_ours(error: BaseException | None) -> Iterator[str]:
    """What a traceback with locals prints of the package's own frames, causes included."""
    while error is not None:
        yield str(error)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "spark_kafka_sink" in frame.f_code.co_filename:
                yield repr(frame.f_locals)
        error = error.__cause__ or error.__context__


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    """Over a socket pair; the certificate that the server got, and what was agreed on."""
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT_SECONDS)
    theirs.settimeout(WAIT_SECONDS)
    outcome: dict[str, Any] = {}

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secured:
                outcome["certificate"] = secured.getpeercert()
                secured.sendall(b"welcome")
        except OSError as error:
            outcome["error"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname="localhost") as secured:
            outcome |= {"greeting": secured.recv(7), "version": secured.version(), "cipher": secured.cipher()[0]}
    finally:
        thread.join(WAIT_SECONDS)
        theirs.close()
    return outcome


# WHOM TO TRUST


def as_pem_text(authority: Authority, _: Path) -> dict[str, object]:
    return {"ssl_truststore_certificates": authority.pem, "ssl_truststore_type": "PEM"}


def as_pem_on_one_line(authority: Authority, _: Path) -> dict[str, object]:
    return {"ssl_truststore_certificates": (Authority("other").pem + authority.pem).replace("\n", " ")}


def as_pem_without_any_blanks(authority: Authority, _: Path) -> dict[str, object]:
    return {"ssl_truststore_certificates": (Authority("other").pem + authority.pem).replace("\n", "")}


def as_pem_file(authority: Authority, folder: Path) -> dict[str, object]:
    file = folder / "ca.pem"
    file.write_text("friendlyName: täst\n" + authority.pem + "and more text\n" + Authority("other").pem, encoding="utf-8")
    return {"ssl_truststore_location": str(file)}


def as_keytool_writes_it(authority: Authority, folder: Path) -> dict[str, object]:
    file = keytool_truststore(authority, folder / "ts.p12", "changeit")
    # Kafka's default type: Java reads PKCS12 under that name too
    return {"ssl_truststore_location": str(file), "ssl_truststore_password": "changeit", "ssl_truststore_type": "jks"}


def as_keytool_of_java_8_writes_it(authority: Authority, folder: Path) -> dict[str, object]:
    file = keytool_truststore(authority, folder / "ts.p12", "changeit", "PKCS12", "-J-Dkeystore.pkcs12.legacy=true")
    return {"ssl_truststore_location": str(file), "ssl_truststore_password": "changeit", "ssl_truststore_type": "PKCS12"}


WITHOUT_PASSWORD = ("-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE")


def as_keytool_writes_it_without_a_password(authority: Authority, folder: Path) -> dict[str, object]:
    return {
        "ssl_truststore_location": str(keytool_truststore(authority, folder / "ts.p12", "x" * 6, "PKCS12", *WITHOUT_PASSWORD))
    }


def with_a_password_that_is_not_needed(authority: Authority, folder: Path) -> dict[str, object]:
    """As in Java, whose own cacerts is one without a password, and often opened with «changeit»."""
    return as_keytool_writes_it_without_a_password(authority, folder) | {"ssl_truststore_password": "changeit"}


@pytest.mark.parametrize(
    "store",
    [
        as_keytool_writes_it_without_a_password,
        with_a_password_that_is_not_needed,
        as_pem_text,
        as_pem_on_one_line,
        as_pem_without_any_blanks,
        as_pem_file,
        as_keytool_writes_it,
        as_keytool_of_java_8_writes_it,
    ],
)
def test_a_broker_is_trusted_by_an_authority_in_any_kind_of_store(
    store: Callable[[Authority, Path], dict[str, object]], authority: Authority, tmp_path: Path
) -> None:
    context = context_of(**store(authority, tmp_path))
    assert shake_hands(context, authority.issue("broker").server_context())["greeting"] == b"welcome"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, Authority("ca").issue("broker").server_context())  # the same name, another key


def test_an_authority_that_is_no_root_can_be_trusted_as_in_java(authority: Authority) -> None:
    between = Authority("between", authority)
    context = context_of(ssl_truststore_certificates=between.pem)
    assert shake_hands(context, between.issue("broker").server_context())["greeting"] == b"welcome"


def test_without_a_truststore_the_systems_authorities_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    purposes: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _, purpose: purposes.append(purpose))
    context = context_of()
    assert purposes == [ssl.Purpose.SERVER_AUTH]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert "the system's certificates" in describe_trust(network_config())


def test_host_names_are_checked_unless_that_is_switched_off(authority: Authority) -> None:
    elsewhere = authority.issue("broker", hosts=["elsewhere.example"]).server_context()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(context_of(ssl_truststore_certificates=authority.pem), elsewhere)
    unchecked = context_of(ssl_truststore_certificates=authority.pem, ssl_endpoint_identification_algorithm="")
    assert shake_hands(unchecked, elsewhere)["greeting"] == b"welcome"
    assert unchecked.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ConfigError, match=r"ssl.endpoint.identification.algorithm: https is expected, or an empty value"):
        network_config(ssl_endpoint_identification_algorithm="ldaps")


# WHO WE ARE


def with_key_text(me: Certificate, _: Path) -> dict[str, object]:
    return {"ssl_keystore_key": me.key_pem(), "ssl_keystore_certificate_chain": me.chain_pem}


def with_key_text_on_one_line(me: Certificate, _: Path) -> dict[str, object]:
    lines = {
        "ssl_keystore_key": me.key_pem().replace("\n", " "),
        "ssl_keystore_certificate_chain": me.chain_pem.replace("\n", " "),
    }
    return lines | {"ssl_keystore_type": "PEM"}


def with_encrypted_key_text(me: Certificate, _: Path) -> dict[str, object]:
    return {
        "ssl_keystore_key": me.key_pem(CANARY),
        "ssl_keystore_certificate_chain": me.chain_pem,
        "ssl_key_password": CANARY,
    }


def with_a_pem_file(me: Certificate, folder: Path) -> dict[str, object]:
    (folder / "me.pem").write_text(me.chain_pem + me.key_pem())
    return {"ssl_keystore_location": str(folder / "me.pem"), "ssl_keystore_type": "PEM"}


def with_a_pem_file_of_an_encrypted_key(me: Certificate, folder: Path) -> dict[str, object]:
    (folder / "me.pem").write_text("Bag Attributes\n" + me.key_pem(CANARY) + "subject=me\n" + me.chain_pem)
    return {"ssl_keystore_location": str(folder / "me.pem"), "ssl_key_password": CANARY}


def with_an_old_encrypted_key(me: Certificate, folder: Path) -> dict[str, object]:
    key = me.key_pem(CANARY, PrivateFormat.TraditionalOpenSSL)
    assert "DEK-Info:" in key
    (folder / "me.pem").write_text(key + me.chain_pem)
    return {"ssl_keystore_location": str(folder / "me.pem"), "ssl_key_password": CANARY}


def with_a_pkcs12_store(me: Certificate, folder: Path) -> dict[str, object]:
    (folder / "me.p12").write_bytes(me.pkcs12(CANARY))
    return {"ssl_keystore_location": str(folder / "me.p12"), "ssl_keystore_password": CANARY}


def with_a_pkcs12_store_without_a_password(me: Certificate, folder: Path) -> dict[str, object]:
    (folder / "me.p12").write_bytes(me.pkcs12(None))
    return {"ssl_keystore_location": str(folder / "me.p12"), "ssl_keystore_type": "PKCS12"}


@pytest.mark.parametrize(
    "keystore",
    [
        with_a_pkcs12_store_without_a_password,
        with_key_text,
        with_key_text_on_one_line,
        with_encrypted_key_text,
        with_a_pem_file,
        with_a_pem_file_of_an_encrypted_key,
        with_an_old_encrypted_key,
        with_a_pkcs12_store,
    ],
)
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_is_known_by_its_certificate(
    keystore: Callable[[Certificate, Path], dict[str, object]], version: str, authority: Authority, tmp_path: Path
) -> None:
    between = Authority("between", authority)
    options = keystore(between.issue("me", hosts=()), tmp_path)
    context = context_of(ssl_truststore_certificates=authority.pem, ssl_enabled_protocols=version, **options)
    outcome = shake_hands(context, authority.issue("broker").server_context(clients=authority))  # knows nothing of `between`
    assert outcome["version"] == version
    assert outcome["certificate"]["subject"] == ((("commonName", "me"),),)


@pytest.mark.parametrize("flags", [[], ["-J-Dkeystore.pkcs12.legacy=true"]])
def test_a_client_is_known_by_a_keystore_that_keytool_made(flags: list[str], authority: Authority, tmp_path: Path) -> None:
    file = keytool_keystore(tmp_path / "ks.p12", CANARY, "PKCS12", *flags)
    key, made, _ = pkcs12.load_key_and_certificates(file.read_bytes(), CANARY.encode())
    context = context_of(ssl_truststore_certificates=authority.pem, ssl_keystore_location=str(file), ssl_keystore_password=CANARY)
    outcome = shake_hands(context, authority.issue("broker").server_context(clients=Certificate(key, (made,))))
    assert int(outcome["certificate"]["serialNumber"], 16) == made.serial_number


def test_no_key_is_left_on_a_disk(me: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    calls: list[tuple[str, int]] = []
    load = ssl.SSLContext.load_cert_chain

    def look(self: ssl.SSLContext, path: str, **more: Any) -> None:
        calls.append((path, len(list(tmp_path.iterdir()))))
        load(self, path, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    context_of(**with_key_text(me, tmp_path))
    assert calls[0][0].startswith("/proc/self/fd/")
    assert calls[0][1] == 0
    monkeypatch.delattr(os, "memfd_create")  # as on systems without it
    context_of(**with_key_text(me, tmp_path))
    assert calls[1] == (calls[1][0], 1)
    assert calls[1][0].startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="private key does not belong"):
        context_of(ssl_keystore_key=me.key_pem(), ssl_keystore_certificate_chain=Authority("other").pem)
    assert not list(tmp_path.iterdir())


# WHAT CANNOT BE USED


def test_a_missing_file_is_named_with_its_option(tmp_path: Path) -> None:
    assert problem(ssl_truststore_location=str(tmp_path / "ca.pem")) == (
        f"ssl.truststore.location={tmp_path}/ca.pem: there is no such file"
    )
    relative = problem(ssl_keystore_location="nowhere.pem")
    assert relative == f"ssl.keystore.location=nowhere.pem: there is no such file in the working directory {os.getcwd()}"
    assert problem(ssl_truststore_location=str(tmp_path)) == f"ssl.truststore.location={tmp_path} cannot be read: Is a directory"


def test_the_error_of_a_wrong_password_is_not_that_of_a_missing_one(me: Certificate, truststore: Path, tmp_path: Path) -> None:
    (tmp_path / "me.p12").write_bytes(me.pkcs12("right"))
    store = {"ssl_keystore_location": str(tmp_path / "me.p12")}
    assert "ssl.keystore.password may be wrong" in problem(**store, ssl_keystore_password=CANARY)
    assert "ssl.keystore.password is not set" in problem(**store)
    trust = {"ssl_truststore_location": str(truststore)}
    assert "ssl.truststore.password may be wrong" in problem(**trust, ssl_truststore_password=CANARY)
    assert "ssl.truststore.password is not set" in problem(**trust)
    encrypted = {"ssl_keystore_key": me.key_pem("right"), "ssl_keystore_certificate_chain": me.chain_pem}
    assert "ssl.key.password may be wrong" in problem(**encrypted, ssl_key_password=CANARY)
    assert "the private key is encrypted; set ssl.key.password" in problem(**encrypted)
    old = me.key_pem("right", PrivateFormat.TraditionalOpenSSL)
    message = problem(ssl_keystore_key=old, ssl_keystore_certificate_chain=me.chain_pem, ssl_key_password=CANARY)
    assert "ssl.key.password may be wrong" in message


def test_key_and_certificate_must_belong_together(me: Certificate, authority: Authority, tmp_path: Path) -> None:
    message = problem(ssl_keystore_key=me.key_pem(), ssl_keystore_certificate_chain=authority.issue("you").chain_pem)
    assert message.startswith("ssl.keystore.key and ssl.keystore.certificate.chain: the private key does not belong to the first")
    assert "ssl.keystore.key is set, but ssl.keystore.certificate.chain is not" in problem(ssl_keystore_key=me.key_pem())
    assert "chain is set, but ssl.keystore.key is not" in problem(ssl_keystore_certificate_chain=me.chain_pem)
    file = tmp_path / "me.pem"
    file.write_text(me.chain_pem)
    assert problem(ssl_keystore_location=str(file)).startswith(f"ssl.keystore.location={file}: there is no private key in it")
    file.write_text(me.key_pem())
    assert problem(ssl_keystore_location=str(file)).startswith(f"ssl.keystore.location={file}: there is no certificate in it")
    file.write_text(me.key_pem() + me.key_pem() + me.chain_pem)
    assert "there are 2 private keys in it" in problem(ssl_keystore_location=str(file))
    file.write_text(me.chain_pem + me.key_pem().replace("\nM", "\nN"))
    assert "malformed" in problem(ssl_keystore_location=str(file))


def test_the_error_of_what_is_no_certificate_says_what_is_wrong(tmp_path: Path) -> None:
    assert problem(ssl_truststore_certificates="see the wiki") == "ssl.truststore.certificates: there is no certificate in it"
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    assert "ssl.truststore.certificates: a certificate in it is malformed" in problem(ssl_truststore_certificates=broken)
    (tmp_path / "ca.der").write_bytes(b"hello")
    assert "is neither a PEM file nor a PKCS12 store" in problem(ssl_truststore_location=str(tmp_path / "ca.der"))
    (tmp_path / "ca.der").write_bytes(b"\x30\x03\x02\x01\x03")
    message = problem(ssl_truststore_location=str(tmp_path / "ca.der"), ssl_truststore_password="x")
    assert "ssl.truststore.password may be wrong, or it is not a PKCS12 store" in message
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(stores.MAX_STORE_BYTES + 1)
    assert "is larger than" in problem(ssl_truststore_location=str(tmp_path / "huge"))


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN CERTIFICATE-----\n", "-", "-----BEGIN ", "-----BEGIN A ", "-\n", "-----BEGIN X-----\n-----END Y-----\n"],
)
def test_a_text_that_resembles_pem_is_read_in_linear_time(text: str) -> None:
    """20 KB of BEGIN lines blocked the constructor for 24 s: the pattern looked for the end of each to the end of the text."""
    message = problem(ssl_truststore_certificates=text * (1_000_000 // len(text)))
    assert message == "ssl.truststore.certificates: there is no certificate in it"


def test_a_block_without_an_end_does_not_spoil_the_next_one(authority: Authority) -> None:
    cut = authority.pem[: len(authority.pem) // 2]
    assert stores.pem_certificates(Secret(f"{cut}\n{authority.pem}")) == stores.pem_certificates(Secret(authority.pem))


@pytest.mark.parametrize("kind", ["truststore", "keystore"])
def test_a_jks_store_is_refused_with_the_command_that_converts_it(kind: str, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "my store.jks"
    if kind == "truststore":
        keytool_truststore(authority, file, "changeit", "JKS")
    else:
        keytool_keystore(file, "changeit", "JKS")
    message = problem(**{f"ssl_{kind}_location": str(file), f"ssl_{kind}_password": "changeit"})
    assert message.startswith(f"ssl.{kind}.location={file} is a JKS store, which only Java can read; convert it with: keytool ")
    if kind == "truststore":  # the command works as it stands
        command = message.partition("convert it with: ")[2].replace("keytool", "keytool -storepass changeit")
        subprocess.run(command, shell=True, check=True, timeout=60, capture_output=True)
        context_of(ssl_truststore_location=str(tmp_path / "my store.pem"))


def test_the_error_of_a_type_that_the_file_is_not_names_both(me: Certificate, tmp_path: Path) -> None:
    (tmp_path / "me.pem").write_text(me.chain_pem + me.key_pem())
    (tmp_path / "me.p12").write_bytes(me.pkcs12("x"))
    message = problem(ssl_keystore_location=str(tmp_path / "me.pem"), ssl_keystore_type="PKCS12")
    assert message.endswith("me.pem is PEM, but ssl.keystore.type=PKCS12; set it to PEM, or remove it")
    message = problem(ssl_keystore_location=str(tmp_path / "me.p12"), ssl_keystore_password="x", ssl_keystore_type="pem")
    assert message.endswith("me.p12 is PKCS12, but ssl.keystore.type=PEM; set it to PKCS12, or remove it")
    message = problem(ssl_keystore_location=str(tmp_path / "me.pem"), ssl_keystore_password=CANARY)
    assert "the password of its key is ssl.key.password" in message
    message = problem(ssl_truststore_location=str(tmp_path / "me.pem"), ssl_truststore_password=CANARY)
    assert "ssl.truststore.password is set" in message
    with pytest.raises(ConfigError, match=r"ssl.keystore.type: String must be one of"):
        network_config(ssl_keystore_type="BCFKS")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_keystore_password": CANARY}, "ssl.keystore.password is set, but ssl.keystore.location is not"),
        ({"ssl_truststore_password": CANARY}, "ssl.truststore.password is set, but ssl.truststore.location is not"),
        (
            {"ssl_truststore_certificates": "x", "ssl_truststore_location": "y"},
            "Both ssl.truststore.certificates and ssl.truststore.location are set",
        ),
        ({"ssl_truststore_certificates": "x", "ssl_truststore_type": "JKS"}, "is PEM, but ssl.truststore.type=JKS"),
        ({"ssl_protocol": "TLSv1.2", "ssl_enabled_protocols": "TLSv1.3"}, "excludes all of ssl.enabled.protocols"),
        ({"ssl_protocol": "TLSv1.1"}, "ssl.protocol: String must be one of: TLSv1.3, TLSv1.2, TLS"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3 or both are expected"),
        ({"ssl_enabled_protocols": "TLSv1.2,TLSv9"}, "TLSv1.2, TLSv1.3 or both are expected"),
    ],
)
def test_options_that_contradict_each_other_raise_before_any_file_is_read(options: dict[str, object], message: str) -> None:
    assert message in problem(**options)
    if not message.startswith(("ssl.protocol: ", "TLSv")):
        network_config(**options)  # without TLS they do not matter


@needs_openssl
def test_a_pkcs12_store_without_its_extra_is_refused_with_a_remedy(
    me: Certificate, truststore: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without_cryptography(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real_import(name, *arguments, **more)

    (tmp_path / "me.p12").write_bytes(me.pkcs12(CANARY))
    monkeypatch.setattr(builtins, "__import__", without_cryptography)
    message = problem(ssl_keystore_location=str(tmp_path / "me.p12"), ssl_keystore_password=CANARY)
    assert "pip install cryptography" in message
    message = problem(ssl_truststore_location=str(truststore), ssl_truststore_password="changeit")
    command = re.search(r"openssl .*", message)
    assert command is not None
    subprocess.run(command[0] + " -passin pass:changeit", shell=True, check=True, timeout=60, capture_output=True)
    context_of(ssl_truststore_location=str(truststore.with_suffix(".pem")))


def test_a_truststore_with_a_key_trusts_the_keys_own_certificate_as_in_java(me: Certificate, tmp_path: Path) -> None:
    broker = Authority("ca").issue("broker")
    (tmp_path / "ts.p12").write_bytes(broker.pkcs12("x"))
    context = context_of(ssl_truststore_location=str(tmp_path / "ts.p12"), ssl_truststore_password="x")
    assert shake_hands(context, broker.server_context())["greeting"] == b"welcome"
    assert me.pem != broker.pem


def test_a_keystore_without_a_key_is_refused(truststore: Path) -> None:
    message = problem(ssl_keystore_location=str(truststore), ssl_keystore_password="changeit")
    assert message == f"ssl.keystore.location={truststore}: there is no private key with its certificate in it"


# VERSIONS AND CIPHERS


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        ({}, ("TLSv1_2", "TLSv1_3")),
        ({"ssl_protocol": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl_protocol": "TLS"}, ("TLSv1_2", "TLSv1_3")),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ("TLSv1_3", "TLSv1_3")),
        ({"ssl_enabled_protocols": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl_enabled_protocols": "TLSv1,TLSv1.1,TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, ("TLSv1_3", "TLSv1_3")),
        ({"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl_cipher_suites": "ECDHE-ECDSA-AES128-GCM-SHA256,TLS_AES_128_GCM_SHA256"}, ("TLSv1_2", "TLSv1_3")),
    ],
)
def test_the_options_decide_which_versions_are_offered(options: dict[str, object], versions: tuple[str, str]) -> None:
    context = context_of(**options)
    assert (context.minimum_version.name, context.maximum_version.name) == versions


def test_older_versions_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    network_config(ssl_enabled_protocols="TLSv1.1,TLSv1.2")
    assert "only TLSv1.2 are offered" in caplog.text


def test_java_names_of_cipher_suites_are_understood(authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    context = context_of(ssl_truststore_certificates=authority.pem, ssl_cipher_suites=f"{suite},TLS_KRB5_WITH_RC4_128_MD5")
    assert shake_hands(context, authority.issue("broker").server_context())["cipher"] == "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert problem(ssl_cipher_suites="TLS_KRB5_WITH_RC4_128_MD5").startswith(
        "ssl.cipher.suites=TLS_KRB5_WITH_RC4_128_MD5: OpenSSL"
    )
    assert allowed_ciphers(network_config()) == frozenset()


NOT_JAVAS = "PSK|SRP|anon|ARIA"  # suites that no Kafka listener has


@needs_openssl
def test_every_suite_that_openssl_offers_is_found_by_its_java_name() -> None:
    listing = subprocess.run(["openssl", "ciphers", "-stdname", "ALL"], capture_output=True, text=True, check=True, timeout=60)
    names = re.findall(r"^(\S+)\s+- (\S+)", listing.stdout, re.MULTILINE)
    usual = [(java, openssl) for java, openssl in names if not re.search(NOT_JAVAS, java)]
    assert len(usual) > 20
    assert [(java, openssl) for java, openssl in usual if openssl_cipher_name(java) != openssl] == []
    assert openssl_cipher_name("ECDHE-RSA-AES256-GCM-SHA384") == "ECDHE-RSA-AES256-GCM-SHA384"
