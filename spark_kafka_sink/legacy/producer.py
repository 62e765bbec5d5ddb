"""The old Scala producer's API (Kafka 0.8 to 1.1) over KafkaProducer, for porting code that was written for it.

    from spark_kafka_sink.legacy.producer import KeyedMessage, Producer

    producer = Producer({"metadata.broker.list": "localhost:9092", "request.required.acks": -1})
    producer.send(KeyedMessage("orders", b"key", b"message"))
    producer.close()

With producer.type=sync, the caller's thread dispatches messages, one caller at a time. With producer.type=async, messages go into
a bounded queue, from which one thread dispatches them. event_handler.py does the dispatch: partitions, retries, failures.
Laws: messages leave the queue in the order in which they were put in, and close() sends the rest, as far as its time-out allows.
Messages that could not be sent are reported: in sync mode to the caller of send(), in async mode to `on_error` and the log. Where
the old client waited without a limit, the limit is MAX_DISPATCH_MS, ten minutes. New code should use KafkaProducer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.interrupts import LiveCalls, Signal, Waiters
from spark_kafka_sink.legacy.config import conceal_legacy, read_config
from spark_kafka_sink.legacy.errors import FailedToSendMessageError, QueueFullError
from spark_kafka_sink.legacy.event_handler import EventHandler
from spark_kafka_sink.legacy.messages import KeyedMessage, SerializedMessage
from spark_kafka_sink.producer import exits, forks
from spark_kafka_sink.producer.producer import CLOSE_MARGIN_MS, KafkaProducer

__all__ = ["KeyedMessage", "Producer"]

logger = logging.getLogger(__name__)

MAX_DISPATCH_MS = 600_000  # with the default options, longer than a dispatch to a few topics that times out everywhere

_EXIT_LOCK_MS = 100  # how long the program's end waits for the queue's lock

OnError = Callable[[KafkaError, Sequence[KeyedMessage]], None]


class Producer:
    """The producer of the old Scala client. Any thread may use it.

    Args:
        config: values by the old client's keys ("metadata.broker.list", "producer.type", …); values may be strings.
        on_error: in async mode, called on the send thread with the error and the messages that failed. It may call send, which
            never waits there: if the queue is full, send raises QueueFullError at once. Exceptions of on_error are logged. One
            like SystemExit also ends the producer, as one of the partitioner does, and the queued messages are reported.
        clock, random: for tests.

    Raises:
        ConfigError: with all problems of the configuration. Nothing has been started.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        on_error: OnError | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        config = conceal_legacy(config)  # a traceback with locals shows this variable too
        self._config, plugins = read_config(config)
        clock = clock or Clock()
        self._generation = forks.generation()
        self._producer = _InnerProducer(self._config.producer.to_mapping(), clock=clock)
        try:
            self.client_id = self._producer.client_id
            self._handler = EventHandler(self._config, plugins, self._producer, clock, random or Random())
            self._dispatcher = self._start_dispatcher(on_error, clock)
        except BaseException:  # an interrupt too
            self._producer.close(0)
            raise

    def _start_dispatcher(self, on_error: OnError | None, clock: Clock) -> SyncDispatch | ProducerSendThread:
        if self._config.producer_type == "sync":
            return SyncDispatch(self._handler, self._producer.close, clock)
        queue = SendQueue(
            self._config.queue_buffering_max_messages, self._config.batch_num_messages, self._config.queue_buffering_max_ms, clock
        )
        send_thread = ProducerSendThread(
            queue, self._handler, self._config.queue_enqueue_timeout_ms, on_error, self._producer.close, self.client_id, clock
        )
        send_thread.start()
        exits.close_at_exit(send_thread, f"{self!r}", send_thread.thread)
        return send_thread

    def send(self, *messages: KeyedMessage) -> None:
        """sync: send the messages and wait until all are acknowledged. async: put them into the queue.

        Blocks in sync mode while other callers send, and as EventHandler.handle does. Blocks in async mode while the queue is
        full, for at most queue.enqueue.timeout.ms for each message.

        Raises:
            SerializationError: the serializers do not accept a message or key; none of the messages has been sent.
            FailedToSendMessageError: sync: some messages are not acknowledged after the last retry; the error contains them.
            QueueFullError: async: the queue stayed full; `queued` says how many of the messages are in the queue.
            KafkaTimeoutError: sync: another caller's dispatch takes longer than MAX_DISPATCH_MS.
            ProducerClosedError: the producer is closed, was closed while this call waited, or has ended.
        """
        forks.check_not_forked(self._generation, f"the producer {self.client_id}")
        self._dispatcher.send(self._handler.serialize(messages))

    def close(self, timeout_ms: int | None = None) -> None:
        """Refuse further messages, send those in the queue, end the thread and close all connections.

        Blocks for at most `timeout_ms` (default: MAX_DISPATCH_MS) and a few seconds more. Messages that are left then fail, and
        are reported as usual. If `on_error` calls close(), close() returns at once, and the thread ends when the queue is empty.
        In a forked child it does nothing. A second call has no effect.
        """
        if forks.is_forked(self._generation):
            return  # the thread and the connections belong to the parent process
        limit_ms = MAX_DISPATCH_MS if timeout_ms is None else timeout_ms
        if self._dispatcher.close(limit_ms):
            return
        logger.warning("! closing %s forcefully: messages were left after %d ms", self.client_id, limit_ms)
        self._handler.stop_retrying()
        self._producer.close(0)
        self._dispatcher.close(CLOSE_MARGIN_MS)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Producer({getattr(self, 'client_id', 'not made')})"  # in a traceback with locals, __init__ may be unfinished


