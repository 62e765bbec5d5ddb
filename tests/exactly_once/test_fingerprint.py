"""A fingerprint is that of a slow loop over rows and words, for every shape of columns, and other rows have another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.exactly_once import fingerprint as module
from spark_kafka_sink.exactly_once.fingerprint import content_of
from spark_kafka_sink.exactly_once.writes import Content, sum_contents

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXTS_AND_BYTES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]
SEGMENT = 8192  # bytes


class Row(NamedTuple):
    value: bytes | None = b"value"
    key: bytes | None = None
    headers: list[tuple[str | None, bytes | None]] | None = None
    topic: str | None = "orders"
    partition: int | None = None


# THE DEFINITION, STEP BY STEP

STEP = 0x9E3779B97F4A7C15


def finish(number: int) -> int:
    number %= 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


SPLITMIX64 = [finish(place * STEP) for place in range(1, 1024 + 5 + 1)]
ODD = [number | 1 for number in SPLITMIX64]
FACTORS, LENGTHS, PARTITION, TOPIC = ODD[:1024], ODD[1024:1027], ODD[1027], ODD[1028]


def varint(number: int) -> bytes:
    zigzag = 2 * number if number >= 0 else -2 * number - 1
    octets = bytearray()
    while zigzag > 127:
        octets.append(zigzag % 128 + 128)
        zigzag //= 128
    return bytes([*octets, zigzag])


def with_length(octets: bytes | None) -> bytes:
    return varint(-1) if octets is None else varint(len(octets)) + octets


def header_bytes(headers: Sequence[tuple[str | None, bytes | None]] | None) -> bytes:
    names = [(None if name is None else name.encode(), value) for name, value in headers or []]
    return b"".join(with_length(name) + with_length(value) for name, value in names)


def content(fields: Sequence[bytes | None]) -> int:
    octets = b"".join(field or b"" for field in fields)
    octets += bytes(-len(octets) % 8)
    words = [int.from_bytes(octets[at : at + 8], "little") for at in range(0, len(octets), 8)]
    mixed = [int.from_bytes((word * STEP % 2**64).to_bytes(8, "little"), "big") for word in words]
    hashed = sum((-1 if field is None else len(field)) * factor for field, factor in zip(fields, LENGTHS, strict=False))
    for number in range(0, -(-len(mixed) // 1024)):
        segment = sum(word * factor for word, factor in zip(mixed[1024 * number : 1024 * number + 1024], FACTORS, strict=False))
        hashed += segment if number == 0 else finish(segment + number * STEP)
    return hashed


def row_hash(row: Row) -> int:
    partition = -(2**63) if row.partition is None else row.partition
    topic = finish(content([None if row.topic is None else row.topic.encode()]))
    return finish(content([row.key, row.value, header_bytes(row.headers)]) + partition * PARTITION + topic * TOPIC)


def expected(rows: Sequence[Row]) -> Content:
    return Content(len(rows), sum(map(row_hash, rows)) % 2**64)


# ROWS AS COLUMNS


def payload(cells: Sequence[bytes | None], kind: pa.DataType = TEXTS_AND_BYTES[0]) -> pa.Array:
    """A string column may contain any bytes, as Spark's do."""
    large = kind in (pa.large_binary(), pa.large_string())
    return pa.array(cells, pa.large_binary() if large else pa.binary()).view(kind)


def columns_of(rows: Sequence[Row], kind: pa.DataType = TEXTS_AND_BYTES[0]) -> dict[str, Any]:
    """Make columns of one piece each."""
    topics = [None if row.topic is None else row.topic.encode() for row in rows]
    return {
        "topic": payload(topics, pa.string()),
        "value": pa.chunked_array([payload([row.value for row in rows], kind)]),
        "key": payload([row.key for row in rows], kind),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
        "headers": pa.array([row.headers for row in rows], HEADERS),
        "timestamp": pa.array(range(len(rows)), pa.int64()),
    }


def fingerprint(*batches: dict[str, Any]) -> Content:
    return sum_contents(map(content_of, batches))


def of_rows(*rows: Row) -> int:
    return fingerprint(columns_of(rows)).fingerprint


