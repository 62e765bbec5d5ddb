"""Options of a schema registry under Confluent's names: RegistryConfig.

The same names stand in the options of a write and in the configuration of KafkaProducer, so `pick` finds them among others.
What the options require of each other is checked here too; nothing here opens a file or a connection. schemas/ uses the result.
Laws: no error text shows a login, not even one in a URL. An unknown name that begins like the registry's names is a problem.
"""

# ruff: noqa: RUF009  (option() is dataclasses.field() with an Option attached)

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from spark_kafka_sink.config.option import (
    BOOLEAN,
    INT,
    PASSWORD,
    STRING,
    InvalidValueError,
    Kind,
    Option,
    as_text,
    conceal,
    nearest_key,
    option,
    options_of,
    read_all,
    warn_once,
)
from spark_kafka_sink.config.sasl import ALLOWED_URLS, LOOPBACK
from spark_kafka_sink.config.secret import HIDDEN, Secret, looks_like_a_secret
from spark_kafka_sink.config.security_config import STORE_TYPES, parse_identification
from spark_kafka_sink.errors import printable

# An environment variable: the addresses that options may name, in a process that runs writes of other users.
ALLOWED_REGISTRY_URLS = "PYKAFKA_SINK_SCHEMA_REGISTRY_ALLOWED_URLS"

URL_KEY = "schema.registry.url"
USER_INFO, FROM_URL = "USER_INFO", "URL"
STATIC_TOKEN, OAUTH_TOKEN = "STATIC_TOKEN", "OAUTHBEARER"
TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME = "TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"
_STRATEGIES = (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME)
_STRATEGY_DOC = (
    "Name of the {part}'s subject: TopicNameStrategy (topic-{part}), RecordNameStrategy (the record's full name) or"
    " TopicRecordNameStrategy (topic-record), with or without a package."
)

_ESCAPE_HINT = " (in user:password@, write / as %2F, @ as %40, # as %23 and ? as %3F)"


class RegistryAddress(NamedTuple):
    """One address of a registry: `url` has neither a login nor a slash at its end."""

    url: str
    login: Secret | None  # user:password, from the URL


def _parse_urls(value: object) -> tuple[str, ...]:
    """Split the list only at commas before a scheme: a password in a URL may have a comma."""
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str):
        raise InvalidValueError("Expected a comma separated list.")
    return tuple(filter(None, (each.strip().rstrip(",") for each in re.split(r",\s*(?=https?://)", text, flags=re.IGNORECASE))))


URLS = Kind("list", _parse_urls, may_hold_secret=True)


def _parse_addresses(texts: tuple[str, ...]) -> tuple[RegistryAddress, ...]:
    places = [f" (address {number})" if len(texts) > 1 else "" for number in range(1, len(texts) + 1)]
    return tuple(dict.fromkeys(map(_parse_address, texts, places)))


