"""Sends many requests to many brokers at once, and retries each until it is answered or the time-out ends.

`ask` takes Asks (target, operation, item; see operation.py) and drives a NetworkClient until each has an outcome. Asks for the
same broker share a request if the API allows it. Coordinators are looked up first, many at once, and again if they have moved or
cannot be reached. Everything runs on the caller's thread, and only one thread at a time may use a client.
Laws: no call takes longer than its time-out; every ask gets exactly one outcome; a broker has at most
max.in.flight.requests.per.connection requests at a time; an ask that failed is retried only after its back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from spark_kafka_sink.admin.call import Call
from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.operation import Ask, Broker, BrokerGoneError, ItemT, Operation, ResultT
from spark_kafka_sink.admin.question import Question, Reply, results_of
from spark_kafka_sink.errors import KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RequestClient:
    """Asks brokers and coordinators. Each call blocks until all its asks have an outcome.

    Args:
        access: the network, which close() closes.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self.clock = access.clock

    def __enter__(self) -> RequestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Never blocks."""
        self._access.network.close()

    def ask(
        self, asks: Sequence[Ask[Any, T]], timeout_ms: int, on_outcome: Callable[[int], None] = lambda _: None
    ) -> list[T | KafkaError]:
        """Send all asks in parallel, and wait until each has its outcome. Blocks at most `timeout_ms`.

        Args:
            on_outcome: called with the position of each ask when it has its outcome; it must not raise.

        Returns:
            The result or the error of each ask, in the order of the asks. Errors are those that Operation.judge raises, and:
            UnsupportedVersionError: the broker does not support a version that the operation can use.
            AuthenticationError: the broker that the ask is for, or every broker, rejects the login.
            BrokerGoneError: the broker is not part of the cluster any more.
            NetworkError: bootstrap.servers lead to another cluster.
            KafkaTimeoutError: there was no answer in time; the text has the last problem. The condition is
                KAFKA_BROKER_UNREACHABLE if no broker answered at all. The broker may have carried out the request nevertheless.
        """
        return Call(self._access, asks, timeout_ms, on_outcome).run()

    def ask_all(self, asks: Sequence[Ask[Any, T]], timeout_ms: int) -> list[T]:
        """As `ask`, but returns results only. If asks failed, raises as `results_of` does when all asks have their outcome."""
        outcomes = self.ask(asks, timeout_ms)
        return results_of(asks, outcomes, timeout_ms)

    def ask_together(self, questions: Sequence[Question[Any]], timeout_ms: int) -> list[Reply[Any]]:
        """Send the asks of several questions side by side, and wait until each ask has its outcome. Blocks at most `timeout_ms`.

        Nothing is raised: each reply raises what its own asks have failed with.
        """
        outcomes = iter(self.ask([ask for question in questions for ask in question.asks], timeout_ms))
        return [Reply(question, list(islice(outcomes, len(question.asks))), timeout_ms) for question in questions]

    def ask_every_broker(self, operation: Operation[ItemT, ResultT], item: ItemT, timeout_ms: int) -> dict[int, ResultT]:
        """Ask each broker of the cluster, after fetching the list of brokers. Blocks at most `timeout_ms`.

        If the list of brokers changes meanwhile, all are asked again: a broker that has answered already may have taken over what
        belonged to a broker that left.

        Returns:
            The result of each broker by node id.

        Raises:
            KafkaError: as `ask_all`.
        """
        deadline_ms = self.clock.now_ms() + timeout_ms
        is_first_attempt = True
        while True:
            nodes = self._fetch_brokers(deadline_ms, timeout_ms, is_urgent=is_first_attempt)
            is_first_attempt = False
            asks = _asks(nodes, operation, item)
            outcomes = self.ask(asks, max(deadline_ms - self.clock.now_ms(), 0))
            is_unchanged = not any(isinstance(outcome, BrokerGoneError) for outcome in outcomes) and nodes == self.known_brokers()
            if is_unchanged or self.clock.now_ms() >= deadline_ms:
                return dict(zip(nodes, results_of(asks, outcomes, timeout_ms), strict=True))
            logger.debug("= the brokers of the cluster have changed: asking all of them again")

    def ask_known_brokers(self, operation: Operation[ItemT, ResultT], item: ItemT, timeout_ms: int) -> dict[int, ResultT]:
        """Ask the known brokers once; the result lacks those that leave meanwhile. If none is known, as `ask_every_broker`."""
        nodes = self.known_brokers()
        if not nodes:
            return self.ask_every_broker(operation, item, timeout_ms)
        answers: list[ResultT | KafkaError] = self.ask(_asks(nodes, operation, item), timeout_ms)
        outcomes = {node: answer for node, answer in zip(nodes, answers, strict=True) if not isinstance(answer, BrokerGoneError)}
        results: list[ResultT] = results_of(_asks(outcomes, operation, item), list(outcomes.values()), timeout_ms)
        return dict(zip(outcomes, results, strict=True))

    def back_off(self, failure_count: int, max_wait_ms: int) -> None:
        """Wait before the next attempt of a caller whose attempts have failed so often. Blocks at most `max_wait_ms`.

        Metadata is fetched again meanwhile, as brokers or leaders may have changed.
        """
        self._access.metadata.request_update("what was asked for is elsewhere")
        self.pause(min(self._access.backoff_ms(failure_count), max_wait_ms))

    def pause(self, wait_ms: int) -> None:
        """Wait, and serve connections meanwhile."""
        deadline_ms = self.clock.now_ms() + wait_ms
        while (left_ms := deadline_ms - self.clock.now_ms()) > 0:
            self._access.network.poll(left_ms, self.clock.now_ms())

    def finalized_features(self) -> tuple[int, Mapping[str, int]]:
        """The epoch and the levels of the cluster's finalized features, as the brokers that have answered say."""
        return self._access.network.finalized_features()

    def known_brokers(self) -> list[int]:
        """The node ids of all brokers in the latest metadata; empty before the first metadata."""
        cluster = self._access.metadata.cluster()
        return [] if cluster.is_bootstrap else sorted(node.id for node in cluster.nodes)

    def _fetch_brokers(self, deadline_ms: int, timeout_ms: int, *, is_urgent: bool) -> list[int]:
        """The node ids of all brokers in a Metadata answer that this call requests."""
        self._access.metadata.take_error()  # discards an error of earlier calls
        version = self._access.metadata.request_update("a request goes to every broker", is_urgent=is_urgent)
        while not self._access.is_metadata_newer_than(version) or self._access.metadata.cluster().is_bootstrap:
            now_ms = self.clock.now_ms()
            if now_ms >= deadline_ms:
                raise self._access.timeout_error("the list of brokers", timeout_ms, "")
            self._access.network.poll(deadline_ms - now_ms, now_ms)
        return self.known_brokers()


def _asks(nodes: Iterable[int], operation: Operation[ItemT, ResultT], item: ItemT) -> list[Ask[ItemT, ResultT]]:
    return [Ask(Broker(node_id), operation, item) for node_id in nodes]
