"""protocol/error_codes.py against kio's table, which is generated from Kafka's Errors.java."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as TheirErrorCode

from spark_kafka_sink.errors import AuthenticationError, AuthorizationError, BrokerError
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, Errors, Persisted


@pytest.mark.parametrize("theirs", list(TheirErrorCode), ids=lambda code: code.name)
def test_every_code_of_kafka_has_a_row_with_its_name(theirs: TheirErrorCode) -> None:
    row = ERROR_CODES[int(theirs)]
    assert row.name.lower() == theirs.name
    assert row.is_retriable == theirs.retriable
    assert row.doc.endswith(".")


def test_a_refresh_implies_a_retry() -> None:
    assert all(row.is_retriable for row in ERROR_CODES.values() if row.must_refresh_metadata)


def test_the_codes_that_ask_for_new_metadata() -> None:
    # Subclasses of InvalidMetadataException in the Java client.
    assert {row.name for row in ERROR_CODES.values() if row.must_refresh_metadata} == {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "KAFKA_STORAGE_ERROR",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
    }


def test_the_codes_that_ask_for_the_coordinator_anew() -> None:
    # Subclasses of RefreshRetriableException in the Java client that are no InvalidMetadataException.
    find = {row.number for row in ERROR_CODES.values() if row.must_find_coordinator}
    assert find == {Errors.COORDINATOR_NOT_AVAILABLE.number, Errors.NOT_COORDINATOR.number}
    assert all(row.is_retriable and not row.must_refresh_metadata for row in ERROR_CODES.values() if row.must_find_coordinator)
    assert Errors.COORDINATOR_LOAD_IN_PROGRESS.is_retriable


@pytest.mark.parametrize(
    ("code", "persisted"),
    [
        (Errors.MESSAGE_TOO_LARGE, Persisted.NO),
        (Errors.NOT_ENOUGH_REPLICAS, Persisted.NO),
        (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, Persisted.NO),
        (Errors.INVALID_RECORD, Persisted.NO),
        (Errors.UNSUPPORTED_VERSION, Persisted.NO),
        # Also the answer of a leader that wrote the batch and lost the partition while it waited for its followers.
        (Errors.NOT_LEADER_OR_FOLLOWER, Persisted.MAYBE),
        (Errors.UNKNOWN_TOPIC_OR_PARTITION, Persisted.MAYBE),
        (Errors.KAFKA_STORAGE_ERROR, Persisted.MAYBE),
        # Not known as answers to Produce.
        (Errors.LEADER_NOT_AVAILABLE, Persisted.MAYBE),
        (Errors.FENCED_LEADER_EPOCH, Persisted.MAYBE),
        (Errors.NETWORK_EXCEPTION, Persisted.MAYBE),
        (Errors.REQUEST_TIMED_OUT, Persisted.MAYBE),
        (Errors.UNKNOWN_SERVER_ERROR, Persisted.MAYBE),
        (Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Persisted.YES),
        (Errors.DUPLICATE_SEQUENCE_NUMBER, Persisted.YES),
    ],
)
def test_whether_a_batch_can_be_in_the_log(code: object, persisted: Persisted) -> None:
    assert code.persisted is persisted


def test_an_unknown_code_keeps_its_number_and_is_not_retried() -> None:
    row = Errors.for_code(12345)
    assert (row.number, row.is_retriable, row.persisted) == (12345, False, Persisted.MAYBE)
    assert row != Errors.UNKNOWN_SERVER_ERROR
    error = row.exception("orders-3")
    assert isinstance(error, BrokerError)
    assert error.error_code == 12345
    assert str(error) == (
        "[KAFKA_UNKNOWN_SERVER_ERROR] orders-3: The broker answered with error code 12345, which is newer than this client."
    )


def test_all_codes_but_none_are_true() -> None:
    assert not Errors.NONE
    assert Errors.UNKNOWN_SERVER_ERROR
    assert Errors.for_code(0) is Errors.NONE


def test_an_error_quotes_the_broker() -> None:
    error = Errors.INVALID_RECORD.exception("orders-3 on node 2", "no key")
    assert str(error) == (
        '[KAFKA_INVALID_RECORD] orders-3 on node 2: A record failed the broker\'s validation. The broker says: "no key"'
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_refused_credentials_are_an_authentication_error() -> None:
    assert isinstance(Errors.SASL_AUTHENTICATION_FAILED.exception("node 1"), AuthenticationError)
    assert not isinstance(Errors.TOPIC_AUTHORIZATION_FAILED.exception("node 1"), AuthenticationError)


def test_a_missing_permission_is_an_authorization_error() -> None:
    for row in (
        Errors.TOPIC_AUTHORIZATION_FAILED,
        Errors.GROUP_AUTHORIZATION_FAILED,
        Errors.CLUSTER_AUTHORIZATION_FAILED,
        Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ):
        error = row.exception("node 1")
        assert isinstance(error, AuthorizationError)
        assert (error.error_code, error.condition, row.is_retriable) == (row.number, f"KAFKA_{row.name}", False)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.error_code, str(again)) == (AuthorizationError, row.number, str(error))
    assert not isinstance(Errors.SASL_AUTHENTICATION_FAILED.exception("node 1"), AuthorizationError)
    assert not isinstance(Errors.MESSAGE_TOO_LARGE.exception("node 1"), AuthorizationError)