def _parse_address(text: str, place: str) -> RegistryAddress:
    """One address; the login is taken out before anything is shown. `place`: the position in the list, for errors."""
    shown_address = printable(without_login(text)) + place
    parts = _split_url(text)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        hint = _ESCAPE_HINT if "@" in text else ""
        raise InvalidValueError(f"it is not a URL like https://host:8081{hint}", shown_address)
    if parts.query or parts.fragment:
        raise InvalidValueError("it has a query or a fragment, which is not shown; write the URL up to the path", shown_address)
    if (parts.username is None) != (parts.password is None) or parts.username == "":
        raise InvalidValueError("it needs user and password, as in https://user:password@host:8081, or neither", shown_address)
    login = None if parts.username is None else Secret(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
    return RegistryAddress(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}", login)


def _split_url(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts if text.isprintable() and " " not in text else None


def _parse_hidden_string(value: object) -> str:
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str):
        raise InvalidValueError("Expected value to be a string")
    return text


HIDDEN_STRING = Kind("string", _parse_hidden_string, may_hold_secret=True)


def _check_token_endpoint(url: str) -> str:
    """http is for this machine only, since the request contains the client's secret and the answer a token."""
    parts = _split_url(url)
    if parts is None or not parts.hostname:
        raise InvalidValueError("it is not a URL like https://host/path")
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError("it must not hold a name or password; use bearer.auth.client.id and bearer.auth.client.secret")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise InvalidValueError("it must begin with https:// (http:// is for localhost only)")
    return url


def can_be_header(text: str) -> bool:
    """Whether a token or an id may stand in a header of HTTP: it has visible ASCII characters only, and no blanks."""
    return re.fullmatch(r"[!-~]+", text) is not None


def _check_header(text: str) -> str:
    if not can_be_header(text):
        raise InvalidValueError("it must be of visible ASCII characters, without blanks")
    return text


def _check_token(secret: Secret) -> Secret:
    return Secret(_check_header(secret.reveal()))


_PLACE = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")  # host, host:port or [address]:port
_SCHEME = re.compile(r"[\w+.-]*")


def without_login(text: str) -> str:
    """What may be shown of a text that was meant to be a URL: no login, which may hold any character, and no query.

    [hidden] if there is no host where a host should be, as the text may be user:password. A text without :// is shown only if it
    is a host, or host:port.
    """
    scheme, slashes, after_scheme = text.partition("://") if "://" in text else ("", "", text)
    location = re.split("[?#]", after_scheme.rpartition("@")[2])[0] if slashes else after_scheme
    place = _PLACE.fullmatch(location.partition("/")[0] if slashes else location)
    is_place = place is not None and 1 <= int(place[1] or 1) <= 65_535
    if looks_like_a_secret(text) or not is_place or not _SCHEME.fullmatch(scheme):
        return HIDDEN
    return scheme + slashes + location


def _parse_strategy(name: str) -> str:
    """The simple name of a strategy; its package does not matter."""
    simple_name = name.rpartition(".")[2]
    if simple_name not in _STRATEGIES:
        raise InvalidValueError(f"use one of {', '.join(_STRATEGIES)}, or name the subject itself")
    return simple_name


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """The options of a schema registry, checked. An attribute is named as the key, with underscores for dots. Times are in ms."""

    # fmt: off
    schema_registry_url: tuple[RegistryAddress, ...] = option(URL_KEY, URLS, default="", convert=_parse_addresses,
        doc="Addresses of the schema registry, http://… or https://…, separated by commas: the first that answers is used. A "
            "path belongs to the address, such as /apis/ccompat/v7.")
    auto_register_schemas: bool = option("auto.register.schemas", BOOLEAN, default=True,
        doc="Register a derived schema that the subject lacks. false: it is an error, which tells the difference from the latest "
            "version.")
    use_latest_version: bool = option("use.latest.version", BOOLEAN, default=False,
        doc="true: write with the latest version of the subject, as valueSchema=latest and keySchema=latest do (value.schema and "
            "key.schema of KafkaProducer).")
    latest_cache_ttl_sec: int = option("latest.cache.ttl.sec", INT, default=60, at_least=0, also_allowed=-1,
        doc="How many seconds the sink takes the latest version for the latest, before it asks again between two micro-batches; "
            "-1: as long as its process lives. KafkaProducer never asks again.")
    normalize_schemas: bool = option("normalize.schemas", BOOLEAN, default=False,
        doc="Have the registry normalize a schema when it is registered or looked up.")
    key_subject_name_strategy: str = option("key.subject.name.strategy", STRING, default=TOPIC_NAME, convert=_parse_strategy,
        doc=_STRATEGY_DOC.format(part="key"))
    value_subject_name_strategy: str = option("value.subject.name.strategy", STRING, default=TOPIC_NAME, convert=_parse_strategy,
        doc=_STRATEGY_DOC.format(part="value"))

    # LOGIN
    basic_auth_credentials_source: str | None = option("basic.auth.credentials.source", STRING, default=None,
        choices=(FROM_URL, USER_INFO), ignore_case=True,
        doc="Where user and password are: in basic.auth.user.info, or in the URL. Not set: where they are found.")
    basic_auth_user_info: Secret | None = option("basic.auth.user.info", PASSWORD, default=None,
        doc="User and password, as user:password.")
    bearer_auth_credentials_source: str | None = option("bearer.auth.credentials.source", STRING, default=None,
        choices=(STATIC_TOKEN, OAUTH_TOKEN), ignore_case=True,
        doc="STATIC_TOKEN: bearer.auth.token. OAUTHBEARER: tokens from bearer.auth.issuer.endpoint.url. Not set: the one "
            "whose options are set.")
    bearer_auth_token: Secret | None = option("bearer.auth.token", PASSWORD, default=None, convert=_check_token,
        doc="A token to log in with.")
    bearer_auth_issuer_endpoint_url: str | None = option("bearer.auth.issuer.endpoint.url", HIDDEN_STRING, default=None,
        convert=_check_token_endpoint, doc="Token endpoint of the OAuth server, https://…, for the client credentials flow.")
    bearer_auth_client_id: str | None = option("bearer.auth.client.id", STRING, default=None, doc="OAuth client id.")
    bearer_auth_client_secret: Secret | None = option("bearer.auth.client.secret", PASSWORD, default=None,
        doc="OAuth client secret.")
    bearer_auth_scope: str | None = option("bearer.auth.scope", STRING, default=None, doc="OAuth scope to request.")
    bearer_auth_logical_cluster: str | None = option("bearer.auth.logical.cluster", STRING, default=None, convert=_check_header,
        doc="Id of the registry's logical cluster (lsrc-…), which Confluent Cloud needs with a token.")
    bearer_auth_identity_pool_id: str | None = option("bearer.auth.identity.pool.id", STRING, default=None, convert=_check_header,
        doc="Id of the identity pool (pool-…) in Confluent Cloud.")

    # TLS
    schema_registry_ssl_truststore_location: str | None = option("schema.registry.ssl.truststore.location", STRING, default=None,
        is_file=True, doc="File with the trusted certificates, PEM or PKCS12; not set: those of the operating system.")
    schema_registry_ssl_truststore_type: str | None = option("schema.registry.ssl.truststore.type", STRING, default=None,
        choices=STORE_TYPES, ignore_case=True, doc="File format of the truststore; not set: as the file is.")
    schema_registry_ssl_truststore_password: Secret | None = option(
        "schema.registry.ssl.truststore.password", PASSWORD, default=None, doc="Password of a PKCS12 truststore.")
    schema_registry_ssl_truststore_certificates: Secret | None = option(
        "schema.registry.ssl.truststore.certificates", PASSWORD, default=None, doc="The trusted certificates as PEM text.")
    schema_registry_ssl_keystore_location: str | None = option("schema.registry.ssl.keystore.location", STRING, default=None,
        is_file=True, doc="File with the client's certificate and private key, PEM or PKCS12, for a registry that asks for one.")
    schema_registry_ssl_keystore_type: str | None = option("schema.registry.ssl.keystore.type", STRING, default=None,
        choices=STORE_TYPES, ignore_case=True, doc="File format of the keystore; not set: as the file is.")
    schema_registry_ssl_keystore_password: Secret | None = option(
        "schema.registry.ssl.keystore.password", PASSWORD, default=None, doc="Password of a PKCS12 keystore.")
    schema_registry_ssl_keystore_key: Secret | None = option(
        "schema.registry.ssl.keystore.key", PASSWORD, default=None, doc="The client's private key as PEM text.")
    schema_registry_ssl_keystore_certificate_chain: Secret | None = option("schema.registry.ssl.keystore.certificate.chain",
        PASSWORD, default=None, doc="The client's certificate chain as PEM text.")
    schema_registry_ssl_key_password: Secret | None = option(
        "schema.registry.ssl.key.password", PASSWORD, default=None, doc="Password of an encrypted PEM private key.")
    schema_registry_ssl_endpoint_identification_algorithm: str | None = option(
        "schema.registry.ssl.endpoint.identification.algorithm", STRING, default=None, convert=parse_identification,
        doc="https: the registry's certificate must contain its host name, which is the default; empty: it is not checked.")

    # TIME
    schema_registry_http_connect_timeout_ms: int = option("schema.registry.http.connect.timeout.ms", INT, default=5_000,
        at_least=1, doc="Time-out for connecting to an address of the registry, with TLS.")
    schema_registry_http_read_timeout_ms: int = option("schema.registry.http.read.timeout.ms", INT, default=10_000, at_least=1,
        doc="Time-out for the whole answer to a request.")
    schema_registry_max_retries: int = option("schema.registry.max.retries", INT, default=3, at_least=0,
        doc="How often a request is repeated that met a lost connection, a server's error (5xx) or 429.")
    schema_registry_retries_wait_ms: int = option("schema.registry.retries.wait.ms", INT, default=200, at_least=1,
        doc="Wait before the first repetition; it doubles with each.")
    schema_registry_retries_max_wait_ms: int = option("schema.registry.retries.max.wait.ms", INT, default=5_000, at_least=1,
        doc="Longest wait before a repetition.")
    schema_registry_default_api_timeout_ms: int = option("schema.registry.default.api.timeout.ms", INT, default=30_000,
        at_least=1, doc="Limit for a call with all of its repetitions and addresses.")
    # fmt: on
    given_keys: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def is_set(self) -> bool:
        """Whether there is a registry to ask."""
        return bool(self.schema_registry_url)

    @staticmethod
    def pick(mapping: Mapping[str, object]) -> dict[str, object]:
        """Pick what concerns a registry from a larger configuration, under the names of this class, with every secret wrapped.

        Names that Confluent also writes with `schema.registry.` before them lose it, unless the short name has another value.
        Unknown names that begin like the registry's names are taken too. `read` reports a problem for both.
        """
        values_by_name: dict[str, object] = {}
        given_values = {key: value for key, value in mapping.items() if value is not None and is_registry_key(key)}
        for key, value in given_values.items():
            own_name = _own_name(key)
            values_by_name[own_name if _plain_text(given_values.get(own_name, value)) == _plain_text(value) else key] = value
        if isinstance(values_by_name.get(URL_KEY), list | tuple):
            values_by_name[URL_KEY] = as_text(values_by_name[URL_KEY])
        return conceal(values_by_name, REGISTRY_KEYS)

    @classmethod
    def read(cls, mapping: Mapping[str, object], problems: list[str]) -> RegistryConfig:
        """Read what `pick` returned. Adds what is wrong to `problems`; if any, do not use the result. Never blocks."""
        options, given_values = options_of(cls), {key: value for key, value in mapping.items() if value is not None}
        problems.extend(_unknown_key_problems(given_values))
        values: dict[str, Any] = read_all(options, given_values, problems)
        values["given_keys"] = frozenset(given_values) & REGISTRY_KEYS.keys()
        invalid_keys = {each.key for attribute, each in options.items() if attribute not in values} & given_values.keys()
        config = cls(**values)
        for keys, rule in _RULES:
            if invalid_keys.isdisjoint(keys):
                problems.extend(rule(config))
        return config

    def login_of(self, address: RegistryAddress) -> Secret | None:
        """user:password for this address; None without basic authentication."""
        return self.basic_auth_user_info or address.login

    @property
    def token_source(self) -> str | None:
        """STATIC_TOKEN, OAUTHBEARER, or None."""
        if self.bearer_auth_credentials_source is not None:
            return self.bearer_auth_credentials_source
        if self.bearer_auth_token is not None:
            return STATIC_TOKEN
        return OAUTH_TOKEN if self.bearer_auth_issuer_endpoint_url else None


REGISTRY_KEYS: dict[str, Option] = {each.key: each for each in options_of(RegistryConfig).values()}


# NAMES

_FAMILIES = ("schema.registry.", "basic.auth.", "bearer.auth.")
_PREFIX = "schema.registry."

_KEYSTORE = "write schema.registry.ssl.keystore.location, a PEM file with certificate and key"

# Confluent's names that are not supported, and what to do instead.
_NOT_SUPPORTED: dict[str, str] = {
    "use.schema.id": "write valueSchema=id:<id> or keySchema=id:<id>; for KafkaProducer value.schema",
    "use.latest.with.metadata": "write valueSchema=<version> or keySchema=<version>; for KafkaProducer value.schema",
    "context.name.strategy": "write the subject with its context: valueSubject=:.context:subject",
    "key.schema.id.serializer": "ids are written before the payload only",
    "value.schema.id.serializer": "ids are written before the payload only",
    "schema.registry.ssl.ca.location": "write schema.registry.ssl.truststore.location, which takes a PEM file",
    "schema.registry.ssl.certificate.location": _KEYSTORE,
    "schema.registry.ssl.key.location": _KEYSTORE,
    "schema.registry.proxy.host": "set the environment's https_proxy",
    "schema.registry.proxy.port": "set the environment's https_proxy",
}
# Names that have no effect here, and why.
REGISTRY_KEYS_WITHOUT_EFFECT: dict[str, str] = {
    "latest.compatibility.strict": "columns are always checked against the schema that is written",
    "id.compatibility.strict": "columns are always checked against the schema that is written",
    "max.schemas.per.subject": "the cache needs no limit of this kind",
    "schema.reflection": "there are no Java objects",
    "avro.reflection.allow.null": "there are no Java objects",
    "avro.remove.java.properties": "schemas are written without Java's properties",
    "avro.use.logical.type.converters": "logical types are always converted",
    "bearer.auth.scope.claim.name": "the registry reads the token's claims",
    "bearer.auth.sub.claim.name": "the registry reads the token's claims",
    "bearer.auth.cache.expiry.buffer.seconds": "a token is renewed before it expires",
}


def is_registry_key(key: str) -> bool:
    """Whether a key belongs to a registry's configuration, known or not."""
    return key in REGISTRY_KEYS or key in _NOT_SUPPORTED or key in REGISTRY_KEYS_WITHOUT_EFFECT or key.startswith(_FAMILIES)


def _own_name(key: str) -> str:
    short = key.removeprefix(_PREFIX)
    return short if short.startswith(_FAMILIES[1:]) else key


def _plain_text(value: object) -> str:
    """The value as text, without the blanks around it."""
    return (value.reveal() if isinstance(value, Secret) else as_text(value)).strip()


def _unknown_key_problems(given_keys: Iterable[str]) -> Iterator[str]:
    for key in given_keys:
        if key in _NOT_SUPPORTED:
            yield f"{key} is not supported: {_NOT_SUPPORTED[key]}"
        elif key in REGISTRY_KEYS_WITHOUT_EFFECT:
            warn_once("Option '%s' has no effect: %s", key, REGISTRY_KEYS_WITHOUT_EFFECT[key])
        elif _own_name(key) in REGISTRY_KEYS and _own_name(key) != key:
            yield f"{key} and {_own_name(key)} are one option, and have different values: remove one of the two"
        elif key not in REGISTRY_KEYS:
            nearest = nearest_key(key, REGISTRY_KEYS)
            hint = f"Did you mean '{nearest}'?" if nearest else f"Options of a schema registry are {', '.join(REGISTRY_KEYS)}."
            yield f"Unknown option '{printable(key)}'. {hint}"


# RULES


def _url_is_set(config: RegistryConfig) -> Iterator[str]:
    if config.given_keys and not config.is_set and URL_KEY in config.given_keys:
        yield f"{URL_KEY} is empty: set it, as in https://registry:8081"
    elif config.given_keys and not config.is_set:
        yield f"{sorted(config.given_keys)[0]} is set, but {URL_KEY} is not: set it, as in https://registry:8081"


def _url_is_allowed(config: RegistryConfig) -> Iterator[str]:
    url_list = os.environ.get(ALLOWED_REGISTRY_URLS)
    if url_list is None:
        return
    allowed_urls = {each.strip().rstrip("/") for each in url_list.split(",")}
    for address in config.schema_registry_url:
        if address.url not in allowed_urls:
            yield (
                f"{URL_KEY}={printable(address.url)} is not in the list of the environment variable {ALLOWED_REGISTRY_URLS},"
                " which the owner of this process has set"
            )


def _basic_login_is_whole(config: RegistryConfig) -> Iterator[str]:
    source, info = config.basic_auth_credentials_source, config.basic_auth_user_info
    has_login_in_url = any(address.login is not None for address in config.schema_registry_url)
    if info is not None and ":" not in info.reveal():
        yield "basic.auth.user.info must be user:password"
    if info is not None and (has_login_in_url or source == FROM_URL):
        other_login = f"{URL_KEY} holds a login" if has_login_in_url else "basic.auth.credentials.source=URL"
        yield f"basic.auth.user.info is set, but {other_login} too: remove one of the two"
    if source == USER_INFO and info is None:
        yield "basic.auth.credentials.source=USER_INFO needs basic.auth.user.info=user:password"
    if source == FROM_URL and info is None and not has_login_in_url:
        yield f"basic.auth.credentials.source=URL needs a login in {URL_KEY}, as in https://user:password@host:8081"
    if config.token_source is not None and (info is not None or has_login_in_url):
        yield "a login by basic authentication and one by bearer.auth.* are set: remove one of the two"


def _bearer_login_is_whole(config: RegistryConfig) -> Iterator[str]:
    source = config.token_source
    if source == STATIC_TOKEN and config.bearer_auth_token is None:
        yield "bearer.auth.credentials.source=STATIC_TOKEN needs bearer.auth.token"
    if source == OAUTH_TOKEN:
        needed_keys = ("bearer.auth.issuer.endpoint.url", "bearer.auth.client.id", "bearer.auth.client.secret")
        missing_keys = [key for key in needed_keys if not getattr(config, key.replace(".", "_"))]
        if missing_keys:
            yield f"bearer.auth.credentials.source=OAUTHBEARER needs {' and '.join(missing_keys)}"
        if config.bearer_auth_token is not None:
            yield "bearer.auth.token and bearer.auth.issuer.endpoint.url are both sources of tokens: remove one of the two"
    if source is None:
        bearer_keys = [key for key in sorted(config.given_keys) if key.startswith("bearer.auth.")]
        if bearer_keys:
            yield f"{bearer_keys[0]} has no effect without bearer.auth.token or bearer.auth.issuer.endpoint.url"


def _token_url_is_allowed(config: RegistryConfig) -> Iterator[str]:
    allowed_urls, url = os.environ.get(ALLOWED_URLS), config.bearer_auth_issuer_endpoint_url
    if url is not None and allowed_urls is not None and url not in {each.strip() for each in allowed_urls.split(",")}:
        yield (
            f"bearer.auth.issuer.endpoint.url={printable(url)} is not in the list of the environment variable {ALLOWED_URLS},"
            " which the owner of this process has set"
        )


def _warn_of_login_in_clear_text(config: RegistryConfig) -> Iterable[str]:
    """A warning only: registries inside of a network often have no TLS."""
    for address in config.schema_registry_url:
        parts = urlsplit(address.url)
        has_secret = config.login_of(address) is not None or config.token_source is not None
        if has_secret and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            warn_once("%s=%s: the login is sent in clear text; use https", URL_KEY, address.url)
    return ()


def _latest_excludes_registering(config: RegistryConfig) -> Iterator[str]:
    if config.use_latest_version and config.auto_register_schemas and "auto.register.schemas" in config.given_keys:
        yield (
            "use.latest.version=true writes with the registered schema, auto.register.schemas=true registers the derived one:"
            " remove one of the two"
        )


# (the keys that must be valid for the rule to be applied, the rule)
_RULES: tuple[tuple[tuple[str, ...], Callable[[RegistryConfig], Iterable[str]]], ...] = (
    ((URL_KEY,), _url_is_set),
    ((URL_KEY,), _url_is_allowed),
    ((URL_KEY, "basic.auth.credentials.source", "basic.auth.user.info", "bearer.auth.credentials.source"), _basic_login_is_whole),
    (tuple(key for key in REGISTRY_KEYS if key.startswith("bearer.auth.")), _bearer_login_is_whole),
    (("bearer.auth.issuer.endpoint.url",), _token_url_is_allowed),
    ((URL_KEY, "basic.auth.user.info"), _warn_of_login_in_clear_text),
    (("use.latest.version", "auto.register.schemas"), _latest_excludes_registering),
)
