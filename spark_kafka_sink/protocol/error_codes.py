"""Every error code of the Kafka protocol, one row each. For Produce, producer/sender/retry.py decides what to do about a code.

RETRY: the same request may succeed later. REFRESH: it may succeed after metadata has been fetched again. FIND: it may succeed
after the coordinator has been found again. FAIL: it will not succeed; NONE has FAIL too, as nothing is to be retried.
The third column says, for a Produce response with this code, whether the request can have written the batch to the log. NO: the
broker returns this code for Produce only before it writes to the log. YES: the broker returns it only after that. MAYBE: all
other codes, also those that are not known as answers to Produce. The producer treats YES as MAYBE.
With acks=all a broker returns NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION and KAFKA_STORAGE_ERROR also after it has
written the batch, if it lost the partition while it waited for followers (Kafka's DelayedProduce). The new leader may have it.
A number without a row is an error that is newer than this client: it behaves as UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from spark_kafka_sink.errors import AuthenticationError, AuthorizationError, BrokerError, KafkaError, printable


class Persisted(Enum):
    """Whether the records of a Produce request may be in the log after an error."""

    NO = "certainly not in the log"
    MAYBE = "may be in the log"
    YES = "in the leader's log"


class Reaction(Enum):
    """What a client may do after an error; the module's docstring explains them."""

    FAIL = "not retriable"
    RETRY = "retriable"
    REFRESH = "retriable with new metadata"
    FIND = "retriable with the coordinator found again"


NO, MAYBE, YES = Persisted
FAIL, RETRY, REFRESH, FIND = Reaction


@dataclass(frozen=True)
class ErrorCode:
    """An error of the Kafka protocol. As a condition, NONE is false and all others are true. Codes with one number are equal."""

    number: int
    name: str = field(compare=False)
    is_retriable: bool = field(compare=False)
    must_refresh_metadata: bool = field(compare=False)
    must_find_coordinator: bool = field(compare=False)  # send FindCoordinator, then the same request to the broker it names
    persisted: Persisted = field(compare=False)
    doc: str = field(compare=False)

    def __bool__(self) -> bool:
        return self.number != 0

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"

    def __set_name__(self, _: type, name: str) -> None:
        object.__setattr__(self, "name", name)  # a row has the name of the attribute to which it is assigned

    @property
    def condition(self) -> str:
        """The condition of the exceptions that `exception` makes."""
        return f"KAFKA_{self.name}"

    def exception(self, item_text: str, broker_message: str | None = None) -> KafkaError:
        """An exception: "[KAFKA_<name>] <item_text>: <what the error means> <the broker's own message>".

        Args:
            item_text: the request, or the partition and node, like "orders-3 on node 2".
            broker_message: the error message in the response, if it had one.

        Returns:
            A BrokerError, for missing permissions an AuthorizationError; an AuthenticationError for the codes of SASL.
        """
        text = f"{item_text}: {self.doc}"
        if broker_message:
            text += f' The broker says: "{printable(broker_message)}"'
        condition = self.condition
        if self in _AUTHENTICATION_ERRORS:
            return AuthenticationError(text, condition=condition)
        exception_type = AuthorizationError if self in _AUTHORIZATION_ERRORS else BrokerError
        return exception_type(text, error_code=self.number, condition=condition)


def _row(number: int, reaction: Reaction, persisted: Persisted, doc: str) -> ErrorCode:
    """A row of Errors, which gets its name when it is assigned there."""
    return ErrorCode(number, "", reaction is not FAIL, reaction is REFRESH, reaction is FIND, persisted, doc)


