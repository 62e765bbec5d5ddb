"""kafka-python, which shares no code with us or with Java, reads our batches."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import kafka.codec
import pytest
from kafka.record import MemoryRecords

from tests.interop.samples import BASE_SEQUENCE, IDENTITY, SAMPLES, sample_batch, sample_records
from tests.records.reference import snappy_block, unzstd

RECORDS = sample_records()


@pytest.fixture
def _its_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python asks for python-snappy and zstandard; Arrow stands in for both. The framing is read by kafka-python."""
    monkeypatch.setattr(kafka.codec, "snappy", SimpleNamespace(decompress=snappy_block))
    monkeypatch.setattr(kafka.codec, "zstd", SimpleNamespace(ZstdDecompressor=lambda: SimpleNamespace(stream_reader=_reader)))


def _reader(source: Any, read_across_frames: bool) -> Any:  # noqa: ARG001
    return nullcontext(SimpleNamespace(read=lambda: unzstd(source.read())))


@pytest.mark.usefixtures("_its_codecs")
@pytest.mark.parametrize(("codec", "level", "parts"), SAMPLES)
def test_kafka_python_reads_every_codec_at_every_level(codec: str, level: int | None, parts: int) -> None:
    batches = list(MemoryRecords(sample_batch(RECORDS, codec, level, parts)))
    assert len(batches) == 1
    batch = batches[0]
    assert batch.validate_crc()
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (*IDENTITY, BASE_SEQUENCE)
    assert batch.max_timestamp == max(record.timestamp for record in RECORDS)
    records_read = [(record.offset, record.timestamp, record.key, record.value, record.headers) for record in batch]
    assert records_read == [(offset, *record) for offset, record in enumerate(RECORDS)]
