"""Sorted slices of rows of one size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_kafka_sink.producer.accumulator.sorted_slice import SortedSlice
from tests.producer.harness import columns

ROW = bytes(91)  # 100 bytes as a record: length 2, attributes, two deltas, key 1, value length 2, headers 1, less than 64 rows


def slice_of(values: Sequence[bytes], partitions: Sequence[int], timestamps: object = 0) -> SortedSlice:
    positions = np.arange(100, 100 + len(values), dtype=np.int32)
    return SortedSlice(columns(values, timestamps=timestamps), np.array(partitions, np.int32), positions)
