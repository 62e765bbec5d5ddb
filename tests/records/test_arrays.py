"""arrays.py: columns from Python's values and numpy's, and back, as Arrow makes them, and without pandas.

The first bundle of a process called pa.array, for which Arrow imports pandas: `send` took up to 0.6 s longer, and in an exit
handler, where the import fails, every row was lost with exit code 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import arrays
from spark_kafka_sink.records.arrays import (
    bool_array,
    bools_of,
    bytes_array,
    header_array,
    int64_array,
    nulls_of,
    number_array,
    numbers_of,
    scalar,
    text_array,
)
from tests.fakes.fake_broker import FakeBroker
from tests.producer.programs import run_program
from tests.schemas.fake_registry import FakeRegistry

PACKAGE = Path(__file__).parents[2] / "spark_kafka_sink"
OCTETS = st.lists(st.none() | st.binary(max_size=20), max_size=30)
INTS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=30)


@given(OCTETS, st.sampled_from([None, pa.binary(), pa.large_binary()]))
def test_bytes_become_the_array_that_arrow_makes(values: list[bytes | None], kind: pa.DataType | None) -> None:
    array = bytes_array(values, kind)
    array.validate(full=True)
    assert array.equals(pa.array(values, kind or pa.binary()))


def test_more_than_two_gigabytes_need_large_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "INT32_MAX", 5)
    assert bytes_array([b"abc", b"de"]).type == pa.binary()
    assert bytes_array([b"abc", b"def"]).equals(pa.array([b"abc", b"def"], pa.large_binary()))


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=5), max_size=20))
def test_texts_become_the_array_that_arrow_makes(values: list[str | None]) -> None:
    assert text_array(values).equals(pa.array(values, pa.string()))


@given(INTS, st.integers(0, 5))
def test_numbers_become_the_array_that_arrow_makes_and_come_back(values: list[int | None], skipped: int) -> None:
    array = int64_array(values)
    array.validate(full=True)
    assert array.equals(pa.array(values, pa.int64()))
    column = array.slice(skipped)
    assert numbers_of(column, at_null=7).tolist() == [7 if value is None else value for value in values[skipped:]]
    assert nulls_of(column).tolist() == [value is None for value in values[skipped:]]
    assert numbers_of(pa.chunked_array([array, column]), at_null=0).tolist() == [
        value or 0 for value in values + values[skipped:]
    ]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_number_that_is_no_int64_is_an_error(number: int) -> None:
    with pytest.raises(OverflowError):
        int64_array([number])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float32", "float64"])
def test_numbers_keep_their_type(dtype: str) -> None:
    numbers = np.array([1, 2, 3, 4], dtype)[::2]  # not in one piece
    array = number_array(numbers, np.array([False, True]))
    assert array.equals(pa.array([1, None], str(np.dtype(dtype)).replace("float64", "double").replace("float32", "float")))
    assert numbers_of(array).dtype == np.dtype(dtype)


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 9), st.booleans())
def test_truth_values_come_back(values: list[bool | None], skipped: int, at_null: bool) -> None:
    column = pa.array(values, pa.bool_()).slice(skipped)
    expected = [at_null if value is None else value for value in values[skipped:]]
    assert bools_of(column, at_null=at_null).tolist() == expected
    assert bools_of(pa.chunked_array([column, column]), at_null=at_null).tolist() == expected * 2
    assert bool_array(np.array(expected, np.bool_)).to_pylist() == expected


@pytest.mark.parametrize("value", [True, 5, -1, "text", "", b"octets"])
def test_a_scalar_is_the_one_that_arrow_makes(value: bool | int | str | bytes) -> None:
    assert scalar(value).equals(pa.scalar(value))


NAMES = st.text(st.characters(codec="utf-8"), max_size=4)


@given(st.lists(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=4)), max_size=3), max_size=9))
def test_headers_become_the_map_that_arrow_makes(rows: list[list[tuple[str, bytes | None]]]) -> None:
    array = header_array(rows)
    array.validate(full=True)
    assert array.equals(pa.array(rows, pa.map_(pa.string(), pa.binary())))


# NOTHING IMPORTS PANDAS

BY_PYTHON_VALUES = {"array", "scalar", "to_numpy", "from_pydict", "from_pylist", "asarray"}
MAY_CALL_PA_ARRAY = {
    "producer/avro/avro_rows.py": "objects of any form; the producer's constructor has imported pandas",
    "producer/avro/avro_serializers.py": "the same",
}


def calls_that_import_pandas(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        if node.func.attr == "to_numpy" or (owner == "pa" and node.func.attr in BY_PYTHON_VALUES):
            yield f"line {node.lineno}: {ast.unparse(node.func)}"
        literals = [each for each in node.args if isinstance(each, ast.Constant | ast.JoinedStr)]
        if literals and (node.func.attr == "fill_null" or owner == "pc" or ast.unparse(node.func) == "pa.repeat"):
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_file_has_arrow_convert_values_of_python(file: Path) -> None:
    if str(file.relative_to(PACKAGE)) not in MAY_CALL_PA_ARRAY:
        assert list(calls_that_import_pandas(file.read_text())) == []


@pytest.mark.parametrize(
    "source",
    ["pa.array([1])", "pa.scalar(b'')", "column.to_numpy()", "column.fill_null(0)", "pc.less(column, 0)", "pa.repeat('t', 3)"],
)
def test_a_call_that_imports_pandas_is_seen(source: str) -> None:
    assert len(list(calls_that_import_pandas(source))) == 1


MAKE = "producer = KafkaProducer(OPTIONS)\n"
SINK = """
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import *
from spark_kafka_sink.sink.datasource import KafkaDataSource
Pandas.imports = 0  # pyspark's own

