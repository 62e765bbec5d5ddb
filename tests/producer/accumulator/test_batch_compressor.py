"""How well each topic compresses, as the producer expects it: CompressionRatioEstimator."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.accumulator.batch_compressor import CompressionRatioEstimator


def test_the_estimate_starts_at_one_for_each_topic_and_codec() -> None:
    estimator = CompressionRatioEstimator()
    estimator.update_estimation("orders", "lz4", 0.2)
    assert estimator.estimation("orders", "lz4") == pytest.approx(0.995)
    assert estimator.estimation("orders", "zstd") == estimator.estimation("clicks", "lz4") == 1.0


def test_the_estimate_improves_in_small_steps_and_stops_at_what_was_seen() -> None:
    estimator = CompressionRatioEstimator()
    estimates = [estimator.update_estimation("orders", "lz4", 0.988) for _ in range(4)]
    assert estimates == pytest.approx([0.995, 0.99, 0.988, 0.988])


def test_the_estimate_worsens_at_once_and_by_a_twentieth_at_least() -> None:
    estimator = CompressionRatioEstimator()
    estimator.set_estimation("orders", "lz4", 0.5)
    assert estimator.update_estimation("orders", "lz4", 0.51) == pytest.approx(0.55)
    assert estimator.update_estimation("orders", "lz4", 0.9) == pytest.approx(0.9)
    assert estimator.estimation("orders", "lz4") == pytest.approx(0.9)
