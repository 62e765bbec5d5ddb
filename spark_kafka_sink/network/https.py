"""TLS and the proxy for the two clients of HTTP servers: of a token server and of a schema registry."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sasl import LOOPBACK
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls.ssl_context import client_context

NO_PROXY_URL = (
    "the proxy for https, from https_proxy of the environment or the system's settings, is not a URL like"
    " http://user:password@host:3128 with the port of an HTTP proxy; in the login, write @ as %40, / as %2F, and % as %25"
)

_PORTS = {"http": 80, "https": 443}  # where the URL of a proxy names none
_ADDRESS = re.compile(r"(\[[\w:.%]+\]|[^\s:@/?#\\\[\]]+)(?::(\d{0,5}))?")


def tls_context(options: Mapping[str, object], options_place: str) -> ssl.SSLContext:
    """The context for a server that has ssl.* options of its own, which mean the same as the producer's for brokers.

    Args:
        options: the ssl.* options, with secrets wrapped.
        options_place: where the options are set, like "sasl.jaas.config"; begins the message of a ConfigError.
    """
    required_options = {"bootstrap.servers": "none:1", "security.protocol": "SSL"}  # what a ProducerConfig needs to be valid
    try:
        return client_context(ProducerConfig.from_mapping(required_options | dict(options)))
    except ConfigError as error:
        error.message = f"{options_place}: {error.message}"
        raise


class Proxy(NamedTuple):
    """A proxy for HTTP. `login`: the value of Proxy-Authorization; None without a login."""

    address: str  # its URL, without the login
    login: Secret | None


def proxy_for(url: str) -> Proxy | None:
    """The proxy for an https URL: https_proxy of the environment, else the system's. None without one, or if no_proxy applies.

    An http URL has none, since a proxy could read secrets; nor has this machine, as by default in Java (http.nonProxyHosts).

    Raises:
        ConfigError: it is no URL. The text does not quote it, as errors of urllib and urllib3 do: it may have a password.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return None
    proxy_url = Secret(getproxies().get("https", "").strip())  # hidden from tracebacks with locals
    if not proxy_url.reveal():
        return None
    proxy = _parse_proxy(proxy_url)
    if proxy is None:
        raise ConfigError(NO_PROXY_URL)
    return proxy


def _parse_proxy(url: Secret) -> Proxy | None:
    """As urllib reads it: the scheme may be left out, the login may contain a slash, and a path after the address is ignored."""
    scheme, separator, target = url.reveal().partition("://")
    if not separator:
        scheme, target = "http", scheme.removeprefix("//")
    scheme = scheme.lower()
    stop = next((index for index in range(max(target.find("@"), 0), len(target)) if target[index] in "/?#"), len(target))
    login, _, address = target[:stop].rpartition("@")
    match = _ADDRESS.fullmatch(address)
    if match is None or scheme not in _PORTS or login.startswith(("http:", "https:")):
        return None
    port = int(match[2] or _PORTS[scheme])
    credentials = base64.b64encode(unquote(login).encode()).decode()
    return Proxy(f"{scheme}://{match[1]}:{port}", Secret(f"Basic {credentials}") if login else None) if port < 1 << 16 else None
