"""Sizes of rows, and their headers laid end to end: column expressions on the arguments of send_columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PerRow = npt.NDArray[np.int64]  # one number for each row


def header_entries(headers: pa.Array) -> tuple[PerRow, pa.Array, pa.Array]:
    """How many headers each row has, then the keys and the values of all headers, in the order of the rows."""
    if pa.types.is_map(headers.type):
        entry = pa.struct([pa.field("key", headers.type.key_type), pa.field("value", headers.type.item_type)])
        headers = headers.cast(pa.list_(entry))
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    keys, values = headers.flatten().flatten()
    return counts, keys, values


def payload_bytes(columns: Mapping[str, Any]) -> PerRow:
    """Bytes of key, value and headers of each row."""
    sizes = np.zeros(len(columns["value"]), np.int64)
    for name in ("key", "value"):
        if columns[name] is not None:
            sizes += _lengths(columns[name])
    if columns["headers"] is not None:
        counts, keys, values = header_entries(columns["headers"])
        before = np.concatenate([[0], np.cumsum(_lengths(keys) + _lengths(values))])
        ends = np.cumsum(counts)
        sizes += before[ends] - before[ends - counts]
    return sizes


def _lengths(payload: pa.Array) -> PerRow:
    lengths: PerRow = pc.binary_length(payload).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