def write(schema, batches, **options):
    options = {"kafka." + key: str(value) for key, value in OPTIONS.items()} | options
    writer = KafkaDataSource(CaseInsensitiveDict(options)).writer(schema, False)
    print(writer.write(iter(batches)).rows)
"""
PATHS = {
    "send": MAKE + "producer.send('orders', b'v', key=b'k', headers=[('a', b'1'), ('b', None)], partition=1, timestamp=3)\n"
    "producer.send('orders', None)",
    "serializers": "producer = KafkaProducer(OPTIONS | {'value.serializer': 'long'})\nproducer.send('orders', 5)",
    "send_columns": MAKE + "producer.send_columns(text_array(['orders', 'single']), value=bytes_array([b'v', None]),"
    " key=text_array([None, 'k']), partition=int64_array([1, None]), timestamp=int64_array([None, 5]),"
    " headers=header_array([[('a', b'1')], []]))",
    "send_table": MAKE + "import pyarrow as pa\nnames = text_array(['orders', 'single', 'orders']).dictionary_encode()\n"
    "producer.send_table(None, pa.table({'topic': names, 'value': names, 'partition': int64_array([0, None, 1])}))",
    "partitioner": "choose = lambda topic, key, value, cluster: int64_array([1] * len(value))\n"
    "producer = KafkaProducer(OPTIONS | {'partitioner.class': choose})\n"
    "producer.send_columns('orders', value=bytes_array([b'v']))\nproducer.send('orders', b'w')",
    "interceptors": "class Stamp:\n    def on_send(self, record):\n        record.key, record.headers = b'k', (('h', b'1'),)\n"
    "        return record\n"
    "producer = KafkaProducer(OPTIONS | {'interceptor.classes': [Stamp()]})\nproducer.send('orders', b'v')\n"
    "producer.send_columns('orders', value=bytes_array([b'v']), partition=int64_array([None]))",
    "compression": "for codec in ('gzip', 'snappy', 'lz4', 'zstd'):\n"
    "    producer = KafkaProducer(OPTIONS | {'compression.type': codec})\n    producer.send('orders', bytes(5000))\n"
    "    producer.close()",
    "transactions": "producer = KafkaProducer(OPTIONS | {'transactional.id': 't'})\nproducer.init_transactions()\n"
    "with producer.transaction():\n    producer.send('orders', b'v')",
    "old producer": "from spark_kafka_sink.legacy.producer import KeyedMessage, Producer\n"
    "with Producer({'metadata.broker.list': sys.argv[1], 'request.required.acks': -1}) as producer:\n"
    "    producer.send(KeyedMessage('orders', b'k', b'v'))",
    "columns as avro": "import pyarrow as pa\ncells = [text_array(['a', None]), int64_array([1, None])]\n"
    "rows = pa.StructArray.from_arrays(cells, ['name', 'number'])\n"
    "producer = KafkaProducer(OPTIONS | {'schema.registry.url': REGISTRY, 'value.serializer': 'avro'})\n"
    "producer.send_columns(text_array(['orders', 'single']), value=rows)",
    "objects as avro": 'schema = \'{"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}\'\n'
    "producer = KafkaProducer(OPTIONS | {'schema.registry.url': REGISTRY, 'value.serializer': 'avro', 'value.schema': schema})\n"
    "assert Pandas.imports > 0  # now: no row waits for it\nPandas.imports = 0\nproducer.send('orders', {'a': 'x'})",
    "sink": SINK + "import pyarrow as pa\nkinds = {'topic': StringType(), 'key': BinaryType(), 'value': StringType(),"
    " 'partition': IntegerType(), 'timestamp': TimestampType()}\n"
    "schema = StructType([StructField(name, kind) for name, kind in kinds.items()])\n"
    "columns = [text_array(['orders', None, 'single']), bytes_array([b'k', None, b'']), text_array(['a', 'b', None]),"
    " int64_array([1, None, 0]).cast(pa.int32()), int64_array([5, None, -7]).cast(pa.timestamp('us', 'UTC'))]\n"
    "write(schema, [pa.RecordBatch.from_arrays(columns, schema.names)], includeTimestamp='true', onInvalidRecord='deadLetter',"
    " deadLetterTopic='other')\n",
    "sink with avro": SINK + "import pyarrow as pa\nstruct = StructType([StructField('name', StringType()),"
    " StructField('flag', BooleanType())])\n"
    "rows = pa.StructArray.from_arrays([text_array(['a', None]), int64_array([1, 0]).cast(pa.bool_())], ['name', 'flag'])\n"
    "write(StructType([StructField('value', struct)]), [pa.RecordBatch.from_arrays([rows], ['value'])], topic='orders',"
    " valueFormat='avro', **{'schema.registry.url': REGISTRY})",
}


@pytest.mark.parametrize("path", PATHS)
def test_no_way_of_a_row_to_the_brokers_makes_arrow_import_pandas(path: str) -> None:
    with FakeBroker(topics={"orders": 4, "single": 1, "other": 2}) as broker, FakeRegistry() as registry:
        end = "\nif isinstance(globals().get('producer'), KafkaProducer):\n    producer.close()\nprint('imports', Pandas.imports)"
        done = run_program(f"Pandas.fails = False\nREGISTRY = '{registry.url}'\n{PATHS[path]}{end}", broker)
        assert done.stdout.splitlines()[-1] == "imports 0", done.stderr
        assert sum(len(broker.values(topic)) for topic in ("orders", "single", "other")) >= 1
