"""The APIs that this client supports: which versions, which of them are flexible, and why a range ends where it does.

An API needs a row here and a file in messages/; version negotiation, headers and throttling read the row.
Requests have the newest version that this table and the broker support, at most their `max_version`; handshakes choose theirs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """Kafka's numbers of the APIs that this client uses."""

    PRODUCE = 0
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


NEVER = 0x7FFF  # in place of a version: above all versions
KIB, MIB = 1024, 1024 * 1024


class Api(NamedTuple):
    """One row of the table: an API, and the range of versions that this client supports."""

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int  # first version with compact types, tagged fields and header v2 / v1
    throttles_from: int  # first version where the broker answers before it throttles, and expects us to pause (KIP-219)
    max_response_bytes: int = MIB  # a larger response ends the connection


API_TABLE: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        # 3: first with record batch v2. Brokers may advertise 0 and reject it (KAFKA-18659), so this client never uses it.
        # 13: topics are named by id (KIP-516). 16 MiB: a broker may report an error message for every record of a batch.
        Api(ApiKey.PRODUCE, 3, 13, flexible_from=9, throttles_from=6, max_response_bytes=16 * MIB),
        # 2: the isolation level. Later versions than 6 add special timestamps.
        Api(ApiKey.LIST_OFFSETS, 2, 6, flexible_from=6, throttles_from=3),
        # 4: every broker with Produce 3 supports it, and it has allow_auto_topic_creation. 13: error 129 (KIP-1102).
        # 32 MiB: some 800,000 partitions of 3 replicas.
        Api(ApiKey.METADATA, 4, 13, flexible_from=9, throttles_from=6, max_response_bytes=32 * MIB),
        # 2: the oldest that Kafka 4 supports. 10: topics are named by id.
        Api(ApiKey.OFFSET_COMMIT, 2, 9, flexible_from=8, throttles_from=4),
        # 2: topics may be null, which means all topics. 10: topics are named by id.
        # 32 MiB: some 8,000 offsets with metadata of 4 KiB each (offset.metadata.max.bytes).
        Api(ApiKey.OFFSET_FETCH, 2, 9, flexible_from=6, throttles_from=4, max_response_bytes=32 * MIB),
        # 1: coordinators of transactions too. 5: TRANSACTION_ABORTABLE (KIP-890); 6 is for share groups.
        # 4 MiB: a few thousand keys of some hundred bytes, each with its coordinator's address.
        Api(ApiKey.FIND_COORDINATOR, 1, 5, flexible_from=3, throttles_from=2, max_response_bytes=4 * MIB),
        # 6: a group that does not exist is an error, without what the user may do with it.
        Api(ApiKey.DESCRIBE_GROUPS, 0, 5, flexible_from=5, throttles_from=2),
        # 1: SaslAuthenticate follows; after version 0, bare tokens. Never flexible, never throttled (KAFKA-9577).
        Api(ApiKey.SASL_HANDSHAKE, 1, 1, flexible_from=NEVER, throttles_from=NEVER, max_response_bytes=64 * KIB),
        # 0: the version in which every broker rejects a newer one. 4: features whose minimum is 0 (KAFKA-17011).
        # 256 KiB: an answer takes about 1 KiB, and the listener may not be a broker at all.
        Api(ApiKey.API_VERSIONS, 0, 4, flexible_from=3, throttles_from=2, max_response_bytes=256 * KIB),
        # 0: idempotence (KIP-98). 5: TRANSACTION_ABORTABLE (KIP-890); 6 is for two-phase commit (KIP-939).
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, flexible_from=2, throttles_from=1, max_response_bytes=64 * KIB),
        # 3: later versions are for brokers only (KIP-890).
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, flexible_from=3, throttles_from=1),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, flexible_from=3, throttles_from=1),
        # 5: only where transaction.version is 2 or higher, see messages/end_txn.py.
        Api(ApiKey.END_TXN, 0, 5, flexible_from=3, throttles_from=1),
        # 5: only where transaction.version is 2 or higher, see messages/txn_offset_commit.py. 6: topics are named by id.
        Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, flexible_from=3, throttles_from=1),
        # 1: the oldest that Kafka 4 supports.
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, flexible_from=4, throttles_from=2),
        # 32 MiB: some 900,000 producers; a partition lists all that have written to it within a day.
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, flexible_from=0, throttles_from=NEVER, max_response_bytes=32 * MIB),
        # 32 MiB: each transaction comes with its partitions.
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, flexible_from=0, throttles_from=NEVER, max_response_bytes=32 * MIB),
        # 2: a pattern of transactional ids (KIP-1152). 32 MiB: some 300,000 ids of 100 bytes; brokers keep an id for 7 days.
        Api(ApiKey.LIST_TRANSACTIONS, 0, 2, flexible_from=0, throttles_from=NEVER, max_response_bytes=32 * MIB),
        # 1: the session's lifetime, for re-authentication (KIP-368).
        Api(ApiKey.SASL_AUTHENTICATE, 0, 2, flexible_from=2, throttles_from=NEVER),
    )
}