def of_values(octets: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The hash of each row of a matrix: one value per row, without key."""
    rows, size = octets.shape
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int64))
    value = pa.Array.from_buffers(pa.large_binary(), rows, [None, offsets, pa.py_buffer(np.ascontiguousarray(octets))])
    columns = {"topic": "orders", "value": pa.chunked_array([value]), "key": None, "partition": None, "headers": None}
    return module._row_hashes(columns, rows)


CELLS = st.none() | st.binary(max_size=30)
HEADER = st.tuples(st.none() | st.text(max_size=10), CELLS)
ROWS = st.builds(
    Row,
    value=CELLS,
    key=CELLS,
    headers=st.none() | st.lists(HEADER, max_size=3),
    topic=st.sampled_from(["orders", "payments", "", None]),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
)


def cut(array: pa.Array, at: Sequence[int]) -> pa.ChunkedArray:
    return pa.chunked_array([array[low:high] for low, high in itertools.pairwise([0, *sorted(at), len(array)])])


@given(
    rows=st.lists(ROWS, max_size=10),
    kind=st.sampled_from(TEXTS_AND_BYTES),
    cuts=st.lists(st.integers(0, 10), max_size=3),
    before=st.integers(0, 9),
    limits=st.sampled_from([(32 * 1024, 128 * 1024), (3, 4), (1, 1)]),
)
def test_a_fingerprint_is_that_of_its_rows_one_by_one(
    rows: list[Row], kind: pa.DataType, cuts: list[int], before: int, limits: tuple[int, int]
) -> None:
    """Whatever the types, in slices of longer columns, with values in chunks, and however much is hashed at a time."""
    more = [Row(b"no row of this batch", b"key", [("header", b"")], partition=7)]
    columns = columns_of([*more * before, *rows, *more], kind)
    sliced = {name: column.slice(before, len(rows)) for name, column in columns.items()}
    value = sliced["value"].combine_chunks() if rows else payload([], kind)
    sliced["value"] = cut(value, [min(at, len(rows)) for at in cuts])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLICE_ROWS", limits[0])
        patch.setattr(module, "_BLOCK_WORDS", limits[1])
        assert fingerprint(sliced) == expected(rows)


@given(rows=st.lists(ROWS, min_size=1, max_size=12), seed=st.randoms(use_true_random=False), batches=st.integers(1, 4))
def test_neither_the_order_of_rows_nor_their_batches_matter(rows: list[Row], seed: Any, batches: int) -> None:
    shuffled = seed.sample(rows, len(rows))
    parts = [columns_of(shuffled[start::batches]) for start in range(batches)]
    assert fingerprint(*parts) == fingerprint(columns_of(rows))


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(
        st.builds(lambda segments, more: max(0, SEGMENT * segments + more), st.integers(0, 4), st.integers(-9, 9)),
        min_size=1,
        max_size=6,
    ),
    block=st.sampled_from([1, 1024, 3000, 128 * 1024]),
)
def test_rows_longer_than_a_segment_are_hashed_whole(sizes: list[int], block: int) -> None:
    source = np.random.default_rng(3)
    rows = [Row(source.bytes(size), source.bytes(index)) for index, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_WORDS", block)
        assert fingerprint(columns_of(rows)) == expected(rows)


def test_partitions_of_a_dataframe_add_up() -> None:
    rows = [Row(b"%d" % number) for number in range(5)]
    parts = [fingerprint(columns_of(rows[:2])), fingerprint(), fingerprint(columns_of(rows[2:]))]
    assert sum_contents(parts) == fingerprint(columns_of(rows))
    assert sum_contents([Content(1, 2**64 - 1), Content(2, 3)]) == Content(3, 2)


# GOLDEN NUMBERS

GOLDEN = {
    Row(None): 0x153AFCDC8F220524,
    Row(b""): 0xAE932E95AB9F2992,
    Row(b"value"): 0x295260A323BD44DD,
    Row(b"value", b"key"): 0x389568296C2736E1,
    Row("Grüße".encode(), b"\0", topic="payments", partition=0): 0xF30BA7B20AA43E5E,
    Row(bytes(range(256)), partition=2**31 - 1): 0x7E9E7883169097EF,
    Row(bytes(range(256)) * 100): 0xF243805E5ADCEC01,
}
GOLDEN_WITH_HEADERS = 0x81B179581BCC3C69


@pytest.mark.parametrize(("row", "number"), GOLDEN.items(), ids=range(len(GOLDEN)))
def test_fingerprints_are_those_that_older_releases_stored(row: Row, number: int) -> None:
    """Older fingerprints are in Kafka. If this test fails, a write that is repeated after an upgrade fails, or doubles rows."""
    assert of_rows(row) == number


def test_a_fingerprint_of_headers_is_that_which_older_releases_stored() -> None:
    assert of_rows(Row(headers=[("trace", b"0123456789abcdef"), ("empty", b""), ("null", None)])) == GOLDEN_WITH_HEADERS


def test_factors_are_the_numbers_of_splitmix64() -> None:
    """Other implementations give these numbers for seed 0."""
    assert SPLITMIX64[:3] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert module._splitmix64(1029).tolist() == SPLITMIX64
    assert len(set(ODD)) == len(ODD)


# WHAT IS THE SAME


def test_no_rows_have_the_empty_content() -> None:
    assert fingerprint() == fingerprint(columns_of([])) == Content(0, 0)


def test_a_topic_is_the_same_as_option_and_as_column() -> None:
    columns = columns_of([Row(b"a"), Row(b"b")])
    assert fingerprint({**columns, "topic": "orders"}) == fingerprint(columns)
    assert fingerprint({**columns, "topic": "payments"}) != fingerprint(columns)


def test_each_row_may_have_a_topic_of_its_own() -> None:
    rows = [Row(topic=f"topic-{number}") for number in range(500)]
    assert fingerprint(columns_of(rows)) == expected(rows)


def test_missing_columns_are_the_same_as_nulls() -> None:
    columns = columns_of([Row(None), Row(None)])
    some = {**columns, "key": None, "partition": None, "headers": None}
    assert fingerprint(some) == fingerprint(columns)
    assert fingerprint({**some, "value": None}) == fingerprint(columns)
    nulls = {name: pa.nulls(2) for name in ("key", "partition", "headers")}
    assert fingerprint({**columns, **nulls, "value": pa.chunked_array([pa.nulls(2)])}) == fingerprint(columns)
    assert fingerprint({**columns, "topic": pa.nulls(2)}) == expected([Row(None, topic=None)] * 2)


def test_a_timestamp_does_not_matter() -> None:
    columns = columns_of([Row()])
    assert fingerprint({**columns, "timestamp": None}) == fingerprint(columns)


def test_headers_are_the_same_as_array_and_as_map() -> None:
    headers: list[Any] = [[("a", b"1"), ("b", None)], [], None, [("c", b"")]]
    columns = columns_of([Row(headers=each) for each in headers])
    for kind in (
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.large_string(), pa.large_binary()),
        pa.large_list(HEADERS.value_type),
    ):
        assert fingerprint({**columns, "headers": pa.array(headers, kind)}) == fingerprint(columns)
    texts = pa.array([[("a", "1"), ("b", None)], [], None, [("c", "")]], pa.map_(pa.string(), pa.string()))
    assert fingerprint({**columns, "headers": texts}) == fingerprint(columns)


def test_no_headers_are_the_same_as_null_beside_rows_with_and_without_headers() -> None:
    """Kafka's record has the same bytes: a count of 0."""
    assert of_rows(Row(headers=None)) == of_rows(Row(headers=[]))
    other = Row(headers=[("a", b"1")])
    assert of_rows(Row(headers=None), other) == of_rows(Row(headers=[]), other) == (of_rows(Row()) + of_rows(other)) % 2**64


def test_what_lies_under_a_null_does_not_matter() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 22, 23], np.int32))
    garbage = pa.Array.from_buffers(
        pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"ab" + b"GARBAGE IS LONGER :)" + b"c")]
    )
    assert garbage.to_pylist() == [b"ab", None, b"c"]
    columns = columns_of([Row(b"ab"), Row(None), Row(b"c")])
    assert fingerprint({**columns, "value": pa.chunked_array([garbage])}) == fingerprint(columns)


