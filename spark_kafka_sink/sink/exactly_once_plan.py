"""What a write with deliveryGuarantee=exactly-once needs to know beside its rows: who it is, and where its markers are.

Plain data, made on the driver and pickled for the tasks. A stream is planned and committed by two processes: what has to be the
same in both comes from Spark's ids, which the tasks report to the driver, or from the driver's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.config.sink_options import KEEP_FIRST, SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.names import Names, escaped
from spark_kafka_sink.exactly_once.writes import Planned, WriteId
from spark_kafka_sink.sink.task import Task

_UNNAMED = (
    "this exactly-once df.write has no name by which a repetition could be recognized, so nothing was written. Set txnAppId and"
    ' txnVersion; in foreachBatch: .options(**exactly_once_options("a name of this write", batch_id)), as Spark tells neither'
    " query nor batch over Spark Connect, nor to threads that the function starts. Or set allowUnnamedWrite=true: each repetition"
    " then writes all rows again"
)
UNNAMED_OWNER = "%unnamed"  # no name is escaped so


@dataclass(frozen=True, slots=True)
class ExactlyOncePlan:
    """
    Args:
        marker_topic: see Ledger.
        is_marker_topic_given: it is the option markerTopic, and not the topic that is written to.
        planned: when and where.
        is_stream: planned by streamWriter. foreachBatch is a series of batch writes.
        app_id, version: options txnAppId and txnVersion.
        has_timeout: whether the user set kafka.transaction.timeout.ms.
        allows_unnamed: option allowUnnamedWrite.
        keeps_first: option onNonDeterministicReplay.
    """

    prefix: str
    marker_topic: str
    is_marker_topic_given: bool
    planned: Planned
    is_stream: bool
    app_id: str | None
    version: int | None
    has_timeout: bool
    allows_unnamed: bool
    keeps_first: bool

    @classmethod
    def of(cls, options: SinkOptions, *, is_stream: bool) -> ExactlyOncePlan:
        """For checked options."""
        marker_topic = options.marker_topic or options.topic
        assert options.transactional_id_prefix is not None
        assert marker_topic is not None
        return cls(
            prefix=options.transactional_id_prefix,
            marker_topic=marker_topic,
            is_marker_topic_given=marker_topic != options.topic,
            planned=Planned.now(),
            is_stream=is_stream,
            app_id=options.txn_app_id,
            version=options.txn_version,
            has_timeout="transaction.timeout.ms" in options.producer.given,
            allows_unnamed=options.allow_unnamed_write,
            keeps_first=options.on_non_deterministic_replay == KEEP_FIRST,
        )

    @property
    def names(self) -> Names:
        return Names(self.prefix)

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
        if self.app_id is not None and self.version is not None:
            return WriteId(escaped(self.app_id), self.version)
        if task.query_id is not None and task.batch_id is not None:
            return WriteId(escaped(task.query_id.replace("-", "")), task.batch_id)  # a UUID is part of a name as it is
        if not self.allows_unnamed:
            raise KafkaError(_UNNAMED, condition="KAFKA_UNNAMED_WRITE")
        return WriteId(UNNAMED_OWNER, self.planned.time_ms)


def has_name(write: WriteId) -> bool:
    """Whether a repetition of the write is the same write. If not, nobody will ever compare what the two wrote."""
    return write.owner != UNNAMED_OWNER
