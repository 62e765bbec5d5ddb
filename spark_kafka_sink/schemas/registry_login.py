"""Headers by which a client logs in to a schema registry: basic authentication, a token, or tokens of an OAuth server.

Law: attributes and results hold a login only in a Secret, or in headers with a hidden repr. Some local variables hold plain text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial
from random import Random

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.jaas import NO_JAAS_ENTRY
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.registry_config import OAUTH_TOKEN, RegistryAddress, RegistryConfig, can_be_header
from spark_kafka_sink.config.secret import HIDDEN, Secret, SecretBytes, concealer, forms_of_basic_login
from spark_kafka_sink.network.sasl.token_endpoint import TokenEndpoint, client_credentials_post
from spark_kafka_sink.network.sasl.tokens import RefreshWindow, TokenCache, token_error

# A password that may be a part of a schema by chance: a word, or a few characters.
_WORD = re.compile(r"[A-Za-z]*|.{0,5}", re.DOTALL)


class HiddenHeaders(dict[str, str]):
    """Headers of a request. Their repr is [hidden]."""

    def __repr__(self) -> str:
        return HIDDEN

    def conceal(self, text: str) -> str:
        """The text of an answer, with [hidden] where it repeats the login of these headers: as sent, decoded or URL-encoded."""
        return self.concealer()(text)

    def concealer(self) -> Callable[[str], str]:
        """`conceal` for many texts."""
        forms, password = self._forms_of_login()
        return concealer({*forms, password})

    def are_repeated_in(self, text: str) -> bool:
        """Whether the text repeats the login. A password that is a word does not count."""
        forms, password = self._forms_of_login()
        return concealer(forms if _WORD.fullmatch(password) else {*forms, password})(text) != text

    def _forms_of_login(self) -> tuple[set[str], str]:
        """The texts that show the login, and a password that may be part of other texts too."""
        scheme, _, credentials = self.get("Authorization", "").partition(" ")
        return forms_of_basic_login(credentials) if scheme == "Basic" else ({credentials}, "")


class RegistryLogin:
    """The login to one registry. RegistryClient calls it on threads of network/background.py, as fetching a token blocks."""

    def __init__(self, config: RegistryConfig, clock: Clock) -> None:
        self._config = config
        self._tokens = _make_token_cache(config, clock) if config.token_source == OAUTH_TOKEN else None

    def headers(self, address: RegistryAddress) -> HiddenHeaders:
        """The headers of a login; empty without one. Blocks while a token is fetched; AuthenticationError if that fails."""
        login = self._config.login_of(address)
        if login is not None:
            pair = SecretBytes(login.reveal().encode())
            return HiddenHeaders(Authorization=f"Basic {base64.b64encode(pair).decode()}")
        token = self._tokens.token().value if self._tokens is not None else self._config.bearer_auth_token
        return HiddenHeaders() if token is None else self._token_headers(token)

    def _token_headers(self, token: Secret) -> HiddenHeaders:
        if not can_be_header(token.reveal()):  # http.client would show the token in its error
            raise token_error("the token for the schema registry holds blanks or other characters that no token has")
        headers = HiddenHeaders(Authorization=f"Bearer {token.reveal()}")
        if self._config.bearer_auth_logical_cluster:
            headers["target-sr-cluster"] = self._config.bearer_auth_logical_cluster
        if self._config.bearer_auth_identity_pool_id:
            headers["Confluent-Identity-Pool-Id"] = self._config.bearer_auth_identity_pool_id
        return headers


def _make_token_cache(config: RegistryConfig, clock: Clock) -> TokenCache:
    """Fetches tokens with the client credentials flow that brokers' logins use; only the names of the options differ."""
    broker_config = ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "none:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": config.bearer_auth_issuer_endpoint_url,
            "sasl.oauthbearer.client.credentials.client.id": config.bearer_auth_client_id,
            "sasl.oauthbearer.client.credentials.client.secret": config.bearer_auth_client_secret,
            "sasl.oauthbearer.scope": config.bearer_auth_scope,
            "sasl.login.connect.timeout.ms": config.schema_registry_http_connect_timeout_ms,
            "sasl.login.read.timeout.ms": config.schema_registry_http_read_timeout_ms,
            "sasl.login.retry.backoff.ms": config.schema_registry_retries_wait_ms,
            "sasl.login.retry.backoff.max.ms": config.schema_registry_retries_max_wait_ms,
        }
    )
    endpoint = TokenEndpoint(broker_config, NO_JAAS_ENTRY, partial(client_credentials_post, broker_config, NO_JAAS_ENTRY), clock)
    return TokenCache(
        endpoint.token,
        RefreshWindow.of(broker_config),
        clock,
        wait_ms=config.schema_registry_default_api_timeout_ms,
        random=Random(),
    )
