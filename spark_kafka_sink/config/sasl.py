"""What the SASL options mean together, and their rules.

producer_rules.py calls `problems` wherever a ProducerConfig is read; network/sasl uses the other functions to log in. Apart from
security.protocol, nothing here reads options other than SASL's; nothing opens a file or a connection.
Law: no error text quotes any part of sasl.jaas.config, which holds a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from spark_kafka_sink.config.jaas import NO_JAAS_ENTRY, JaasEntry, JaasProblem, parse_jaas
from spark_kafka_sink.config.option import warn_once
from spark_kafka_sink.errors import printable

PLAIN, OAUTHBEARER, GSSAPI, AWS_MSK_IAM = "PLAIN", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"

# Mechanism -> the simple name of its login module. Package names are ignored: Databricks, for one, shades Kafka's packages.
LOGIN_MODULES: dict[str, str] = {
    PLAIN: "PlainLoginModule",
    SCRAM_SHA_256: "ScramLoginModule",
    SCRAM_SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
    GSSAPI: "Krb5LoginModule",
    AWS_MSK_IAM: "IAMLoginModule",
}
_EXAMPLES = {
    "PlainLoginModule": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";',
    "ScramLoginModule": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="…" password="…";',
    "OAuthBearerLoginModule": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
}

# WHERE TOKENS COME FROM

UNSECURED, CLIENT_CREDENTIALS, JWT_BEARER, TOKEN_FILE = "unsecured", "client credentials", "JWT bearer", "file"
AWS, CALLBACK = "AWS", "callback"

_HANDLERS = {  # simple names of the Java classes that sasl.login.callback.handler.class accepts
    "OAuthBearerLoginCallbackHandler": CLIENT_CREDENTIALS,
    "OAuthBearerUnsecuredLoginCallbackHandler": UNSECURED,
    "IAMOAuthBearerLoginCallbackHandler": AWS,
}
_RETRIEVERS = {  # the same for sasl.oauthbearer.jwt.retriever.class
    "DefaultJwtRetriever": CLIENT_CREDENTIALS,
    "ClientCredentialsJwtRetriever": CLIENT_CREDENTIALS,
    "FileJwtRetriever": TOKEN_FILE,
    "JwtBearerJwtRetriever": JWT_BEARER,
}
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*[.:][^\W\d]\w*")
UNSECURED_PREFIX = "unsecuredLogin"

# Environment variables with the URLs and files that options may name, like Java's org.apache.kafka.sasl.oauthbearer.allowed.urls
# and .files since CVE-2025-27817: a login sends what is in the file to a server that the options name as well.
ALLOWED_URLS = "PYKAFKA_SINK_OAUTHBEARER_ALLOWED_URLS"
ALLOWED_FILES = "PYKAFKA_SINK_OAUTHBEARER_ALLOWED_FILES"
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # this machine, to which a secret may go without TLS
_ASSERTION_FILES = ("assertion_file", "assertion_private_key_file", "assertion_template_file")


def token_source(values: Mapping[str, Any]) -> str:
    """Which of the sources above provides the tokens of OAUTHBEARER, chosen as Kafka does; AWS for AWS_MSK_IAM."""
    handler = values["sasl_login_callback_handler_class"]
    if values["sasl_mechanism"] == AWS_MSK_IAM:
        return AWS
    if handler is None and values["sasl_oauthbearer_token_endpoint_url"] is None:
        return UNSECURED
    source = CLIENT_CREDENTIALS if handler is None else _HANDLERS.get(handler.rpartition(".")[2], CALLBACK)
    if source is not CLIENT_CREDENTIALS:
        return source
    retriever = values["sasl_oauthbearer_jwt_retriever_class"]
    source = CLIENT_CREDENTIALS if retriever is None else _RETRIEVERS.get(retriever.rpartition(".")[2], CLIENT_CREDENTIALS)
    is_file = (values["sasl_oauthbearer_token_endpoint_url"] or "").startswith("file:")
    return TOKEN_FILE if is_file and source is CLIENT_CREDENTIALS else source


# RULES


def problems(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the SASL options; nothing if SASL is not used. `values`: ProducerConfig's values by attribute name."""
    if not values["security_protocol"].startswith("SASL_"):
        return
    mechanism = values["sasl_mechanism"]
    if mechanism not in LOGIN_MODULES:
        hint = "" if "sasl.mechanism" in values["given_keys"] else ", the default,"
        yield f"sasl.mechanism={mechanism}{hint} is not known; use one of {', '.join(LOGIN_MODULES)}"
        return
    entry = read_entry(values)
    if isinstance(entry, JaasProblem):
        yield f"sasl.jaas.config cannot be read: {entry.text}"
        return
    if entry.module and entry.simple_name != LOGIN_MODULES[mechanism]:
        yield _mismatch_problem(values, entry)
        return
    yield from _RULES[mechanism](values, entry)