# WHAT DIFFERS

DIFFERENT = {
    "null and empty value": [Row(None), Row(b"")],
    "null and empty key": [Row(key=None), Row(key=b"")],
    "where the key ends": [Row(b"c", b"ab"), Row(b"bc", b"a"), Row(b"abc", b""), Row(b"", b"abc"), Row(b"abc")],
    "key and value": [Row(b"a", b"b"), Row(b"b", b"a")],
    "zero bytes": [Row(bytes(size), bytes(more)) for size in range(20) for more in range(3)],
    "zero bytes around one": [Row(bytes(before) + b"\1" + bytes(20 - before)) for before in range(21)],
    "partitions": [Row(partition=partition) for partition in (None, 0, 1, -1, 2**31 - 1, -(2**31))],
    "topics": [Row(topic=topic) for topic in ("orders", "orders2", "", None)],
    "order of headers": [Row(headers=[("a", b"1"), ("b", b"2")]), Row(headers=[("b", b"2"), ("a", b"1")])],
    "headers": [
        Row(headers=headers)
        for headers in (
            [],
            [("a", None)],
            [("a", b"")],
            [("a", b"b")],
            [("ab", b"")],
            [("", b"ab")],
            [(None, b"ab")],
            [("a", None), ("a", None)],
        )
    ],
    "a field moved into another": [Row(b"v", b"k"), Row(b"v", headers=[("k", b"")]), Row(None, b"kv"), Row(b"kv", None)],
    "headers that look like a value": [Row(b"", headers=[("a", b"1")]), Row(header_bytes([("a", b"1")]))],
    "equal bytes of other lengths": [Row(b"x" * size) for size in range(100)],
    "the last byte of a long row": [Row(b"x" * 50_000 + bytes([last])) for last in range(256)],
}


@pytest.mark.parametrize("rows", DIFFERENT.values(), ids=DIFFERENT)
def test_different_rows_differ(rows: list[Row]) -> None:
    assert len({of_rows(row) for row in rows}) == len(rows)


