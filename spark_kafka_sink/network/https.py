"""TLS and the proxy for the two clients of HTTP servers: of a token server and of a schema registry."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sasl import LOOPBACK
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls.ssl_context import client_context

NO_PROXY_URL = (
    "the proxy for https, from https_proxy of the environment or the system's settings, is not a URL like http://host:3128;"
    " in user:password@, write / as %2F, @ as %40, # as %23 and ? as %3F"
)


def tls_context(options: Mapping[str, object], where: str) -> ssl.SSLContext:
    """The context for a server that has ssl.* options of its own, which mean the same as the producer's for brokers.

    Args:
        options: the ssl.* options, with secrets wrapped.
        where: where the options are set; begins the message of a ConfigError, which a wrong option or file raises.
    """
    needed = {"bootstrap.servers": "none:1", "security.protocol": "SSL"}  # what a ProducerConfig needs to be valid
    try:
        return client_context(ProducerConfig.from_mapping(needed | dict(options)))
    except ConfigError as error:
        error.message = f"{where}: {error.message}"
        raise


def proxy_for(url: str) -> str | None:
    """The proxy for an https URL: https_proxy of the environment, else the system's. None without one, or if no_proxy applies.

    An http URL has none, since a proxy could read secrets; nor has this machine, as by default in Java (http.nonProxyHosts).

    Raises:
        ConfigError: NO_PROXY_URL. Errors of urllib and urllib3 quote the URL, which may have a password.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return None
    found = Secret(getproxies().get("https", ""))  # hidden from tracebacks with locals
    if not found.reveal():
        return None
    if not _is_proxy_url(found):
        raise ConfigError(NO_PROXY_URL)
    return found.reveal()


def _is_proxy_url(proxy: Secret) -> bool:
    """Whether it is [scheme://][user:password@]host[:port]."""
    text = proxy.reveal()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        return bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/") and not (parts.query or parts.fragment)
    except ValueError:  # of the port
        return False