def read_entry(values: Mapping[str, Any]) -> JaasEntry | JaasProblem:
    """The entry of sasl.jaas.config; NO_JAAS_ENTRY if the option is not set."""
    secret = values["sasl_jaas_config"]
    return NO_JAAS_ENTRY if secret is None else parse_jaas(secret.reveal())


def _mismatch_problem(values: Mapping[str, Any], entry: JaasEntry) -> str:
    mechanism = values["sasl_mechanism"]
    hint = "" if "sasl.mechanism" in values["given_keys"] else " (the default)"
    fitting_mechanisms = [name for name, module in LOGIN_MODULES.items() if module == entry.simple_name]
    if not fitting_mechanisms:  # the name is not shown: in a malformed text, it may be a part of the password
        return (
            f"sasl.jaas.config names a login module that is not known; sasl.mechanism={mechanism}{hint} needs"
            f" {LOGIN_MODULES[mechanism]}"
        )
    return (
        f"sasl.mechanism={mechanism}{hint} needs {LOGIN_MODULES[mechanism]}, but sasl.jaas.config names {entry.simple_name};"
        f" for that, set sasl.mechanism to {' or '.join(fitting_mechanisms)}"
    )


def _password_problems(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    module = LOGIN_MODULES[values["sasl_mechanism"]]
    missing_names = [name for name in ("username", "password") if not entry.get(name)]
    if not entry.module:
        yield (
            f"sasl.mechanism={values['sasl_mechanism']} needs sasl.jaas.config, like {_EXAMPLES[module]}"
            " (a file named by java.security.auth.login.config is not read)"
        )
    elif missing_names:
        yield f"sasl.jaas.config: {module} needs {' and '.join(missing_names)}"
    elif not all(_can_be_sent(entry.get(name) or "") for name in ("username", "password")):
        yield f"sasl.jaas.config: {module} accepts no username or password with a NUL character or half a surrogate pair"


def _can_be_sent(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _oauthbearer_problems(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    handler, retriever = values["sasl_login_callback_handler_class"], values["sasl_oauthbearer_jwt_retriever_class"]
    source = token_source(values)
    if source is CALLBACK and not _DOTTED.fullmatch(handler):
        yield (
            f"sasl.login.callback.handler.class={handler} is not a dotted name of a Python function, like package.module.function"
        )
    if retriever is not None and retriever.rpartition(".")[2] not in _RETRIEVERS:
        yield f"sasl.oauthbearer.jwt.retriever.class={retriever} is not known; use one of {', '.join(_RETRIEVERS)}"
    if source is UNSECURED and not entry.with_prefix(UNSECURED_PREFIX):
        yield (
            "sasl.mechanism=OAUTHBEARER needs tokens: set sasl.oauthbearer.token.endpoint.url, or"
            " sasl.login.callback.handler.class to the dotted name of a Python function that returns one"
        )
    if source in (CLIENT_CREDENTIALS, JWT_BEARER, TOKEN_FILE):
        yield from _endpoint_problems(values, source)
    if source is CLIENT_CREDENTIALS and not _has_client_credentials(values, entry):
        yield (
            "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and …client.secret (or"
            " clientId and clientSecret in sasl.jaas.config)"
        )
    if source is JWT_BEARER and not (
        values["sasl_oauthbearer_assertion_file"] or values["sasl_oauthbearer_assertion_private_key_file"]
    ):
        yield "JwtBearerJwtRetriever needs sasl.oauthbearer.assertion.file or sasl.oauthbearer.assertion.private.key.file"
    if source is JWT_BEARER:
        yield from _file_problems(values)


def _has_client_credentials(values: Mapping[str, Any], entry: JaasEntry) -> bool:
    """Set by the options of KIP-1139, or as `clientId` and `clientSecret` of the login module (KIP-768)."""
    client_id = values["sasl_oauthbearer_client_credentials_client_id"] or entry.get("clientId")
    secret = values["sasl_oauthbearer_client_credentials_client_secret"] or entry.get("clientSecret")
    return bool(client_id) and bool(secret)


def _endpoint_problems(values: Mapping[str, Any], source: str) -> Iterator[str]:
    """What is wrong with the token endpoint. http is for this machine only: the client's secret and a token are sent."""
    key = "sasl.oauthbearer.token.endpoint.url"
    try:
        url = urlsplit(values["sasl_oauthbearer_token_endpoint_url"] or "")
        host, _ = url.hostname, url.port
    except ValueError:
        yield f"{key} is not a URL"
        return
    if source is TOKEN_FILE:
        if url.scheme != "file" or not url.path:
            yield f"{key} must be file:///path/to/a/token for FileJwtRetriever"
    elif not host:
        yield f"{key} is not set, or is not a URL like https://host/path"
    elif url.username is not None or url.password is not None:
        yield f"{key} must not hold a name or password; use sasl.oauthbearer.client.credentials.client.id and …client.secret"
    elif url.scheme != "https" and not (url.scheme == "http" and host in LOOPBACK):
        yield f"{key} must begin with https:// (http:// is for localhost only), or with file:"
    if not _is_url_allowed(values["sasl_oauthbearer_token_endpoint_url"] or "", source):
        yield (
            f"{key} is not in the list of the environment variable {ALLOWED_URLS}, which must be set on driver and executors"
            + (" for a file: URL" if source is TOKEN_FILE else "")
        )


def _is_url_allowed(url: str, source: str) -> bool:
    allowed_urls = os.environ.get(ALLOWED_URLS)
    return source is not TOKEN_FILE if allowed_urls is None else url in _list_items(allowed_urls)


def _file_problems(values: Mapping[str, Any]) -> Iterator[str]:
    allowed_files = _list_items(os.environ.get(ALLOWED_FILES, ""))
    for name in _ASSERTION_FILES:
        path = values[f"sasl_oauthbearer_{name}"]
        if path and not allowed_files & {path, os.path.basename(path)}:
            yield (
                f"sasl.oauthbearer.{name.replace('_', '.')}={printable(path)} is not in the list of the environment variable"
                f" {ALLOWED_FILES}, which must be set on driver and executors"
            )


def _list_items(text: str) -> set[str]:
    return {each.strip() for each in text.split(",") if each.strip()}


def _gssapi_problems(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    service_name, name_in_entry = values["sasl_kerberos_service_name"], entry.get("serviceName")
    if not service_name and not name_in_entry:
        hint = "" if "sasl.mechanism" in values["given_keys"] else " (the default)"
        yield f"sasl.mechanism=GSSAPI{hint} needs sasl.kerberos.service.name, the brokers' service name, often kafka"
    elif service_name and name_in_entry and service_name != name_in_entry:
        yield "sasl.kerberos.service.name and serviceName in sasl.jaas.config differ; remove one of the two"
    # Java's Krb5LoginModule rejects the same.
    for name, switch in (("keyTab", "useKeyTab"), ("ticketCache", "useTicketCache")):
        if entry.get(name) and not entry.is_true(switch):
            yield f"sasl.jaas.config: {name} has no effect without {switch}=true; set that, or remove {name}"
    if entry.is_true("useKeyTab") and not entry.get("keyTab"):
        yield 'sasl.jaas.config: useKeyTab=true needs keyTab="…", the file with the key of principal="…"'


_AWS_OPTIONS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsDebugCreds")
_FOR_THE_ROLE = "the role is assumed with the credentials that AWS's Python library finds, as in AWS_ACCESS_KEY_ID"
_AWS_RETRIES = "AWS's Python library has its own retries, as AWS_MAX_ATTEMPTS sets them"
# Options of Amazon's login module for Java that have no effect with AWS's signer for Python, and why.
_AWS_OPTIONS_WITHOUT_EFFECT = {
    "awsAddDefaultProviders": "if a profile or role gives no credentials, no others are tried",
    "awsMaxBackOffTimeMs": _AWS_RETRIES,
    "awsMaxRetries": _AWS_RETRIES,
    "awsMskRegionProvider": "the region is read from bootstrap.servers, else from AWS_REGION",
    "awsRoleAccessKeyId": _FOR_THE_ROLE,
    "awsRoleExternalId": "AWS's signer sends none; a profile with role_arn and external_id does, which awsProfileName can name",
    "awsRoleSecretAccessKey": _FOR_THE_ROLE,
    "awsRoleSessionToken": _FOR_THE_ROLE,
    "awsShouldUseFips": "AWS's Python library reads AWS_USE_FIPS_ENDPOINT",
    "awsStsRegion": "AWS's Python library chooses the endpoint, as AWS_DEFAULT_REGION and AWS_STS_REGIONAL_ENDPOINTS say",
}


def _aws_problems(_: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    """Names that Amazon does not have are not shown: in a malformed text, they may be parts of a password."""
    for name in sorted(_AWS_OPTIONS_WITHOUT_EFFECT.keys() & entry.names()):
        warn_once("sasl.jaas.config: %s of IAMLoginModule has no effect: %s", name, _AWS_OPTIONS_WITHOUT_EFFECT[name])
    unknown_count = len(set(entry.names()) - _AWS_OPTIONS_WITHOUT_EFFECT.keys() - set(_AWS_OPTIONS))
    if unknown_count:
        subject = "an option of IAMLoginModule is" if unknown_count == 1 else f"{unknown_count} options of IAMLoginModule are"
        yield f"sasl.jaas.config: {subject} not known; use {', '.join(_AWS_OPTIONS)}"


_RULES = {
    PLAIN: _password_problems,
    SCRAM_SHA_256: _password_problems,
    SCRAM_SHA_512: _password_problems,
    OAUTHBEARER: _oauthbearer_problems,
    GSSAPI: _gssapi_problems,
    AWS_MSK_IAM: _aws_problems,
}
