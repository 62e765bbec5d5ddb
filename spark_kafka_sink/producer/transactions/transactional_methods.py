"""The transactional half of KafkaProducer's interface, as a base class of it.

producer = KafkaProducer({"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"})
producer.init_transactions()
while rows := next_rows():
    try:
        with producer.transaction():
            producer.send_columns("orders", value=rows)
    except (FatalProducerError, TransactionTimeoutError):
        raise  # another producer has taken over, a permission is missing, or brokers do not answer: close this one
    except KafkaError:
        ...  # the transaction has been aborted: none of its rows is seen, and the next one may begin

A call is posted to the Sender, and its caller waits at most max.block.ms. After a time-out the call continues, and the same call
made again waits for its end; until then any other call is refused. After offsets that timed out, any call may follow (both as
in Java).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from spark_kafka_sink.errors import FatalProducerError, IllegalStateError, KafkaError
from spark_kafka_sink.producer.transactions.caller_side import CallerSide
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class TransactionalMethods:
    """KafkaProducer's methods for transactions. Any thread may call them. Each blocks at most max.block.ms; `transaction` may do
    so several times.

    Each method raises, besides what its docstring says:
        IllegalStateError: the call does not fit the producer's state, or is made in a callback; nothing has changed.
        TransactionTimeoutError: max.block.ms has passed. The call continues, and the same call made again waits for its end.
        ProducerClosedError: the producer is closed. KafkaError (KAFKA_INTERNAL_ERROR): its Sender has ended.
        AbortableTransactionError: the transaction has failed. Call abort_transaction(), then go on with the next one.
        FatalProducerError: this producer cannot be used any more; close it. Its subclass ProducerFencedError: another producer
            with the same transactional.id has taken over.
    """

    _caller_side: CallerSide | None = None  # with transactional.id only

    # Methods of KafkaProducer. The first one raises in a forked child, the last one if the producer is closed or has ended.
    _check_process: Callable[[], None]
    _may_wait: Callable[[], bool]
    _check_alive: Callable[[], None]

    def use_transactional_id(self, transactional_id: str) -> None:
        """Go on under another transactional.id, with the same connections and metadata: call init_transactions() next.

        Possible before init_transactions(), outside of a transaction, and in a prepared one, which stays open: it can be ended
        from outside only (see prepare_transaction). Sends no request.

        Raises:
            TypeError, ValueError: the id is no text, is empty, or is too long for a request.
        """
        self._checked_caller_side().use_id(transactional_id)

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Take over the transactional.id: fence earlier producers with it, and wait until their open transactions are aborted.

        Must be called once for each transactional.id, before any method but use_transactional_id(). After an AuthorizationError
        it can be called again, when the permission has been granted.

        Args:
            transactional_id: first do what use_transactional_id() does with this id, and raise what it raises.
        """
        self._checked_caller_side().init(transactional_id)

    def begin_transaction(self) -> None:
        """Begin a transaction: from now on rows can be sent. Sends no request.

        After a transaction that had to be aborted, or an upgrade of the brokers, it may wait for a new epoch. Raises
        AuthorizationError if brokers deny the epoch. Then call init_transactions(), when the permission has been granted.
        """
        self._checked_caller_side().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | Iterable[Any],
        group_metadata: ConsumerGroupMetadata | bytes | Any,
        *,
        wait: bool = True,
    ) -> None:
        """Have offsets of a consumer group take effect with the commit of this transaction (consume–transform–produce).

        Args:
            offsets: the next record to read, by partition. Topic and partition must exist. Also what `position` of
                confluent-kafka's consumer returns, and kafka-python's types.
            group_metadata: the group; with a member, brokers reject the offsets if it has lost its partitions. Also what
                `consumer_group_metadata()` of confluent-kafka's consumer returns, or `group_metadata()` of kafka-python's.
            wait: false returns at once. The offsets are sent behind the rows that were handed over before, at the latest when
                the next call waits. If that fails, the transaction cannot be committed or prepared.

        Raises:
            TypeError, ValueError: a topic, number or text that no request can carry, or no group; nothing has changed.
            AbortableTransactionError: the group has moved on, or this user may not commit offsets of it.
            TransactionTimeoutError: the offsets may still be sent. Send them again, or abort.
        """
        self._checked_caller_side().send_offsets(offsets, group_metadata, wait=wait)

    def commit_transaction(self) -> None:
        """Send what is queued without lingering, wait until every row is acknowledged, and commit.

        Raises AbortableTransactionError if a row has failed, also before it was queued. After a FatalProducerError the
        transaction may be committed all the same, if an answer of the coordinator was lost.
        """
        self._checked_caller_side().commit()

    def abort_transaction(self) -> None:
        """Abort: no reader with isolation.level=read_committed sees the transaction's rows. Rows that have not been sent fail
        with TransactionAbortedError."""
        self._checked_caller_side().abort()

    def prepare_transaction(self) -> PreparedTransaction:
        """Send everything and wait until every row is acknowledged, but leave the transaction open.

        Returns what another process needs to end the transaction. This producer can still commit or abort it, accepts no more
        rows, and leaves the transaction open when it is closed; but close() aborts it after a call that timed out or was
        interrupted. Brokers abort the transaction after transaction.timeout.ms.
        """
        return self._checked_caller_side().prepare()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, and commit it at the end of the block; abort it when the block or the commit raises.

        A commit that raises TransactionTimeoutError goes on: it may commit the transaction later. commit_transaction() waits for
        its end. An abort that does not end in time is logged, and the next block waits for its end. If the abort meets a
        FatalProducerError, the block raises that instead of another KafkaError.

        Blocks at most max.block.ms each for the end of an earlier abort, the begin, the commit, and after an error the abort.
        """
        caller_side = self._checked_caller_side()
        caller_side.finish_abort()
        caller_side.begin()
        try:
            yield
            self._checked_caller_side().commit()  # the block may run in a forked child by now, or may have closed the producer
        except FatalProducerError:
            raise
        except BaseException as error:
            self._abort_after_error(error)
            raise

    def _abort_after_error(self, error: BaseException) -> None:
        """Abort after `error`, which the caller raises. A fatal error of the abort replaces a KafkaError; others are logged."""
        try:
            self._checked_caller_side().abort()
        except IllegalStateError:
            return  # the block has ended the transaction itself, its commit continues, or the transaction is a parent process's
        except KafkaError as failure:
            if isinstance(failure, FatalProducerError) and isinstance(error, KafkaError):
                raise failure from error
            logger.warning("! the transaction could not be aborted: %s", failure)

    def _checked_caller_side(self) -> CallerSide:
        self._check_process()
        if not self._may_wait():
            raise IllegalStateError("A transactional method in a callback would wait for its own thread")
        if self._caller_side is None:
            raise IllegalStateError("This producer has no transactions: give it a transactional.id")
        self._check_alive()
        return self._caller_side

    def _write(self, hand_over_rows: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `hand_over_rows`. A transactional producer accepts rows only within a transaction."""
        if self._caller_side is None:
            return hand_over_rows(*args, **kwargs)
        return self._caller_side.write(hand_over_rows, *args, **kwargs)
