"""Options of TLS and SASL: security.protocol, ssl.* and sasl.*. ProducerConfig inherits them.

What they require of each other is checked in producer_rules.py and sasl.py. network/tls/ and network/sasl/ use them.
"""

# ruff: noqa: RUF009  (option() is dataclasses.field() with an Option attached)

from __future__ import annotations

import os
from dataclasses import dataclass

from spark_kafka_sink.config.option import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    InvalidValueError,
    option,
    options_of,
    warn_once,
)
from spark_kafka_sink.config.secret import Secret

STORE_TYPES = ("JKS", "PKCS12", "PEM")
_OLD_TLS_VERSIONS = ("TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello")


def _parse_tls_versions(names: tuple[str, ...]) -> tuple[str, ...]:
    usable_versions = tuple(name for name in names if name in ("TLSv1.2", "TLSv1.3"))
    unknown_names = [name for name in names if name not in usable_versions and name not in _OLD_TLS_VERSIONS]
    if unknown_names or not usable_versions:
        raise InvalidValueError("TLSv1.2, TLSv1.3 or both are expected")
    if len(usable_versions) < len(names):
        warn_once("ssl.enabled.protocols: only %s are offered; older versions are not secure", ",".join(usable_versions))
    return usable_versions


def parse_identification(algorithm: str) -> str:
    """A `convert` for the options that are called ssl.endpoint.identification.algorithm."""
    if algorithm.lower() not in ("https", ""):
        raise InvalidValueError("https is expected, or an empty value, which disables the check of host names")
    return algorithm.lower()


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The options of TLS and SASL, checked. An attribute is named as Kafka's key, with underscores for dots. Times are in ms."""

    # fmt: off
    security_protocol: str = option("security.protocol", STRING, default="PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), ignore_case=True,
        doc="Protocol to communicate with brokers: with TLS (SSL, SASL_SSL) or without, with authentication by SASL (SASL_…) or "
            "without.")

    # TLS
    ssl_protocol: str = option("ssl.protocol", STRING, default="TLSv1.3", choices=("TLSv1.3", "TLSv1.2", "TLS"),
        doc="Highest TLS version; TLS: any.")
    ssl_enabled_protocols: tuple[str, ...] = option("ssl.enabled.protocols", LIST, default="TLSv1.2,TLSv1.3",
        convert=_parse_tls_versions, doc="TLS versions to offer; versions before TLSv1.2 are ignored.")
    ssl_cipher_suites: tuple[str, ...] = option("ssl.cipher.suites", LIST, default="",
        doc="Cipher suites to offer, by Java's names or OpenSSL's; empty: OpenSSL's default.")
    ssl_keystore_type: str = option("ssl.keystore.type", STRING, default="JKS", choices=STORE_TYPES, ignore_case=True,
        doc="File format of the keystore; not set: PEM or PKCS12, as the file is. A file in Java's own format, JKS, is "
            "rejected with an error that shows the command to convert it.")
    ssl_keystore_location: str | None = option("ssl.keystore.location", STRING, default=None, is_file=True,
        doc="File with the client's certificate and private key, on each executor, or sent with --files.")
    ssl_keystore_password: Secret | None = option("ssl.keystore.password", PASSWORD, default=None,
        doc="Password of a PKCS12 keystore.")
    ssl_keystore_key: Secret | None = option("ssl.keystore.key", PASSWORD, default=None,
        doc="The client's private key as PEM text.")
    ssl_keystore_certificate_chain: Secret | None = option("ssl.keystore.certificate.chain", PASSWORD, default=None,
        doc="The client's certificate chain as PEM text.")
    ssl_key_password: Secret | None = option("ssl.key.password", PASSWORD, default=None,
        doc="Password of an encrypted PEM private key.")
    ssl_truststore_type: str = option("ssl.truststore.type", STRING, default="JKS", choices=STORE_TYPES, ignore_case=True,
        doc="File format of the truststore; as for ssl.keystore.type.")
    ssl_truststore_location: str | None = option("ssl.truststore.location", STRING, default=None, is_file=True,
        doc="File with the trusted certificates, on each executor, or sent with --files; not set: those of the operating system.")
    ssl_truststore_password: Secret | None = option("ssl.truststore.password", PASSWORD, default=None,
        doc="Password of a PKCS12 truststore.")
    ssl_truststore_certificates: Secret | None = option("ssl.truststore.certificates", PASSWORD, default=None,
        doc="The trusted certificates as PEM text.")
    ssl_endpoint_identification_algorithm: str = option("ssl.endpoint.identification.algorithm", STRING, default="https",
        convert=parse_identification,
        doc="https: a broker's certificate must contain its host name; empty: the host name is not checked.")

    # SASL
    sasl_mechanism: str = option("sasl.mechanism", STRING, default="GSSAPI", non_empty=True,
        doc="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM.")
    sasl_jaas_config: Secret | None = option("sasl.jaas.config", PASSWORD, default=None,
        doc="Login in JAAS syntax, as for Java clients: Kafka's login module for sasl.mechanism, under its own or a shaded "
            "package name.")
    sasl_login_callback_handler_class: str | None = option(
        "sasl.login.callback.handler.class", STRING, default=None, non_empty=True,
        doc="OAUTHBEARER: dotted name of a Python function that returns a token, or Java name of one of Kafka's own handlers.")
    sasl_client_callback_handler_class: str | None = option("sasl.client.callback.handler.class", STRING, default=None,
        non_empty=True, doc="No effect; accepted for AWS_MSK_IAM, where Java clients require it.")
    sasl_kerberos_service_name: str | None = option("sasl.kerberos.service.name", STRING, default=None,
        doc="Kerberos service name of the brokers.")
    sasl_login_connect_timeout_ms: int | None = option("sasl.login.connect.timeout.ms", INT, default=None,
        doc="Time-out for connecting to the token endpoint; not set: 10 seconds.")
    sasl_login_read_timeout_ms: int | None = option("sasl.login.read.timeout.ms", INT, default=None,
        doc="Time-out for the whole response of the token endpoint; not set: 10 seconds.")
    sasl_login_retry_backoff_ms: int = option("sasl.login.retry.backoff.ms", LONG, default=100,
        doc="Wait before a request to the token endpoint is retried.")
    sasl_login_retry_backoff_max_ms: int = option("sasl.login.retry.backoff.max.ms", LONG, default=10_000,
        doc="Time after which a request to the token endpoint is no longer retried.")
    sasl_login_refresh_window_factor: float = option("sasl.login.refresh.window.factor", DOUBLE, default=0.8, at_least=0.5,
        at_most=1.0, doc="Fraction of a token's lifetime after which it is refreshed when it is next needed.")
    sasl_login_refresh_window_jitter: float = option("sasl.login.refresh.window.jitter", DOUBLE, default=0.05, at_least=0.0,
        at_most=0.25, doc="Maximum of a random fraction that is added to sasl.login.refresh.window.factor.")
    sasl_login_refresh_min_period_seconds: int = option("sasl.login.refresh.min.period.seconds", INT, default=60, at_least=0,
        at_most=900, doc="Minimum time between two refreshes of a token.")
    sasl_login_refresh_buffer_seconds: int = option("sasl.login.refresh.buffer.seconds", INT, default=300, at_least=0,
        at_most=3600, doc="A token is refreshed at least this long before it expires.")
    sasl_oauthbearer_token_endpoint_url: str | None = option("sasl.oauthbearer.token.endpoint.url", STRING, default=None,
        doc="Token endpoint of the OAuth server, https://…, or file:///… for a file that holds a token.")
    sasl_oauthbearer_jwt_retriever_class: str | None = option(
        "sasl.oauthbearer.jwt.retriever.class", STRING, default=None, non_empty=True,
        doc="Java name of DefaultJwtRetriever, ClientCredentialsJwtRetriever, FileJwtRetriever or JwtBearerJwtRetriever.")
    sasl_oauthbearer_scope: str | None = option("sasl.oauthbearer.scope", STRING, default=None, doc="OAuth scope to request.")
    sasl_oauthbearer_client_credentials_client_id: str | None = option("sasl.oauthbearer.client.credentials.client.id", STRING,
        default=None, doc="OAuth client id.")
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = option("sasl.oauthbearer.client.credentials.client.secret",
        PASSWORD, default=None, doc="OAuth client secret.")
    sasl_oauthbearer_sub_claim_name: str = option("sasl.oauthbearer.sub.claim.name", STRING, default="sub",
        doc="Claim of the token that holds the subject.")
    sasl_oauthbearer_header_urlencode: bool = option("sasl.oauthbearer.header.urlencode", BOOLEAN, default=False,
        doc="URL-encode client id and secret in the authorization header.")
    sasl_oauthbearer_assertion_algorithm: str = option("sasl.oauthbearer.assertion.algorithm", STRING, default="RS256",
        choices=("RS256", "ES256"), ignore_case=True, doc="Algorithm that signs a JWT assertion.")
    sasl_oauthbearer_assertion_claim_aud: str | None = option("sasl.oauthbearer.assertion.claim.aud", STRING, default=None,
        doc="Audience claim of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_exp_seconds: int = option("sasl.oauthbearer.assertion.claim.exp.seconds", INT, default=300,
        at_least=0, at_most=86_400, doc="Lifetime of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_iss: str | None = option("sasl.oauthbearer.assertion.claim.iss", STRING, default=None,
        doc="Issuer claim of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_jti_include: bool = option("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN,
        default=False, doc="Include an id claim in a JWT assertion.")
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = option("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, default=60,
        at_least=0, at_most=3600, doc="A JWT assertion is valid from this long before the present.")
    sasl_oauthbearer_assertion_claim_sub: str | None = option("sasl.oauthbearer.assertion.claim.sub", STRING, default=None,
        doc="Subject claim of a JWT assertion.")
    sasl_oauthbearer_assertion_file: str | None = option("sasl.oauthbearer.assertion.file", STRING, default=None, is_file=True,
        doc="File with a ready JWT assertion, which PYKAFKA_SINK_OAUTHBEARER_ALLOWED_FILES must list.")
    sasl_oauthbearer_assertion_private_key_file: str | None = option(
        "sasl.oauthbearer.assertion.private.key.file", STRING, default=None, is_file=True,
        doc="File with the private key that signs JWT assertions, which PYKAFKA_SINK_OAUTHBEARER_ALLOWED_FILES must list.")
    sasl_oauthbearer_assertion_private_key_passphrase: Secret | None = option("sasl.oauthbearer.assertion.private.key.passphrase",
        PASSWORD, default=None, doc="Passphrase of that private key.")
    sasl_oauthbearer_assertion_template_file: str | None = option(
        "sasl.oauthbearer.assertion.template.file", STRING, default=None, is_file=True,
        doc="File with additional headers and claims for JWT assertions, which PYKAFKA_SINK_OAUTHBEARER_ALLOWED_FILES must list.")
    # fmt: on


# The options that are paths of files on the machine where the producer runs.
FILE_KEYS: tuple[str, ...] = tuple(each.key for each in options_of(SecurityConfig).values() if each.is_file)


def file_stamp(name: str) -> tuple[int, int, int] | None:
    """The file's time of change in ns, its size and its inode, to notice a certificate that is renewed in place.

    None if the file cannot be accessed; the code that reads the file reports the error.
    """
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
