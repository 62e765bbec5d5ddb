"""KafkaProducer.send_table with DataFrames of pandas. Skipped without pandas, which the tests' environment does not have.

Where it is installed, pyarrow imports it with the first array, in each process and each of Spark's workers.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.documents import code_blocks
from tests.fakes.fake_broker import FakeBroker
from tests.producer.tables.written_tables import EXPECTED, MOMENTS, written

pd = pytest.importorskip("pandas", reason="pip install pandas")


def pandas_frame() -> Any:
    return pd.DataFrame(
        {
            "key": ["k", None],
            "value": ["v", None],
            "topic": ["one", "one"],
            "partition": pd.array([0, None], dtype="Int32"),
            "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
            "timestamp": MOMENTS,
        }
    )


def test_a_frame_of_pandas_is_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    assert written(broker, producer, pandas_frame()) == EXPECTED


def test_categories_and_a_named_index_of_pandas_are_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    """A named index is a column, any other is none."""
    frame = pandas_frame().astype({"topic": "category", "value": "category"})
    assert written(broker, producer, frame.iloc[::-1].iloc[::-1]) == EXPECTED
    assert [record.key for record in written(broker, producer, frame.set_index("key"), "two")] == [b"k", None]


def test_integers_of_pandas_that_became_floats_are_an_error(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match=r"column partition has type double; .* In pandas, .*: astype\('Int32'\)"):
        producer.send_table("one", pd.DataFrame({"value": ["v", "w"], "partition": [0, None]}))


def test_a_column_of_pandas_that_arrow_cannot_have_is_an_error(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match="table of the Python type DataFrame cannot be read as columns of Arrow"):
        producer.send_table("one", pd.DataFrame({"value": ["v", 1]}))


def test_the_example_of_the_documents_writes_what_it_says(broker: FakeBroker) -> None:
    (block,) = [each.text for each in code_blocks() if each.text.startswith("import pandas as pd")]
    exec(block.replace("localhost:9092", broker.bootstrap_servers), {})
    records = broker.records("orders")
    assert [record.key for record in records] == [b"eve", b"fay"]
    assert [record.timestamp for record in records] == [1_767_312_000_000, 1_767_398_400_000]
    assert str(records[0].value).startswith('b\'{"user":"eve","total":3.5,')