class _InnerProducer(KafkaProducer):
    """The send thread closes it when the queue is empty. In sync mode, nothing waits in it while no call does."""

    closes_at_exit = False


# SYNC


@dataclass(eq=False, repr=False)
class SyncDispatch:
    """Sends on the caller's thread, for producer.type=sync. Each `close` calls `at_end` when the last dispatch is over."""

    handler: EventHandler
    at_end: Callable[[], None]
    clock: Clock

    def __post_init__(self) -> None:
        self._is_closed = False
        self._lock = threading.Lock()  # guards _dispatch_calls
        self._dispatch_calls = LiveCalls()  # one call at a time, so that messages keep the order of the calls
        self._waiters = Waiters(self._lock)  # woken after each dispatch

    def send(self, messages: Sequence[SerializedMessage]) -> None:
        """Send the messages while no other call does. Raises as `Producer.send` in sync mode."""
        self._check_open()
        if not self._run_alone(lambda: self._dispatch(messages), MAX_DISPATCH_MS):
            raise KafkaTimeoutError(f"another thread's dispatch takes longer than {MAX_DISPATCH_MS} ms; send from one thread")

    def _dispatch(self, messages: Sequence[SerializedMessage]) -> None:
        self._check_open()
        self.handler.handle(messages)

    def close(self, timeout_ms: int) -> bool:
        """Refuse further messages and finish. False if messages are still being sent after `timeout_ms`."""
        self._is_closed = True
        return self._run_alone(self.at_end, timeout_ms)

    def _run_alone(self, work: Callable[[], None], timeout_ms: int) -> bool:
        """Call `work` while no other call works. False if another call still works after `timeout_ms`."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        liveness_lock = threading.Lock()
        try:
            with liveness_lock:
                if not self._waiters.wait_until(lambda: self._admit_locked(liveness_lock), self.clock, deadline_ms):
                    return False
                work()
                return True
        finally:
            with self._lock:
                self._waiters.wake_all_locked()

    def _admit_locked(self, liveness_lock: threading.Lock) -> bool:
        if self._dispatch_calls:
            return False
        self._dispatch_calls.add(liveness_lock)
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed_error()


def _closed_error() -> ProducerClosedError:
    return ProducerClosedError("Cannot send: the producer is closed or being closed")


# ASYNC


@dataclass(eq=False, repr=False)
class SendQueue:
    """The messages that wait to be sent, in order: `capacity` at most. `take` returns `batch_messages` of them, or fewer if the
    oldest has waited `max_wait_ms`. When the queue is closed, `take` returns those that are left without waiting: this replaces
    the old client's shutdown message, for which the queue had to have room."""

    capacity: int
    batch_messages: int
    max_wait_ms: int
    clock: Clock

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # guards _entries and _is_closed
        self._waiters = Waiters(self._lock)  # woken when they change
        self._entries: deque[tuple[SerializedMessage, int]] = deque()  # with the time when it was put in
        self._is_closed = False

    def put(self, message: SerializedMessage, timeout_ms: int) -> bool:
        """Wait for room, at most `timeout_ms`. False if the queue is still full then. Raises ProducerClosedError."""
        return self._waiters.wait_until(lambda: self._put_locked(message), self.clock, self.clock.now_ms() + timeout_ms)

    def _put_locked(self, message: SerializedMessage) -> bool:
        if self._is_closed:
            raise _closed_error()
        if len(self._entries) >= self.capacity:
            return False
        self._waiters.wake_all_locked()
        self._entries.append((message, self.clock.now_ms()))
        return True

    def take(self) -> list[SerializedMessage]:
        """Wait for the next messages. Empty only if the queue is closed and empty. Called by the send thread only."""
        self._waiters.wait_until(lambda: self._is_closed or len(self._entries) > 0, self.clock, NEVER_MS)
        if self._entries:
            _, since_ms = self._entries[0]
            self._waiters.wait_until(self._is_due_locked, self.clock, since_ms + self.max_wait_ms)
        with self._lock:
            self._waiters.wake_all_locked()
            return [self._entries.popleft()[0] for _ in range(min(len(self._entries), self.batch_messages))]

    def _is_due_locked(self) -> bool:
        return self._is_closed or len(self._entries) >= self.batch_messages

    def close(self) -> None:
        """Accept no more messages, and wake all threads that wait in `put` or `take`."""
        with self._lock:
            self._waiters.wake_all_locked()
            self._is_closed = True

    def close_at_exit(self) -> None:
        """As `close`, without waiting long for the lock."""
        self._is_closed = True
        self._waiters.wake_all_within(_EXIT_LOCK_MS)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(eq=False, repr=False)
