"""The permission (ACL) to grant when a broker says that one is missing."""

from __future__ import annotations

from spark_kafka_sink.errors import printable
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors

WRITE = "WRITE on the topic {}"
READ = "READ on the topic {}, which committing its offsets and looking at its producers require"


def to_grant(error: ErrorCode, *, transactional_id: str = "", group: str = "", topic: str = "", on_topic: str = WRITE) -> str:
    """The sentence that ends an error's message, after a blank; empty if the error is about none of these names.

    WRITE and READ include DESCRIBE.

    Args:
        on_topic: WRITE or READ, by what was asked for; the broker does not say it.
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
