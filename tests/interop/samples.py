"""Batches of ours for foreign readers: every codec at every level that tells something, large enough for several blocks."""

from __future__ import annotations

import random

from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.records.batches import batch_of, columns_of
from tests.records.reference import DecodedRecord

IDENTITY = ProducerIdentity(2**40 + 1, 32767)
BASE_SEQUENCE = 2**31 - 2  # the sequence wraps
ZSTD_LEVELS = (-131072, -1000, -100, *range(-7, 0), *range(1, 23))
# Codec, level, and in how many parts the records were compressed.
SAMPLES = [
    ("none", None, 1),
    ("snappy", None, 1),
    ("snappy", None, 5),
    *(("gzip", level, 1) for level in (-1, *range(1, 10))),
    *(("lz4", level, 1) for level in range(1, 18)),
    ("lz4", 9, 5),
    *(("zstd", level, 1) for level in ZSTD_LEVELS),
]


def sample_records(count: int = 300) -> list[DecodedRecord]:
    """About 200 KB, three or four blocks of lz4 or snappy: text, noise, nulls, headers, timestamps that go back."""
    source = random.Random(count)
    words = [source.randbytes(8).hex().encode() for _ in range(50)]

    def text() -> bytes:
        return b" ".join(source.choices(words, k=source.randrange(60)))

    def record(index: int) -> DecodedRecord:
        key = source.choice([None, b"", b"key-%d" % index, source.randbytes(20)])
        value = source.choice([None, b"", text(), text(), text(), source.randbytes(700)])
        headers = [("trace", source.randbytes(8)), ("größe-\N{KEY}", None), ("trace", b"")][: source.randrange(6) % 4]
        return DecodedRecord(1_700_000_000_000 + source.randrange(-100_000, 100_000), key, value, headers)

    return [record(index) for index in range(count)]


def sample_batch(records: list[DecodedRecord], codec: str, level: int | None, parts: int) -> bytes:
    return batch_of(
        columns_of(records), codec, level, parts, is_transactional=True, identity=IDENTITY, base_sequence=BASE_SEQUENCE
    )
