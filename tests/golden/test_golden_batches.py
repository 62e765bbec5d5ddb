"""Our batches equal, byte for byte, those of the Java client, which golden_batches.json holds (made by GoldenBatches.java)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.interop.java import run_java
from tests.records.batches import batch_of, columns_of
from tests.records.reference import DecodedRecord, decode_batch

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = json.loads((HERE / "golden_batches.json").read_text())
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


def records_of(case: dict[str, Any]) -> list[DecodedRecord]:
    return [
        DecodedRecord(timestamp, unhex(key), unhex(value), [(name, unhex(content)) for name, content in headers])
        for timestamp, key, value, headers in case["records"]
    ]


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@by_name
def test_our_batch_equals_the_java_clients(case: dict[str, Any]) -> None:
    batch = batch_of(
        columns_of(records_of(case)),
        identity=ProducerIdentity(case["producer_id"], case["producer_epoch"]),
        base_sequence=case["base_sequence"],
        is_transactional=case["transactional"],
    )
    assert batch.hex() == case["batch"]


@by_name
def test_the_reference_decoder_reads_the_java_clients_batch(case: dict[str, Any]) -> None:
    decoded = decode_batch(bytes.fromhex(case["batch"]))
    assert decoded.records == records_of(case)
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence, decoded.transactional) == (
        case["producer_id"],
        case["producer_epoch"],
        case["base_sequence"],
        case["transactional"],
    )


@pytest.mark.broker
def test_the_java_client_still_writes_these_batches(kafka_jars: Path) -> None:
    assert json.loads(run_java(kafka_jars, HERE / "GoldenBatches.java")) == CASES
