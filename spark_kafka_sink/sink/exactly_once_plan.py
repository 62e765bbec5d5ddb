"""What a write with deliveryGuarantee=exactly-once needs to know beside its rows: who it is, and where its markers are.

Plain data, made on the driver and pickled for the tasks. A stream is planned and committed by two processes: what has to be the
same in both comes from Spark's ids, which the tasks report to the driver.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.names import Names, escaped
from spark_kafka_sink.exactly_once.writes import WriteId
from spark_kafka_sink.sink.task import Task

_UNNAMED = (
    "this exactly-once df.write has no name by which a repetition could be recognized, so nothing was written. Set txnAppId and"
    ' txnVersion; in foreachBatch: .options(**exactly_once_options("a name of this write", batch_id)), as Spark tells neither'
    " query nor batch over Spark Connect, nor to threads that the function starts. Or set allowUnnamedWrite=true: each repetition"
    " then writes all rows again"
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ExactlyOncePlan:
    """
    Args:
        marker_topic: see Ledger.
        is_marker_topic_given: it is the option markerTopic, and not the topic that is written to.
        nonce: an id that no other write has.
        is_stream: planned by streamWriter. foreachBatch is a series of batch writes.
        app_id, version: options txnAppId and txnVersion.
        has_timeout: whether the user set kafka.transaction.timeout.ms.
        allows_unnamed: option allowUnnamedWrite.
    """

    prefix: str
    marker_topic: str
    is_marker_topic_given: bool
    nonce: str
    is_stream: bool
    app_id: str | None
    version: int | None
    has_timeout: bool
    allows_unnamed: bool

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
            nonce=uuid.uuid4().hex,
            is_stream=is_stream,
            app_id=options.txn_app_id,
            version=options.txn_version,
            has_timeout="transaction.timeout.ms" in options.producer.given,
            allows_unnamed=options.allow_unnamed_write,
        )

    @property
    def names(self) -> Names:
        return Names(self.prefix)

    def write_id(self, task: Task) -> WriteId:
        """Which write the task belongs to.

        Raises KafkaError in a stream whose run Spark does not tell, and for a df.write without a name. Only a task can find that
        out: the process that plans a df.write does not see whether it is in foreachBatch.
        """
        run = _run(task) or self.nonce
        if self.is_stream:
            if task.query_id is None or task.batch_id is None or run == self.nonce:
                raise KafkaError(
                    "Spark does not tell this task its streaming query, batch and run (local properties sql.streaming.queryId,"
                    " streaming.sql.batchId and spark.jobGroup.id), which exactly-once needs: nothing was written",
                    condition="KAFKA_NO_STREAM_IDENTITY",
                )
            return WriteId(_hex(task.query_id), task.batch_id, run, run)
        if self.app_id is not None and self.version is not None:
            return WriteId(escaped(self.app_id), self.version, run, self.nonce)
        if task.query_id is not None and task.batch_id is not None:
            return WriteId(_hex(task.query_id), task.batch_id, run, self.nonce)
        if not self.allows_unnamed:
            raise KafkaError(_UNNAMED, condition="KAFKA_UNNAMED_WRITE")
        return WriteId(self.nonce, 0, self.nonce, self.nonce)

    def can_be_repeated(self, owner: str) -> bool:
        """Whether another run may have the same owner. If not, nobody will ever compare what the two wrote."""
        return owner != self.nonce


def _run(task: Task) -> str | None:
    """The streaming query's run id. Spark runs a query's jobs in a job group of that name; foreachBatch may set another one,
    which says nothing about runs."""
    if task.query_id is None or task.job_group is None or not _UUID.fullmatch(task.job_group):
        return None
    return _hex(task.job_group)


def _hex(identifier: str) -> str:
    """Spark's ids are UUIDs. Without their dashes they are parts of names as they are."""
    return escaped(identifier.replace("-", ""))
