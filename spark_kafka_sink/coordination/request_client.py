"""Many requests to many brokers at once, each retried until it is answered or the time is up.

`ask` takes asks (whom, what; see operation.py) and drives a NetworkClient until each has an outcome. Asks for the same broker
that may share a request do; coordinators are found first, many at once, and found again when they have moved or are lost.
The caller's thread does all of it, and a client belongs to one thread at a time.
Laws: no call outlasts its time-out; every ask gets exactly one outcome; what a broker is asked is never more than
max.in.flight.requests.per.connection requests at a time; an ask that failed is not repeated before its back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.coordination.call import Call
from spark_kafka_sink.coordination.cluster_access import ClusterAccess, Network
from spark_kafka_sink.coordination.operation import Ask, Broker, BrokerGoneError, ItemT, Operation, ResultT
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, printable_list
from spark_kafka_sink.network.metadata import Metadata

log = logging.getLogger(__name__)

T = TypeVar("T")


class RequestClient:
    """
    Args:
        config: the network's options; retry.backoff.ms, retry.backoff.max.ms, request.timeout.ms.
        clock: for tests.
        metadata, network, random: for tests; made of the config otherwise.

    Raises:
        ConfigError: as NetworkClient does.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        clock: Clock | None = None,
        metadata: Metadata | None = None,
        network: Network | None = None,
        random: Random | None = None,
    ) -> None:
        self._access = ClusterAccess(config, clock=clock, metadata=metadata, network=network, random=random)
        self.clock = self._access.clock

    def __enter__(self) -> RequestClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Never blocks."""
        self._access.network.close()

    def ask(self, asks: Sequence[Ask[Any, T]], timeout_ms: int) -> list[T | KafkaError]:
        """Send all that is asked, in parallel, and wait until each ask has its outcome. Blocks at most `timeout_ms`.

        Returns:
            For each ask, in their order, its result, or the error it failed with: that of Operation.judge;
            UnsupportedVersionError, when the broker speaks no version that will do; AuthenticationError, when a broker that it
            waits for, or every broker, does not let us in; BrokerGoneError; NetworkError, when bootstrap.servers lead to
            another cluster; and KafkaTimeoutError for what was not answered in time, with the last trouble. Its condition is
            KAFKA_BROKER_UNREACHABLE when no broker answered at all. What was sent may have been carried out nevertheless.
        """
        return Call(self._access, asks, timeout_ms).run()

    def ask_all(self, asks: Sequence[Ask[Any, T]], timeout_ms: int) -> list[T]:
        """As `ask`, but raise when any failed: once all have their outcome, the error of the first one.

        If all that is wrong is that time ran out, one KafkaTimeoutError names what was not answered.
        """
        outcomes = self.ask(asks, timeout_ms)
        return _results(asks, outcomes, timeout_ms)

    def ask_every_broker(self, operation: Operation[ItemT, ResultT], item: ItemT, timeout_ms: int) -> dict[int, ResultT]:
        """Ask each broker of the cluster, as metadata that is fetched anew lists them. Blocks at most `timeout_ms`.

        When the brokers become others meanwhile all are asked again: what one had was taken over by others, which may have
        answered before.

        Returns:
            By node id, what each answered.

        Raises:
            KafkaError: as `ask_all`.
        """
        deadline_ms = self.clock.now_ms() + timeout_ms
        while True:
            nodes = self._listed_brokers(deadline_ms, timeout_ms)
            asks = [Ask(Broker(node_id), operation, item) for node_id in nodes]
            outcomes = self.ask(asks, max(deadline_ms - self.clock.now_ms(), 0))
            is_same = not any(isinstance(outcome, BrokerGoneError) for outcome in outcomes) and nodes == self._known_brokers()
            if is_same or self.clock.now_ms() >= deadline_ms:
                return dict(zip(nodes, _results(asks, outcomes, timeout_ms), strict=True))
            log.debug("= the brokers of the cluster have changed: all are asked again")

    def back_off(self, failures: int, at_most_ms: int) -> None:
        """Wait before attempts that follow so many failed ones, when it is the caller who makes them. Blocks `at_most_ms`.

        Metadata is fetched anew meanwhile, as the brokers may be others.
        """
        self._access.metadata.request_update("what was asked for is elsewhere")
        until_ms = self.clock.now_ms() + min(self._access.backoff_ms(failures), at_most_ms)
        while (left_ms := until_ms - self.clock.now_ms()) > 0:
            self._access.network.poll(left_ms, self.clock.now_ms())

    def _known_brokers(self) -> list[int]:
        return sorted(node.id for node in self._access.cluster().nodes)

    def _listed_brokers(self, deadline_ms: int, timeout_ms: int) -> list[int]:
        """Node ids, from an answer that comes after this call."""
        self._access.fatal_error()  # one of earlier attempts is of no interest
        version = self._access.metadata.request_update("every broker is to be asked", reset_backoff=True)
        while not self._access.has_news_since(version) or self._access.cluster().is_bootstrap:
            now_ms = self.clock.now_ms()
            if now_ms >= deadline_ms:
                raise self._access.timeout_error("the list of brokers", timeout_ms, "")
            self._access.network.poll(deadline_ms - now_ms, now_ms)
        return self._known_brokers()


def _results(asks: Sequence[Ask[Any, T]], outcomes: Sequence[T | KafkaError], timeout_ms: int) -> list[T]:
    results = [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]
    if len(results) == len(outcomes):
        return results
    late = [
        (ask.operation.describe(ask.item), outcome)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, KafkaTimeoutError)
    ]
    others = [outcome for outcome in outcomes if isinstance(outcome, KafkaError) and not isinstance(outcome, KafkaTimeoutError)]
    if others or len(late) == 1:
        raise (others or [late[0][1]])[0]
    names = printable_list(what for what, _ in late)
    raise KafkaTimeoutError(
        f"{len(late):,} of {len(outcomes):,} requests were not answered within {timeout_ms} ms: {names}; the first of them:"
        f" {late[0][1].message}",
        condition=late[0][1].condition,
    )
