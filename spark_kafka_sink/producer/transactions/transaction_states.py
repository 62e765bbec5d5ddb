"""The states of a transactional producer: which may follow each, and which calls each allows.

UNINITIALIZED ─▶ INITIALIZING ─▶ READY ─▶ IN_TRANSACTION ─▶ COMMITTING / ABORTING ─▶ READY, or BUMPING_EPOCH ─▶ READY
                                             │    └▶ PREPARED ─▶ COMMITTING / ABORTING, or another process ends it
                                             └▶ ABORTABLE_ERROR ─▶ ABORTING      FATAL_ERROR is reachable from each
COMMITTING ─▶ ABORTABLE_ERROR
INITIALIZING, BUMPING_EPOCH: denied ─▶ UNINITIALIZED      READY, PREPARED: another transactional id ─▶ UNINITIALIZED
"""

from __future__ import annotations

from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod

NEXT_TXN_STATES = {  # FATAL_ERROR, which follows each state, is left out
    SequencerState.UNINITIALIZED: {SequencerState.INITIALIZING},
    SequencerState.INITIALIZING: {SequencerState.READY, SequencerState.UNINITIALIZED},
    SequencerState.READY: {SequencerState.IN_TRANSACTION, SequencerState.UNINITIALIZED},
    SequencerState.IN_TRANSACTION: {
        SequencerState.PREPARED,
        SequencerState.COMMITTING,
        SequencerState.ABORTING,
        SequencerState.ABORTABLE_ERROR,
    },
    SequencerState.PREPARED: {
        SequencerState.COMMITTING,
        SequencerState.ABORTING,
        SequencerState.UNINITIALIZED,  # under another transactional id
    },
    SequencerState.COMMITTING: {SequencerState.READY, SequencerState.BUMPING_EPOCH, SequencerState.ABORTABLE_ERROR},
    SequencerState.ABORTING: {SequencerState.READY, SequencerState.BUMPING_EPOCH},
    SequencerState.BUMPING_EPOCH: {
        SequencerState.READY,
        SequencerState.UNINITIALIZED,  # it was denied
    },
    SequencerState.ABORTABLE_ERROR: {SequencerState.ABORTING},
    SequencerState.FATAL_ERROR: set(),
}

ALLOWED_STATES = {
    CalledMethod.USE_ID: {SequencerState.UNINITIALIZED, SequencerState.READY, SequencerState.PREPARED},
    CalledMethod.INIT: {SequencerState.UNINITIALIZED},
    CalledMethod.BEGIN: {SequencerState.READY, SequencerState.BUMPING_EPOCH},
    CalledMethod.SEND_OFFSETS: {SequencerState.IN_TRANSACTION},
    CalledMethod.PREPARE: {SequencerState.IN_TRANSACTION},
    CalledMethod.COMMIT: {SequencerState.IN_TRANSACTION, SequencerState.PREPARED},
    CalledMethod.ABORT: {SequencerState.IN_TRANSACTION, SequencerState.PREPARED, SequencerState.ABORTABLE_ERROR},
}

STATE_TEXTS = {  # when a call was refused
    SequencerState.UNINITIALIZED: "before init_transactions()",
    SequencerState.INITIALIZING: "while init_transactions() is under way",
    SequencerState.BUMPING_EPOCH: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    SequencerState.READY: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    SequencerState.IN_TRANSACTION: "within a transaction: call commit_transaction() or abort_transaction() first",
    SequencerState.PREPARED: "in a prepared transaction: it can only be committed or aborted",
    SequencerState.COMMITTING: "while the transaction is being committed",
    SequencerState.ABORTING: "while the transaction is being aborted",
    SequencerState.ABORTABLE_ERROR: "after an error in the transaction: call abort_transaction() first",
    SequencerState.FATAL_ERROR: "after a fatal error: close the producer",
}
