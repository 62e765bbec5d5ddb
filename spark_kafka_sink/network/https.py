"""What clients of HTTP servers have in common, those of a token server and of a schema registry: TLS and a proxy."""

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
        where: they are set, to begin the message of a ConfigError.
    """
    needed = {"bootstrap.servers": "none:1", "security.protocol": "SSL"}  # what a ProducerConfig needs to be valid
    try:
        return client_context(ProducerConfig.from_mapping(needed | dict(options)))
    except ConfigError as error:
        error.message = f"{where}: {error.message}"
        raise


def proxy_for(url: str) -> str | None:
    """The environment's https_proxy, which no_proxy restricts, for https; never http_proxy, which would read secrets.

    As with Java's default of http.nonProxyHosts, this machine is reached without a proxy.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return None
    return getproxies().get("https")
