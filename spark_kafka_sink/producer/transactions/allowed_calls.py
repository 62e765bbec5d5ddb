"""Which transactional call fits which state of the producer, and what a call that does not fit is told to do instead."""

from __future__ import annotations

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.transactions.transactional_call import Kind
from spark_kafka_sink.producer.transactions.transaction_manager import State

ALLOWED_IN = {
    Kind.USE_ID: {State.UNINITIALIZED, State.READY, State.PREPARED},
    Kind.INIT: {State.UNINITIALIZED},
    Kind.BEGIN: {State.READY, State.RAISING_EPOCH},
    Kind.SEND_OFFSETS: {State.IN_TRANSACTION},
    Kind.PREPARE: {State.IN_TRANSACTION},
    Kind.COMMIT: {State.IN_TRANSACTION, State.PREPARED},
    Kind.ABORT: {State.IN_TRANSACTION, State.PREPARED, State.ABORTABLE_ERROR},
}

_WHERE = {
    State.UNINITIALIZED: "before init_transactions()",
    State.INITIALIZING: "while init_transactions() is under way",
    State.RAISING_EPOCH: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    State.READY: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    State.IN_TRANSACTION: "within a transaction: call commit_transaction() or abort_transaction() first",
    State.PREPARED: "in a prepared transaction: it can only be committed or aborted",
    State.COMMITTING: "while the transaction is being committed",
    State.ABORTING: "while the transaction is being aborted",
    State.ABORTABLE_ERROR: "after an error in the transaction: call abort_transaction() first",
    State.FATAL_ERROR: "after a fatal error: close the producer",
}


def illegal_state(kind: Kind, state: State) -> IllegalStateError:
    return IllegalStateError(f"{kind.value}() is not possible {_WHERE[state]}")
