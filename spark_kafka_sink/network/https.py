"""TLS and the proxy for the two clients of HTTP servers: of a token server and of a schema registry."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sasl import LOOPBACK
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls.ssl_context import client_context


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
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return None
    return getproxies().get("https")
