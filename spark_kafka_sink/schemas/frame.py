"""Confluent's frame: what stands before the payload of a key or value whose schema is registered.

It is a magic byte 0, the schema's id as four bytes, and for Protobuf the path to the message in its file. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.config.format_options import MAX_SCHEMA_ID
from spark_kafka_sink.records.varint import encode_varint

MAGIC_BYTE = b"\0"
FRAME_BYTES = 5  # the magic byte and the id
FIRST_MESSAGE = (0,)


def confluent_prefix(schema_id: int, message_index: Sequence[int] | None = None) -> bytes:
    """The frame: the bytes before each payload.

    Args:
        schema_id: as the registry gave it.
        message_index: for Protobuf the position of the message in the file, of a message nested in it, and so on; else None.

    Raises:
        ValueError: the id is out of range, or the path is empty or has a negative position.
    """
    if not 0 <= schema_id <= MAX_SCHEMA_ID:
        raise ValueError(f"{schema_id} is not the id of a schema: ids are 0 to {MAX_SCHEMA_ID}")
    return MAGIC_BYTE + schema_id.to_bytes(4, "big") + (b"" if message_index is None else _message_index(tuple(message_index)))


def _message_index(positions: tuple[int, ...]) -> bytes:
    """The length and the positions as zigzag varints; the first message of a file, by far the most frequent, is a single 0."""
    if not positions or min(positions) < 0:
        raise ValueError(f"{list(positions)} is not the path to a message")
    if positions == FIRST_MESSAGE:
        return b"\0"
    return b"".join(map(encode_varint, (len(positions), *positions)))
