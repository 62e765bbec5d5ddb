"""Connections to a schema registry: urllib3's pools, with TLS, a proxy, and a way to end an attempt from another thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.config.registry_config import RegistryAddress, RegistryConfig
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.https import proxy_for, tls_context
from spark_kafka_sink.schemas.registry_login import HiddenHeaders

if TYPE_CHECKING:
    import ssl

_current = threading.local()  # its `attempt` is the RegistryAttempt that runs on this thread


class RegistryAttempt:
    """One request on a thread of its own, which enters `with attempt:`. Another thread may call `abandon`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _connection and _is_abandoned
        self._connection: Any = None
        self._is_abandoned = False

    def __enter__(self) -> None:
        _current.attempt = self

    def __exit__(self, *_: object) -> None:
        """The connection goes back to its pool, where another attempt may take it."""
        with self._lock:
            self._connection = None

    def remember(self, connection: Any) -> None:
        """Remember the connection before it blocks. Called on the attempt's own thread. Raises TimeoutError after `abandon`."""
        with self._lock:
            self._connection = connection
            if self._is_abandoned:
                raise TimeoutError("the time is over")

    def abandon(self) -> None:
        """Shut down the connection's socket, which ends a wait for it. A DNS look-up goes on; then `remember` raises."""
        with self._lock:
            self._is_abandoned = True
            sock = getattr(self._connection, "sock", None)
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def import_urllib3() -> Any:
    """Import urllib3 only where a registry is used, so that nothing else needs the extra. Raises ConfigError if it is missing."""
    try:
        import urllib3
    except ImportError as error:
        raise ConfigError(
            'schema.registry.url needs urllib3: pip install "pykafka-sink[registry]", or pip install "urllib3>=2.2", on the'
            " driver, and with a topic column or exactly-once on the executors"
        ) from error
    return urllib3


def make_pool(address: RegistryAddress, config: RegistryConfig) -> Any:
    """Make a urllib3.PoolManager for one address. Raises ConfigError: files that cannot be read, or a wrong https_proxy."""
    urllib3 = import_urllib3()
    connect_s, read_s = config.schema_registry_http_connect_timeout_ms / 1000, config.schema_registry_http_read_timeout_ms / 1000
    pool_options: dict[str, Any] = {"num_pools": 1, "timeout": urllib3.Timeout(connect=connect_s, read=read_s)}
    if address.url.startswith("https:"):
        pool_options |= {"ssl_context": _tls_context(config)}
        if config.schema_registry_ssl_endpoint_identification_algorithm == "":
            pool_options |= {"assert_hostname": False}
    proxy = proxy_for(address.url)
    if proxy is None:
        pool = urllib3.PoolManager(**pool_options)
    else:
        login = HiddenHeaders({"Proxy-Authorization": proxy.login.reveal()}) if proxy.login is not None else None
        pool = urllib3.ProxyManager(proxy.address, proxy_headers=login, **pool_options)
    pool.pool_classes_by_scheme = _pool_classes(urllib3)
    return pool


def _pool_classes(urllib3: Any) -> dict[str, Any]:
    """urllib3's pools, with connections that register with the attempt of the current thread before they block."""

    def connection_class(base: Any) -> Any:
        class AttemptConnection(base):  # type: ignore[misc]
            """A connection that registers with the current attempt before it blocks."""

            def connect(self) -> None:
                _current.attempt.remember(self)
                super().connect()

            def request(self, *args: Any, **options: Any) -> None:
                _current.attempt.remember(self)
                super().request(*args, **options)

        return AttemptConnection

    pools = (urllib3.HTTPConnectionPool, urllib3.HTTPSConnectionPool)
    return {pool.scheme: type(pool.__name__, (pool,), {"ConnectionCls": connection_class(pool.ConnectionCls)}) for pool in pools}


def _tls_context(config: RegistryConfig) -> ssl.SSLContext:
    """The options have the names of the brokers' options after a prefix, and the same meaning."""
    prefix = "schema.registry."
    tls_options = {
        key.removeprefix(prefix): getattr(config, key.replace(".", "_"))
        for key in config.given_keys
        if key.startswith(f"{prefix}ssl.")
    }
    return tls_context(tls_options, f"the options of the schema registry, with {prefix} before each name")