class ProducerSendThread:
    """Sends queued messages on its own thread, for producer.type=async. The thread calls `at_end` once: when the queue is closed
    and everything was sent or has failed. An exception like SystemExit closes the queue, and what is left in it fails."""

    queue: SendQueue
    handler: EventHandler
    enqueue_timeout_ms: int  # below zero: MAX_DISPATCH_MS
    on_error: OnError | None
    at_end: Callable[[], None]
    client_id: str
    clock: Clock

    def __post_init__(self) -> None:
        self._end_signal = Signal()
        self._dispatched_count = 0  # messages that were taken from the queue and are not settled
        # A daemon thread, so that an interpreter that ends without close() does not wait long for a broker (producer/exits.py).
        self.thread = threading.Thread(target=self._run, name=f"ProducerSendThread-{self.client_id}", daemon=True)

    def start(self) -> None:
        """Start the thread. If that raises, the queue is closed: an interrupt may come when the thread runs already."""
        try:
            self.thread.start()
        except BaseException:
            self.queue.close()
            raise

    def send(self, messages: Sequence[SerializedMessage]) -> None:
        """Put the messages into the queue. Raises as `Producer.send` in async mode."""
        limit_ms = MAX_DISPATCH_MS if self.enqueue_timeout_ms < 0 else self.enqueue_timeout_ms
        timeout_ms = 0 if self._is_this_thread() else limit_ms
        for queued_count, message in enumerate(messages):
            try:
                was_put = self.queue.put(message, timeout_ms)
            except ProducerClosedError as error:
                raise ProducerClosedError(
                    f"{error.message}; {queued_count} of {len(messages)} messages of this call are queued"
                ) from None
            if not was_put:
                raise QueueFullError(
                    f"Event queue is full of unsent messages, could not send a message for topic {message.original.topic} within"
                    f" {timeout_ms} ms (queue.enqueue.timeout.ms); {queued_count} of the {len(messages)} messages of this call"
                    " are queued. Send more slowly, or raise queue.buffering.max.messages or queue.enqueue.timeout.ms",
                    queued=queued_count,
                )

    def close(self, timeout_ms: int) -> bool:
        """Refuse further messages and send those in the queue. False if the thread has not ended after `timeout_ms`."""
        self.queue.close()
        if self._is_this_thread():
            return True  # called from on_error; the thread ends after the queue is empty
        return self._end_signal.wait(self.clock, timeout_ms)

    def close_within(self, timeout_ms: int) -> None:  # noqa: ARG002 - the process ends then
        """When the program ends: send what is in the queue."""
        self.queue.close_at_exit()

    def count_lost_rows(self) -> int:
        return len(self.queue) + self._dispatched_count

    def _is_this_thread(self) -> bool:
        return threading.current_thread() is self.thread

    def _run(self) -> None:
        try:
            while messages := self.queue.take():
                self._dispatched_count = len(messages)
                self._handle(messages)
                self._dispatched_count = 0
        except BaseException as error:  # such as SystemExit of a plug-in, with which a thread would end in silence
            logger.exception("! the send thread of %s ends", self.client_id)
            self.queue.close()
            if unsent_messages := [message.original for messages in iter(self.queue.take, []) for message in messages]:
                self._report(KafkaError(f"the send thread has ended: {error!r}; the messages were not sent"), unsent_messages)
        finally:
            try:
                self.at_end()
            finally:
                self._end_signal.signal()

    def _handle(self, messages: Sequence[SerializedMessage]) -> None:
        try:
            self.handler.handle(messages)
        except FailedToSendMessageError as error:
            self._report(error, error.messages)
        except BaseException as error:
            logger.exception("! dispatching %d messages", len(messages))
            failure = KafkaError(f"dispatching failed: {error!r}; some of the messages may have been sent")
            self._report(failure, [message.original for message in messages])
            if not isinstance(error, Exception):
                raise

    def _report(self, error: KafkaError, messages: Sequence[KeyedMessage]) -> None:
        logger.error("! %d messages are given up: %s", len(messages), error)
        if self.on_error is None:
            return
        try:
            self.on_error(error, messages)
        except Exception:
            logger.exception("! on_error raised")
