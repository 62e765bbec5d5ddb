"""From Kafka's ssl.* options to Python's ssl.SSLContext: TLS versions, cipher suites, truststore, keystore.

Used by TlsConnector (connector.py); stores.py reads the files.
Laws: every error names the option and never quotes the content of a store or its password. Where the system allows, no key is
written to a disk, not even for OpenSSL to read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls.stores import StoreFormat, open_pkcs12, other_pem_form, pem_certificates, pem_keys, read_store

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def client_context(config: ProducerConfig) -> ssl.SSLContext:
    """The context of all TLS connections of a client. Reads the files of ssl.keystore.location and ssl.truststore.location.

    Raises:
        ConfigError: a file cannot be read or is not a store, a password is missing or wrong, key and certificate do not
            match, or no cipher suite is left.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.ssl_endpoint_identification_algorithm != ""
    context.options |= ssl.OP_NO_RENEGOTIATION
    # As in Java: every certificate in the truststore is trusted, even if it is not a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions(context, config)
    _load_truststore(context, config)
    _load_keystore(context, config)
    return context


def describe_trust(config: ProducerConfig) -> str:
    """Where the trusted certificates come from, for error texts."""
    if config.ssl_truststore_certificates is not None:
        return "ssl.truststore.certificates"
    if config.ssl_truststore_location:
        return f"ssl.truststore.location={config.ssl_truststore_location}"
    return "the system's certificates (there is no ssl.truststore.location)"


# VERSIONS AND CIPHERS


def _set_versions(context: ssl.SSLContext, config: ProducerConfig) -> None:
    highest_version = _VERSIONS.get(config.ssl_protocol, ssl.TLSVersion.TLSv1_3)  # "TLS": any
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols if _VERSIONS[name] <= highest_version]
    if config.ssl_cipher_suites:
        versions = _set_ciphers(context, config, versions)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, config: ProducerConfig, versions: list[ssl.TLSVersion]) -> list[ssl.TLSVersion]:
    """Offer only the named suites of TLS 1.2; TlsTransport checks those of 1.3. Returns the versions that have a named suite."""
    suite_names = allowed_ciphers(config)
    older_suites = ":".join(name for name in suite_names if not name.startswith("TLS_"))
    has_older_suite = bool(older_suites)
    if older_suites:
        try:
            context.set_ciphers(older_suites)  # skips names that OpenSSL does not know
        except ssl.SSLError:
            has_older_suite = False
    has_newest_suite = any(name in _TLS_1_3_SUITES for name in suite_names)
    usable_versions = [
        version for version in versions if (has_newest_suite if version == ssl.TLSVersion.TLSv1_3 else has_older_suite)
    ]
    if not usable_versions:
        raise ConfigError(
            f"ssl.cipher.suites={','.join(config.ssl_cipher_suites)}: OpenSSL ({ssl.OPENSSL_VERSION}) knows none of these for"
            f" {', '.join(config.ssl_enabled_protocols)}; remove the option, or name others (openssl ciphers -stdname lists them)"
        )
    return usable_versions


_TLS_1_3_SUITES = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)


def allowed_ciphers(config: ProducerConfig) -> frozenset[str]:
    """OpenSSL's names of the suites in ssl.cipher.suites; empty when all are allowed."""
    return frozenset(map(openssl_cipher_name, filter(None, config.ssl_cipher_suites)))


