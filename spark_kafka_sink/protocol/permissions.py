"""Permissions (ACLs): which one to grant when a broker reports that it is missing, and which ones the user has."""

from __future__ import annotations

from enum import IntEnum

from spark_kafka_sink.errors import printable
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors

AUTHORIZED_OPERATIONS_OMITTED = -(1 << 31)

WRITE = "WRITE on the topic {}"
DESCRIBE = "DESCRIBE on the topic {}, which WRITE and READ include"
READ = "READ on the topic {}, which committing its offsets and looking at its producers require"


def to_grant(error: ErrorCode, *, transactional_id: str = "", group: str = "", topic: str = "", on_topic: str = WRITE) -> str:
    """The sentence to append to an error's message, with a blank before it; empty if the error is about none of these names.

    WRITE and READ include DESCRIBE.

    Args:
        on_topic: WRITE, READ or DESCRIBE, whichever the request needs; the broker's error does not say it.
    """
    permissions = {
        Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            "WRITE on the transactional id {} or on a prefix of it (DESCRIBE to read)",
            transactional_id,
        ),
        Errors.GROUP_AUTHORIZATION_FAILED: ("READ on the group {} or on a prefix of it", group),
        Errors.TOPIC_AUTHORIZATION_FAILED: (on_topic, topic),
    }
    permission, name = permissions.get(error, ("", ""))
    return f" Grant the user {permission.format(repr(printable(name)))}." if name else ""


class AclOperation(IntEnum):
    """Kafka's numbers of operations, which are also the positions of their bits in `authorized_operations` (KIP-430)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def authorized_operations(bits: int) -> frozenset[AclOperation] | None:
    """The operations known here that the user may do with a topic or group; None if the broker did not say."""
    if bits == AUTHORIZED_OPERATIONS_OMITTED:
        return None
    return frozenset(each for each in AclOperation if bits >> each & 1)
