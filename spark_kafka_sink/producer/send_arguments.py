"""The arguments of `KafkaProducer.send`, which has two forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.producer.record_chunk import Callback

_FIELDS = ("topic", "value", "key", "partition", "headers", "timestamp", "callback")
_FORMS = "use send(record, callback), or send(topic, value, key=…, partition=…, headers=…, timestamp=…, callback=…)"


def record_of_arguments(
    topic: object, value: object, callback: Callback | None, fields: dict[str, Any]
) -> tuple[ProducerRecord, Callback | None]:
    """The record and callback of send(topic, value, …). Raises TypeError when the arguments are neither of its forms."""
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise TypeError(f"send() has no argument {', '.join(unknown)}; its arguments are {', '.join(_FIELDS)}; {_FORMS}")
    if isinstance(topic, ProducerRecord):
        raise _beside_a_record(value, callback, fields)
    if topic is not None and "topic" in fields:
        raise TypeError(f"send() has two topics; {_FORMS}")
    topic = fields.pop("topic", topic)
    if not isinstance(topic, str):
        raise TypeError(f"send() needs a ProducerRecord or the name of a topic first, not {type(topic).__name__}; {_FORMS}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}; {_FORMS}")
    return ProducerRecord(topic, value, **fields), callback


def _beside_a_record(value: object, callback: object, fields: Mapping[str, Any]) -> TypeError:
    if fields:
        return TypeError(f"{', '.join(fields)} cannot be given with a ProducerRecord, which has its own; {_FORMS}")
    if value is not None and callback is not None:
        return TypeError(f"send() has two arguments after a ProducerRecord; only a callback is allowed; {_FORMS}")
    wrong = callback if value is None else value
    return TypeError(f"with a ProducerRecord send() takes only a callback, not {type(wrong).__name__}; {_FORMS}")