def openssl_cipher_name(name: str) -> str:
    """OpenSSL's name for Java's (IANA's): TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256.

    Suites of TLS 1.3 have one name only; a name that is OpenSSL's already is returned unchanged.
    """
    match = re.fullmatch(r"(?:TLS|SSL)_(\w+)_WITH_(\w+)", name)
    if match is None:
        return name
    exchange, cipher = match.groups()
    cipher = re.sub(r"^(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher)
    cipher = cipher.replace("_CBC", "").replace("3DES_EDE", "DES_CBC3")
    cipher = re.sub(r"_POLY1305_SHA256$", "_POLY1305", cipher)
    cipher = re.sub(r"_CCM(_8)?_SHA256$", r"_CCM\1", cipher).replace("_CCM_8", "_CCM8")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


# TRUSTSTORE


def _load_truststore(context: ssl.SSLContext, config: ProducerConfig) -> None:
    if config.ssl_truststore_certificates is not None:
        pem = config.ssl_truststore_certificates
        _add_trusted(context, "ssl.truststore.certificates", pem_certificates(pem), other_pem_form(pem, None))
    elif config.ssl_truststore_location:
        option = f"ssl.truststore.location={config.ssl_truststore_location}"
        _add_trusted(context, option, *_certificates_in_file(config, config.ssl_truststore_location))
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _certificates_in_file(config: ProducerConfig, location: str) -> tuple[list[str], str]:
    """The certificates, and what to do if they cannot be used."""
    store_format, content = read_store("ssl.truststore", location, config)
    if store_format is not StoreFormat.PEM:
        return open_pkcs12("ssl.truststore", location, content, config.ssl_truststore_password).certificates, ""
    if config.ssl_truststore_password is not None:
        raise ConfigError(f"ssl.truststore.password is set, but ssl.truststore.location={location} is a PEM file; remove it")
    return pem_certificates(content), other_pem_form(content, location)


def _add_trusted(context: ssl.SSLContext, option: str, certificates: list[str], remedy: str) -> None:
    if not certificates:
        raise ConfigError(f"{option}: there is no certificate in it{remedy}")
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{option}: a certificate in it is malformed{remedy or f': {_error_text(error)}'}") from error


# KEYSTORE


def _load_keystore(context: ssl.SSLContext, config: ProducerConfig) -> None:
    if config.ssl_keystore_key is not None and config.ssl_keystore_certificate_chain is not None:
        options = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
        _load_pem_keystore(context, config, (config.ssl_keystore_key, config.ssl_keystore_certificate_chain), options, None)
    elif config.ssl_keystore_location:
        _load_keystore_file(context, config, config.ssl_keystore_location)


def _load_keystore_file(context: ssl.SSLContext, config: ProducerConfig, location: str) -> None:
    option = f"ssl.keystore.location={location}"
    store_format, content = read_store("ssl.keystore", location, config)
    if store_format is StoreFormat.PEM:
        if config.ssl_keystore_password is not None:
            raise ConfigError(
                f"ssl.keystore.password is set, but {option} is a PEM file; the password of its key is ssl.key.password"
            )
        _load_pem_keystore(context, config, (content, content), (option, option), location)
        return
    store = open_pkcs12("ssl.keystore", location, content, config.ssl_keystore_password)
    if store.key is None:
        raise ConfigError(f"{option}: there is no private key with its certificate in it")
    _load_chain(context, store.key, store.certificates, password=None, option=option, remedy="")


def _load_pem_keystore(
    context: ssl.SSLContext, config: ProducerConfig, pem: tuple[Secret, Secret], options: tuple[str, str], location: str | None
) -> None:
    """Load a private key and its certificates.

    Args:
        pem: the text with the key, and that with the certificates.
        options: what to call these two in an error.
        location: the file that both stand in; None if they are values of options.
    """
    keys, chain = pem_keys(pem[0]), pem_certificates(pem[1])
    remedies = [other_pem_form(text, location) for text in pem]
    if not keys:
        raise ConfigError(f"{options[0]}: there is no private key in it (-----BEGIN PRIVATE KEY-----){remedies[0]}")
    if len(keys) > 1:
        raise ConfigError(f"{options[0]}: there are {len(keys)} private keys in it; leave the one that is to be used")
    if not chain:
        raise ConfigError(f"{options[1]}: there is no certificate in it (-----BEGIN CERTIFICATE-----){remedies[1]}")
    option, remedy = " and ".join(dict.fromkeys(options)), remedies[0] or remedies[1]
    _load_chain(context, keys[0], chain, config.ssl_key_password, option, remedy)


def _load_chain(
    context: ssl.SSLContext, key: Secret, chain: list[str], password: Secret | None, option: str, remedy: str
) -> None:
    key_password = _KeyPassword(password, option)
    try:
        with _temporary_file(Secret("\n".join([key.reveal(), *chain]))) as path:
            context.load_cert_chain(path, password=key_password)
    except ssl.SSLError as error:
        problem = f" cannot be used{remedy}" if remedy else f": {_load_problem(error, key_password.was_asked)}"
        raise ConfigError(f"{option}{problem}") from error


class _KeyPassword:
    """The password of a private key. OpenSSL calls it when the key is encrypted; without it OpenSSL would ask on the terminal."""

    def __init__(self, password: Secret | None, option: str) -> None:
        self._password = password
        self._option = option
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        if self._password is None:
            raise ConfigError(f"{self._option}: the private key is encrypted; set ssl.key.password")
        return self._password.reveal()


def _load_problem(error: ssl.SSLError, has_password: bool) -> str:
    reason = error.reason or str(error)
    if "KEY_VALUES_MISMATCH" in reason or "KEY_TYPE_MISMATCH" in reason:
        return "the private key does not belong to the first certificate of the chain"
    if has_password:  # OpenSSL's error for a wrong password depends on the kind of encryption
        return f"the private key cannot be decrypted, ssl.key.password may be wrong; or it is malformed ({_error_text(error)})"
    return f"key or certificates are malformed, or too weak for OpenSSL: {_error_text(error)}"


@contextlib.contextmanager
def _temporary_file(text: Secret) -> Iterator[str]:
    """A path to the text while the block runs: in memory where possible (Linux), else a file that only this user can read."""
    descriptor, path, is_on_disk = _open_nameless_file()
    try:
        with open(descriptor, "w", encoding="latin-1") as file:
            file.write(text.reveal())
            file.flush()
            yield path
    finally:
        if is_on_disk:
            os.unlink(path)


def _open_nameless_file() -> tuple[int, str, bool]:
    if sys.platform == "linux" and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("pykafka-sink", os.MFD_CLOEXEC)
        return descriptor, f"/proc/self/fd/{descriptor}", False
    descriptor, path = tempfile.mkstemp(prefix="pykafka-sink-")  # only this user can read and write it
    return descriptor, path, True


def _error_text(error: Exception) -> str:
    """OpenSSL's message without the position in its sources."""
    reason = getattr(error, "reason", None) or re.sub(r"\s*\(_ssl\.c:\d+\)", "", str(error))
    return str(reason).lower().replace("_", " ")
