"""What one write has to do: checked on the driver, pickled for every task.

datasource.py makes a WritePlan from the columns and options. writer.py follows it in the tasks and at the commit.
A stream is planned and committed by two processes. What has to be the same in both comes from Spark's ids, which the tasks report
to the driver, or from the driver's clock.
Law: plain data only. A plan opens nothing, and pickling it loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.names import UNNAMED_OWNER, PrefixNames, escape_name
from spark_kafka_sink.exactly_once.writes import DriverTime, WriteId
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.task import Task

if TYPE_CHECKING:
    from spark_kafka_sink.schemas.wanted_schema import PlannedPart

_UNNAMED = (
    "this exactly-once df.write has no name by which a repetition could be recognized, so nothing was written. Set txnAppId and"
    ' txnVersion; in foreachBatch: .options(**exactly_once_options("a name of this write", batch_id)), as Spark tells neither'
    " query nor batch over Spark Connect, nor to threads that the function starts. Or set allowUnnamedWrite=true: each repetition"
    " then writes all rows again"
)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The options of a write, and what the driver found out for its tasks. Plain data."""

    mapping: RowMapping
    options: SinkOptions = field(repr=False)  # checked ones; their secrets are wrapped
    is_stream: bool  # planned by streamWriter. foreachBatch is a series of batch writes
    planned_at: DriverTime
    encoded_parts: tuple[PlannedPart, ...] = ()  # the value, the key or both, if they are encoded or framed

    # WITH EXACTLY-ONCE

    @property
    def names(self) -> PrefixNames:
        assert self.options.transactional_id_prefix is not None
        return PrefixNames(self.options.transactional_id_prefix)

    @property
    def marker_topic(self) -> str:
        """The topic that offsets of markers and decisions name, see Ledger."""
        topic = self.options.marker_topic or self.options.topic
        assert topic is not None
        return topic

    def write_id(self, task: Task) -> WriteId:
        """Which write the task belongs to.

        Raises KafkaError in a stream that Spark does not name, and for a df.write without a name. Only a task can find that out:
        the process that plans a df.write does not see whether it is in foreachBatch.
        """
        is_in_query = task.query_id is not None and task.batch_id is not None
        if self.is_stream and not is_in_query:
            raise KafkaError(
                "Spark does not tell this task its streaming query and batch (local properties sql.streaming.queryId and"
                " streaming.sql.batchId), which exactly-once needs: nothing was written",
                condition="KAFKA_NO_STREAM_IDENTITY",
            )
        options = self.options
        if options.txn_app_id is not None and options.txn_version is not None:
            return WriteId(escape_name(options.txn_app_id), options.txn_version)
        if task.query_id is not None and task.batch_id is not None:
            return WriteId(escape_name(task.query_id.replace("-", "")), task.batch_id)  # a UUID, without its dashes
        if not options.allow_unnamed_write:
            raise KafkaError(_UNNAMED, condition="KAFKA_UNNAMED_WRITE")
        return WriteId(UNNAMED_OWNER, self.planned_at.time_ms)


def has_name(write: WriteId) -> bool:
    """Whether a repetition of the write is the same write. If not, nobody will ever compare what the two wrote."""
    return write.owner != UNNAMED_OWNER
