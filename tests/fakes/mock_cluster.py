"""librdkafka's mock cluster: brokers in C, written by others, that need no JVM. They come with the confluent-kafka wheel.

    with MockCluster(brokers=3) as cluster:
        cluster.fail_next(ApiKey.PRODUCE, Errors.NOT_LEADER_OR_FOLLOWER)
        ... produce to cluster.bootstrap_servers ...

The Python package has no functions for it, so this calls the shared library that the wheel carries (rdkafka_mock.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files
from types import TracebackType

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

_PRODUCER = 0  # rd_kafka_type_t
_ERROR_BYTES = 512
CONNECTION_LOST = -195  # RD_KAFKA_RESP_ERR__TRANSPORT: the broker closes the connection instead of answering


@cache
def library() -> ctypes.CDLL:
    """The librdkafka that the wheel carries. FileNotFoundError where it is linked into the extension instead."""
    import confluent_kafka  # noqa: F401 - loads what the library itself needs

    carried = [file for file in files("confluent-kafka") or () if file.name.startswith("librdkafka")]
    if not carried:
        raise FileNotFoundError("this build of confluent-kafka carries no librdkafka of its own")
    librdkafka = ctypes.CDLL(str(carried[0].locate()))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_conf_set", number, (pointer, text, text, text, ctypes.c_size_t)),
        ("rd_kafka_new", pointer, (number, pointer, text, ctypes.c_size_t)),
        ("rd_kafka_destroy", None, (pointer,)),
        ("rd_kafka_mock_cluster_new", pointer, (pointer, number)),
        ("rd_kafka_mock_cluster_destroy", None, (pointer,)),
        ("rd_kafka_mock_cluster_bootstraps", text, (pointer,)),
        ("rd_kafka_mock_partition_set_leader", number, (pointer, text, ctypes.c_int32, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_down", number, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_up", number, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_rtt", number, (pointer, ctypes.c_int32, number)),
        (
            "rd_kafka_mock_push_request_errors_array",
            None,
            (pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)),
        ),
    ):
        function = getattr(librdkafka, name)
        function.restype, function.argtypes = result, arguments
    return librdkafka


class MockCluster:
    """Brokers 1 to `brokers`, which listen on 127.0.0.1. A topic that is asked for is made, with 4 partitions."""

    def __init__(self, brokers: int = 3) -> None:
        self._library = library()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        config = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(config, b"log_level", b"0", error, _ERROR_BYTES)
        self._client = self._library.rd_kafka_new(_PRODUCER, config, error, _ERROR_BYTES)
        if not self._client:
            raise RuntimeError(f"librdkafka gives no client: {error.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        self.bootstrap_servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        _check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker))

    def set_response_time(self, broker: int, milliseconds: int) -> None:
        _check(self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds))

    def fail_next(self, api_key: ApiKey, *errors: ErrorCode | int) -> None:
        """The next requests of this API, to any broker, get these errors, one each."""
        numbers = [error if isinstance(error, int) else error.number for error in errors]
        array = (ctypes.c_int * len(numbers))(*numbers)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api_key, len(numbers), array)

    @contextmanager
    def down(self, broker: int) -> Iterator[None]:
        """It closes its connections and takes none."""
        _check(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker))
        try:
            yield
        finally:
            _check(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker))


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"librdkafka answers with error {error}")
