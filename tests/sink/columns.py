"""Arguments of send_columns for tests, with text that is not UTF-8 among them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns(**given: Any) -> dict[str, Any]:
    return {"topic": "t", "key": None, "partition": None, "headers": None, "timestamp": None} | given


def not_utf8(*cells: bytes | None) -> pa.Array:
    """A string column of any bytes: Spark's cast(binary AS string) does not check them."""
    octets = pa.array(cells, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(octets), octets.buffers())