def test_values_that_change_rows_differ() -> None:
    keys, values = [b"a", b"b", b"c"], [b"1", b"2", b"3"]
    assignments = {of_rows(*map(Row, order, keys)) for order in itertools.permutations(values)}
    assert len(assignments) == 6


def test_a_row_twice_is_neither_the_row_nor_nothing() -> None:
    assert len({of_rows(), of_rows(Row()), of_rows(Row(), Row()), of_rows(*[Row()] * 3)}) == 4


def test_each_bit_of_a_row_changes_about_half_of_its_hash() -> None:
    size = 80
    rows = np.tile(np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8), (1 + 8 * size, 1))
    for bit in range(8 * size):
        rows[1 + bit, bit // 8] ^= 1 << bit % 8
    original, *changed = of_values(rows).tolist()
    changes = np.array([[(original ^ each) >> bit & 1 for bit in range(64)] for each in changed])
    assert 15 <= changes.sum(1).min() <= changes.sum(1).max() <= 50
    assert abs(changes.mean() - 0.5) < 0.01
    assert abs(changes.mean(0) - 0.5).max() < 0.1


ROW_COUNT = 1 << 17


def binary_digits(words: int = 17) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """All rows of words that are 0 or 1."""
    return np.arange(ROW_COUNT, dtype=np.uint64)[:, None] >> np.arange(words, dtype=np.uint64) & np.uint64(1)


def two_words(first: bytes, second: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All rows of 17 words that are one of the two."""
    words = np.array([np.frombuffer(word, np.uint64)[0] for word in (first, second)], np.uint64)
    return words[binary_digits().astype(np.int64)].view(np.uint8)


def decimal_texts() -> np.ndarray[Any, np.dtype[np.uint8]]:
    texts = [b'{"id": %08d, "amount": %08d, "of": "customer-%08d"}' % (n, n * 7919 % 10**8, n % 1000) for n in range(ROW_COUNT)]
    return np.frombuffer(b"".join(texts), np.uint8).reshape(ROW_COUNT, -1)


def swapped_words() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A row of 512 words, with each pair of words swapped."""
    words = np.frombuffer(np.random.default_rng(2).bytes(512 * 8), np.uint64)
    first, second = np.array(list(itertools.islice(itertools.combinations(range(512), 2), 8192))).T
    rows = np.tile(words, (len(first), 1))
    numbers = np.arange(len(first))
    rows[numbers, first], rows[numbers, second] = words[second], words[first]
    return rows.view(np.uint8)


ALIKE = {
    "numbers": lambda: np.arange(ROW_COUNT, dtype="<u8")[:, None].view(np.uint8),
    "numbers, highest byte first": lambda: np.arange(ROW_COUNT, dtype=">u8")[:, None].view(np.uint8),
    "few small numbers": lambda: binary_digits().view(np.uint8),
    "few small numbers, highest byte first": lambda: binary_digits().byteswap().view(np.uint8),
    "two words that differ in their last byte": lambda: two_words(b"abcdefgh", b"abcdefgi"),
    "two words that differ in their first byte": lambda: two_words(b"abcdefgh", b"bbcdefgh"),
    "two words of a repeated pattern": lambda: two_words(b"abc1abc1", b"abc2abc2"),
    "two words that differ in their highest bits": lambda: two_words(bytes(8), b"\x80" * 8),
    "texts": decimal_texts,
    "floating-point numbers": lambda: np.arange(ROW_COUNT, dtype="<f8")[:, None].view(np.uint8),
    "swapped words": swapped_words,
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_rows_that_are_alike_collide_no_more_often_than_random_numbers(make: Any) -> None:
    """Neither half of their hashes collides; of 2**17 random numbers, about two pairs have an equal half."""
    hashes = of_values(make())
    assert len(np.unique(hashes)) == len(hashes)
    for half in (hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)):
        assert len(hashes) - len(np.unique(half)) <= 10


# WHAT IS REFUSED


@pytest.mark.parametrize("name", ["value", "key", "topic", "partition", "headers"])
def test_a_column_of_another_type_is_refused_by_name(name: str) -> None:
    doubles = pa.array([1.5], pa.float64())
    columns = {**columns_of([Row()]), name: pa.chunked_array([doubles]) if name == "value" else doubles}
    with pytest.raises(SchemaError, match=f"column {name} has type double"):
        fingerprint(columns)


def test_columns_of_different_lengths_are_refused() -> None:
    columns = {**columns_of([Row(), Row()]), "key": pa.array([b"only one"])}
    with pytest.raises(SchemaError, match="column key has 1 rows, and column topic 2"):
        fingerprint(columns)


def test_rows_without_any_column_are_refused() -> None:
    with pytest.raises(ValueError, match="no column"):
        fingerprint({"topic": "orders", "value": None, "key": None, "partition": None, "headers": None})
