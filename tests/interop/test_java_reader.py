"""The Java client reads our batches, whatever the codec and level, and finds in them what we wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java import run_java
from tests.interop.samples import SAMPLES, sample_batch, sample_records
from tests.records.reference import DecodedRecord

READER = Path(__file__).parent / "ReadBatches.java"


def as_bytes(octets: bytes | None) -> str:
    return "-" if octets is None else "=" + octets.hex()


def as_line(offset: int, record: DecodedRecord) -> str:
    headers = [as_bytes(key.encode()) + as_bytes(value) for key, value in record.headers]
    return " ".join([str(offset), str(record.timestamp), as_bytes(record.key), as_bytes(record.value), *headers])


@pytest.mark.broker
def test_the_java_client_reads_every_codec_at_every_level(kafka_jars: Path, tmp_path: Path) -> None:
    records = sample_records()
    record_lines = [as_line(offset, record) for offset, record in enumerate(records)]
    latest = max(record.timestamp for record in records)
    file = tmp_path / "batches"
    file.write_bytes(b"".join(sample_batch(records, *sample) for sample in SAMPLES))

    lines = run_java(kafka_jars, READER, file).splitlines()

    assert len(lines) == len(SAMPLES) * (1 + len(records))
    for number, (codec, level, parts) in enumerate(SAMPLES):
        batch_line, *java_lines = lines[number * (1 + len(records)) : (number + 1) * (1 + len(records))]
        # ids and epoch as given; 300 records from sequence 2147483646 on end at 297
        assert batch_line == f"batch {codec} 300 {latest} {2**40 + 1} 32767 2147483646 297 true"
        assert java_lines == record_lines, f"{codec} at level {level} in {parts} parts"