class Errors:
    """All errors of the Kafka protocol, a row each. `Errors.for_code(number)` finds a row."""

    UNKNOWN_SERVER_ERROR = _row(-1, FAIL, MAYBE, "The broker failed with an error that has no code; see its log.")
    NONE = _row(0, FAIL, YES, "No error.")
    OFFSET_OUT_OF_RANGE = _row(1, FAIL, MAYBE, "The requested offset is outside the partition's log.")
    CORRUPT_MESSAGE = _row(2, RETRY, NO, "The batch failed its checksum, or has a null key on a compacted topic.")
    UNKNOWN_TOPIC_OR_PARTITION = _row(3, REFRESH, MAYBE, "The broker does not host this partition.")
    INVALID_FETCH_SIZE = _row(4, FAIL, MAYBE, "The fetch size is invalid.")
    LEADER_NOT_AVAILABLE = _row(5, REFRESH, MAYBE, "The partition has no leader at the moment; one is being elected.")
    NOT_LEADER_OR_FOLLOWER = _row(6, REFRESH, MAYBE, "The broker no longer leads this partition.")
    REQUEST_TIMED_OUT = _row(7, RETRY, MAYBE, "The request timed out, perhaps after the leader had appended the batch.")
    BROKER_NOT_AVAILABLE = _row(8, FAIL, MAYBE, "The requested broker is not alive.")
    REPLICA_NOT_AVAILABLE = _row(9, REFRESH, MAYBE, "The replica is not available on this broker.")
    MESSAGE_TOO_LARGE = _row(10, FAIL, NO, "The batch exceeds the topic's max.message.bytes.")
    STALE_CONTROLLER_EPOCH = _row(11, FAIL, MAYBE, "The controller has moved to another broker.")
    OFFSET_METADATA_TOO_LARGE = _row(12, FAIL, MAYBE, "The metadata string of a committed offset is too long.")
    NETWORK_EXCEPTION = _row(13, REFRESH, MAYBE, "The connection was lost before an answer came.")
    COORDINATOR_LOAD_IN_PROGRESS = _row(14, RETRY, MAYBE, "The coordinator is still loading its state.")
    COORDINATOR_NOT_AVAILABLE = _row(15, FIND, MAYBE, "The coordinator is not available; it must be looked up again.")
    NOT_COORDINATOR = _row(16, FIND, MAYBE, "This broker is not the coordinator any more; it must be looked up again.")
    INVALID_TOPIC_EXCEPTION = _row(17, FAIL, NO, "The topic name is invalid, or the topic is internal.")
    RECORD_LIST_TOO_LARGE = _row(18, FAIL, NO, "The batch exceeds the topic's segment.bytes.")
    NOT_ENOUGH_REPLICAS = _row(19, RETRY, NO, "Fewer replicas are in sync than min.insync.replicas asks for.")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = _row(20, RETRY, YES, "The leader has the batch, but too few replicas do.")
    INVALID_REQUIRED_ACKS = _row(21, FAIL, NO, "acks must be -1, 0 or 1.")
    ILLEGAL_GENERATION = _row(22, FAIL, MAYBE, "The consumer group has moved on to another generation.")
    INCONSISTENT_GROUP_PROTOCOL = _row(23, FAIL, MAYBE, "The consumer group uses another assignment protocol.")
    INVALID_GROUP_ID = _row(24, FAIL, MAYBE, "The group id is invalid.")
    UNKNOWN_MEMBER_ID = _row(25, FAIL, MAYBE, "The coordinator does not know this group member.")
    INVALID_SESSION_TIMEOUT = _row(26, FAIL, MAYBE, "The session time-out is outside of the broker's limits.")
    REBALANCE_IN_PROGRESS = _row(27, FAIL, MAYBE, "The group is rebalancing; the member must rejoin.")
    INVALID_COMMIT_OFFSET_SIZE = _row(28, FAIL, MAYBE, "The size of the committed offset data is invalid.")
    TOPIC_AUTHORIZATION_FAILED = _row(29, FAIL, NO, "This user lacks a permission on the topic.")
    GROUP_AUTHORIZATION_FAILED = _row(30, FAIL, MAYBE, "This user needs the READ permission on the group.")
    CLUSTER_AUTHORIZATION_FAILED = _row(31, FAIL, NO, "This user lacks a permission on the cluster.")
    INVALID_TIMESTAMP = _row(32, FAIL, NO, "A timestamp is outside of message.timestamp.before.max.ms and after.max.ms.")
    UNSUPPORTED_SASL_MECHANISM = _row(33, FAIL, NO, "The broker does not offer this SASL mechanism.")
    ILLEGAL_SASL_STATE = _row(34, FAIL, NO, "The request does not fit the state of the SASL exchange.")
    UNSUPPORTED_VERSION = _row(35, FAIL, NO, "The broker does not speak this version of the request.")
    TOPIC_ALREADY_EXISTS = _row(36, FAIL, MAYBE, "The topic exists already.")
    INVALID_PARTITIONS = _row(37, FAIL, MAYBE, "The number of partitions is invalid.")
    INVALID_REPLICATION_FACTOR = _row(38, FAIL, MAYBE, "The replication factor is below 1 or above the number of brokers.")
    INVALID_REPLICA_ASSIGNMENT = _row(39, FAIL, MAYBE, "The replica assignment is invalid.")
    INVALID_CONFIG = _row(40, FAIL, MAYBE, "The configuration is invalid.")
    NOT_CONTROLLER = _row(41, RETRY, MAYBE, "This broker is not the controller.")
    INVALID_REQUEST = _row(42, FAIL, NO, "The broker could not read the request, or a value in it is not allowed.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = _row(43, FAIL, NO, "The topic's message format cannot hold this batch.")
    POLICY_VIOLATION = _row(44, FAIL, NO, "A policy of the broker rejects the request.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = _row(45, FAIL, NO, "The batch does not follow the producer's last batch.")
    DUPLICATE_SEQUENCE_NUMBER = _row(46, FAIL, YES, "The broker has this batch already.")
    INVALID_PRODUCER_EPOCH = _row(47, FAIL, NO, "A newer producer has taken over, or a transaction timed out.")
    INVALID_TXN_STATE = _row(48, FAIL, NO, "The operation does not fit the transaction's state.")
    INVALID_PRODUCER_ID_MAPPING = _row(49, FAIL, NO, "The coordinator knows another producer for this transactional id, or none.")
    INVALID_TRANSACTION_TIMEOUT = _row(50, FAIL, MAYBE, "The time-out exceeds the broker's transaction.max.timeout.ms.")
    CONCURRENT_TRANSACTIONS = _row(51, RETRY, NO, "Another operation on the same transaction is still in progress.")
    TRANSACTION_COORDINATOR_FENCED = _row(52, FAIL, MAYBE, "The coordinator that wrote the control record has been replaced.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _row(53, FAIL, NO, "This user needs the WRITE permission on the transactional id.")
    SECURITY_DISABLED = _row(54, FAIL, MAYBE, "Security features are disabled on this broker.")
    OPERATION_NOT_ATTEMPTED = _row(55, FAIL, NO, "The broker did not try this part because another part of the request failed.")
    KAFKA_STORAGE_ERROR = _row(56, REFRESH, MAYBE, "The broker's disk failed.")
    LOG_DIR_NOT_FOUND = _row(57, FAIL, MAYBE, "The log directory does not exist on this broker.")
    SASL_AUTHENTICATION_FAILED = _row(58, FAIL, NO, "The broker rejected the credentials.")
    UNKNOWN_PRODUCER_ID = _row(59, FAIL, NO, "The broker has forgotten the producer: its records were deleted.")
    REASSIGNMENT_IN_PROGRESS = _row(60, FAIL, MAYBE, "A reassignment of the partition is in progress.")
    DELEGATION_TOKEN_AUTH_DISABLED = _row(61, FAIL, MAYBE, "Delegation tokens are disabled.")
    DELEGATION_TOKEN_NOT_FOUND = _row(62, FAIL, MAYBE, "The delegation token does not exist.")
    DELEGATION_TOKEN_OWNER_MISMATCH = _row(63, FAIL, MAYBE, "The delegation token belongs to another user.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _row(64, FAIL, MAYBE, "This kind of connection does not allow delegation tokens.")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = _row(65, FAIL, MAYBE, "This user may not use the delegation token.")
    DELEGATION_TOKEN_EXPIRED = _row(66, FAIL, MAYBE, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = _row(67, FAIL, MAYBE, "The type of principal is not supported.")
    NON_EMPTY_GROUP = _row(68, FAIL, MAYBE, "The group still has members.")
    GROUP_ID_NOT_FOUND = _row(69, FAIL, MAYBE, "The group does not exist.")
    FETCH_SESSION_ID_NOT_FOUND = _row(70, RETRY, MAYBE, "The fetch session does not exist.")
    INVALID_FETCH_SESSION_EPOCH = _row(71, RETRY, MAYBE, "The epoch of the fetch session is invalid.")
    LISTENER_NOT_FOUND = _row(72, REFRESH, MAYBE, "The leader lacks the listener that received the metadata request.")
    TOPIC_DELETION_DISABLED = _row(73, FAIL, MAYBE, "Topics cannot be deleted on this cluster.")
    FENCED_LEADER_EPOCH = _row(74, REFRESH, MAYBE, "The request carries an older leader epoch than the broker's.")
    UNKNOWN_LEADER_EPOCH = _row(75, RETRY, MAYBE, "The request carries a newer leader epoch than the broker's.")
    UNSUPPORTED_COMPRESSION_TYPE = _row(76, FAIL, NO, "The codec needs a newer version of the request or of the broker.")
    STALE_BROKER_EPOCH = _row(77, FAIL, MAYBE, "The broker has been restarted since.")
    OFFSET_NOT_AVAILABLE = _row(78, RETRY, MAYBE, "The new leader does not know its high watermark yet.")
    MEMBER_ID_REQUIRED = _row(79, FAIL, MAYBE, "The member must join again with the id it was given.")
    PREFERRED_LEADER_NOT_AVAILABLE = _row(80, REFRESH, MAYBE, "The preferred leader is not available.")
    GROUP_MAX_SIZE_REACHED = _row(81, FAIL, MAYBE, "The group is full.")
    FENCED_INSTANCE_ID = _row(82, FAIL, MAYBE, "Another member with the same group.instance.id has taken over.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = _row(83, REFRESH, MAYBE, "No replica may become leader.")
    ELECTION_NOT_NEEDED = _row(84, REFRESH, MAYBE, "The leader does not have to change.")
    NO_REASSIGNMENT_IN_PROGRESS = _row(85, FAIL, MAYBE, "No reassignment is in progress.")
    GROUP_SUBSCRIBED_TO_TOPIC = _row(86, FAIL, MAYBE, "The group is subscribed to the topic.")
    INVALID_RECORD = _row(87, FAIL, NO, "A record failed the broker's validation.")
    UNSTABLE_OFFSET_COMMIT = _row(88, RETRY, MAYBE, "Offsets are part of a transaction that is still open.")
    THROTTLING_QUOTA_EXCEEDED = _row(89, RETRY, MAYBE, "The quota is exhausted for now.")
    PRODUCER_FENCED = _row(90, FAIL, NO, "A newer producer with the same transactional id has taken over.")
    RESOURCE_NOT_FOUND = _row(91, FAIL, MAYBE, "The resource does not exist.")
    DUPLICATE_RESOURCE = _row(92, FAIL, MAYBE, "The request names a resource twice.")
    UNACCEPTABLE_CREDENTIAL = _row(93, FAIL, MAYBE, "The new credential is not acceptable.")
    INCONSISTENT_VOTER_SET = _row(94, FAIL, MAYBE, "Sender or receiver is not one of the voters.")
    INVALID_UPDATE_VERSION = _row(95, FAIL, MAYBE, "The version of the feature update is invalid.")
    FEATURE_UPDATE_FAILED = _row(96, FAIL, MAYBE, "The broker could not update the features.")
    PRINCIPAL_DESERIALIZATION_FAILURE = _row(97, FAIL, MAYBE, "A broker could not read a forwarded principal.")
    SNAPSHOT_NOT_FOUND = _row(98, FAIL, MAYBE, "The snapshot does not exist.")
    POSITION_OUT_OF_RANGE = _row(99, FAIL, MAYBE, "The position lies outside of the snapshot.")
    UNKNOWN_TOPIC_ID = _row(100, REFRESH, NO, "The broker does not know the topic id: the topic is new, deleted or re-created.")
    DUPLICATE_BROKER_REGISTRATION = _row(101, FAIL, MAYBE, "The broker id is in use already.")
    BROKER_ID_NOT_REGISTERED = _row(102, FAIL, MAYBE, "The broker id is not registered.")
    INCONSISTENT_TOPIC_ID = _row(103, REFRESH, MAYBE, "The topic id does not belong to the log: the topic has been re-created.")
    INCONSISTENT_CLUSTER_ID = _row(104, FAIL, MAYBE, "The cluster id is not this cluster's.")
    TRANSACTIONAL_ID_NOT_FOUND = _row(105, FAIL, MAYBE, "The transactional id does not exist.")
    FETCH_SESSION_TOPIC_ID_ERROR = _row(106, RETRY, MAYBE, "The fetch session mixes topic ids.")
    INELIGIBLE_REPLICA = _row(107, FAIL, MAYBE, "A replica may not be in the in-sync set.")
    NEW_LEADER_ELECTED = _row(108, FAIL, MAYBE, "Another leader was elected meanwhile.")
    OFFSET_MOVED_TO_TIERED_STORAGE = _row(109, FAIL, MAYBE, "The offset has been moved to tiered storage.")
    FENCED_MEMBER_EPOCH = _row(110, FAIL, MAYBE, "The group has moved on: the member must rejoin.")
    UNRELEASED_INSTANCE_ID = _row(111, FAIL, MAYBE, "The group.instance.id is still in use.")
    UNSUPPORTED_ASSIGNOR = _row(112, FAIL, MAYBE, "The group does not support this assignor.")
    STALE_MEMBER_EPOCH = _row(113, FAIL, MAYBE, "The member's epoch is old.")
    MISMATCHED_ENDPOINT_TYPE = _row(114, FAIL, MAYBE, "The request went to the wrong kind of endpoint.")
    UNSUPPORTED_ENDPOINT_TYPE = _row(115, FAIL, MAYBE, "This kind of endpoint is not supported.")
    UNKNOWN_CONTROLLER_ID = _row(116, FAIL, MAYBE, "The controller id is unknown.")
    UNKNOWN_SUBSCRIPTION_ID = _row(117, FAIL, MAYBE, "The telemetry subscription is unknown.")
    TELEMETRY_TOO_LARGE = _row(118, FAIL, MAYBE, "The telemetry is too large.")
    INVALID_REGISTRATION = _row(119, FAIL, MAYBE, "The controller rejected a registration.")
    TRANSACTION_ABORTABLE = _row(120, FAIL, NO, "The transaction has failed; after aborting it, the producer can continue.")
    INVALID_RECORD_STATE = _row(121, FAIL, MAYBE, "The state of the record is invalid.")
    SHARE_SESSION_NOT_FOUND = _row(122, RETRY, MAYBE, "The share session does not exist.")
    INVALID_SHARE_SESSION_EPOCH = _row(123, RETRY, MAYBE, "The epoch of the share session is invalid.")
    FENCED_STATE_EPOCH = _row(124, FAIL, MAYBE, "The epoch of the share group's state is old.")
    INVALID_VOTER_KEY = _row(125, FAIL, MAYBE, "The voter's key is not the replica's.")
    DUPLICATE_VOTER = _row(126, FAIL, MAYBE, "The voter is in the set already.")
    VOTER_NOT_FOUND = _row(127, FAIL, MAYBE, "The voter is not in the set.")
    INVALID_REGULAR_EXPRESSION = _row(128, FAIL, MAYBE, "The regular expression is invalid.")
    REBOOTSTRAP_REQUIRED = _row(129, FAIL, MAYBE, "Metadata is too old: start again from bootstrap.servers.")
    STREAMS_INVALID_TOPOLOGY = _row(130, FAIL, MAYBE, "The streams topology is invalid.")
    STREAMS_INVALID_TOPOLOGY_EPOCH = _row(131, FAIL, MAYBE, "The epoch of the streams topology is invalid.")
    STREAMS_TOPOLOGY_FENCED = _row(132, FAIL, MAYBE, "The epoch of the streams topology is old.")
    SHARE_SESSION_LIMIT_REACHED = _row(133, RETRY, MAYBE, "There are too many share sessions.")

    @staticmethod
    def for_code(number: int) -> ErrorCode:
        """The row of a number; for an unknown one, a row that behaves as UNKNOWN_SERVER_ERROR and keeps the number."""
        row = ERROR_CODES.get(number)
        if row is None:
            doc = f"The broker answered with error code {number}, which is newer than this client."
            row = replace(Errors.UNKNOWN_SERVER_ERROR, number=number, doc=doc)
        return row


ERROR_CODES: dict[int, ErrorCode] = {row.number: row for row in vars(Errors).values() if isinstance(row, ErrorCode)}

_AUTHENTICATION_ERRORS = {Errors.UNSUPPORTED_SASL_MECHANISM, Errors.ILLEGAL_SASL_STATE, Errors.SASL_AUTHENTICATION_FAILED}
_AUTHORIZATION_ERRORS = {row for row in ERROR_CODES.values() if row.name.endswith("_AUTHORIZATION_FAILED")}
