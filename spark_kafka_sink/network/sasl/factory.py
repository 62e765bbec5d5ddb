"""Makes the login that a configuration names, and finds out whether the packages that it needs can be imported."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from random import Random

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config import sasl as sasl_config
from spark_kafka_sink.config.jaas import JaasEntry
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.sasl.jwt_assertion import require_cryptography
from spark_kafka_sink.network.sasl.kerberos import GssapiLogin, load_gssapi
from spark_kafka_sink.network.sasl.login import Login, PlainLogin
from spark_kafka_sink.network.sasl.oauthbearer import OAuthBearerLogin
from spark_kafka_sink.network.sasl.scram import ScramLogin
from spark_kafka_sink.network.sasl.token_endpoint import TokenEndpoint, client_credentials_post, jwt_bearer_post
from spark_kafka_sink.network.sasl.token_sources import (
    Source,
    aws_source,
    find_callback,
    token_in_file,
    token_of_callback,
    unsecured_token,
)
from spark_kafka_sink.network.sasl.tokens import RefreshWindow, TokenCache


def login_of(config: ProducerConfig, clock: Clock, random: Random) -> Login:
    """The login for a security.protocol with SASL. Does not connect; imports packages, and reads keytabs and certificates.

    Raises:
        ConfigError: a package, a function or an option that the mechanism needs is missing, or a file cannot be read.
    """
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    for problem in sasl_config.problems(values):
        raise ConfigError(problem)
    entry = sasl_config.read_entry(values)
    assert isinstance(entry, JaasEntry)
    mechanism = config.sasl_mechanism
    if mechanism == sasl_config.GSSAPI:
        return GssapiLogin(config.sasl_kerberos_service_name or entry.get("serviceName") or "", entry, load_gssapi())
    if mechanism in (sasl_config.OAUTHBEARER, sasl_config.AWS_MSK_IAM):
        source = _source(sasl_config.token_source(values), config, entry, clock)
        cache = TokenCache(source, RefreshWindow.of(config), clock, wait_ms=config.request_timeout_ms, random=random)
        return OAuthBearerLogin(cache)
    name, password = entry.get("username") or "", Secret(entry.get("password") or "")
    if mechanism == sasl_config.PLAIN:
        return PlainLogin(name, password)
    if mechanism in (sasl_config.SCRAM_SHA_256, sasl_config.SCRAM_SHA_512):
        return ScramLogin(mechanism, name, password, token_auth=entry.is_true("tokenauth"))
    raise AssertionError(mechanism)


def _source(kind: str, config: ProducerConfig, entry: JaasEntry, clock: Clock) -> Source:
    if kind is sasl_config.UNSECURED:
        return partial(unsecured_token, entry, clock)
    if kind is sasl_config.AWS:
        return aws_source(config, entry)
    if kind is sasl_config.CALLBACK:
        return partial(token_of_callback, find_callback(config.sasl_login_callback_handler_class or ""), entry)
    if kind is sasl_config.TOKEN_FILE:
        return partial(token_in_file, config.sasl_oauthbearer_token_endpoint_url or "", config.sasl_oauthbearer_sub_claim_name)
    make_post = partial(client_credentials_post, config, entry)
    if kind is sasl_config.JWT_BEARER:
        if config.sasl_oauthbearer_assertion_file is None:
            require_cryptography()
        make_post = partial(jwt_bearer_post, config, entry, clock)
    return TokenEndpoint(config, entry, make_post, clock).token
