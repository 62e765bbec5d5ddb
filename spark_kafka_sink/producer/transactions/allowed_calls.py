"""Which transactional call fits which state of the producer, and what a call that does not fit is told to do instead."""

from __future__ import annotations

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.transactions.transaction_manager import TxnState
from spark_kafka_sink.producer.transactions.transactional_call import Method

ALLOWED_IN = {
    Method.USE_ID: {TxnState.UNINITIALIZED, TxnState.READY, TxnState.PREPARED},
    Method.INIT: {TxnState.UNINITIALIZED},
    Method.BEGIN: {TxnState.READY, TxnState.RAISING_EPOCH},
    Method.SEND_OFFSETS: {TxnState.IN_TRANSACTION},
    Method.PREPARE: {TxnState.IN_TRANSACTION},
    Method.COMMIT: {TxnState.IN_TRANSACTION, TxnState.PREPARED},
    Method.ABORT: {TxnState.IN_TRANSACTION, TxnState.PREPARED, TxnState.ABORTABLE_ERROR},
}

_WHERE = {
    TxnState.UNINITIALIZED: "before init_transactions()",
    TxnState.INITIALIZING: "while init_transactions() is under way",
    TxnState.RAISING_EPOCH: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    TxnState.READY: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    TxnState.IN_TRANSACTION: "within a transaction: call commit_transaction() or abort_transaction() first",
    TxnState.PREPARED: "in a prepared transaction: it can only be committed or aborted",
    TxnState.COMMITTING: "while the transaction is being committed",
    TxnState.ABORTING: "while the transaction is being aborted",
    TxnState.ABORTABLE_ERROR: "after an error in the transaction: call abort_transaction() first",
    TxnState.FATAL_ERROR: "after a fatal error: close the producer",
}


def illegal_state(method: Method, state: TxnState) -> IllegalStateError:
    return IllegalStateError(f"{method.value}() is not possible {_WHERE[state]}")
