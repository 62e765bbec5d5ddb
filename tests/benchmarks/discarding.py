"""The format `discard`, a sink in Python that throws its rows away: what any such sink costs before it does anything.

A file of its own, as Python workers import what a data source's module imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType


class DiscardingWriter(DataSourceArrowWriter):
    """What any Python sink costs before it does anything."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class DiscardingStreamWriter(DataSourceStreamArrowWriter):
    """What a micro-batch with any Python sink costs before it does anything."""

    write = DiscardingWriter.write


class DiscardDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return DiscardingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002
        return DiscardingStreamWriter()
