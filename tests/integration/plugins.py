"""Plug-ins that Spark's workers load by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class AlwaysZero:
    """All rows to partition 0."""

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Any) -> npt.NDArray[np.int32]:
        del topic, key, cluster
        return np.zeros(len(value), np.int32)
