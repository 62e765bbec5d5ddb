"""Options that no code reads: they look effective in the documents, and are not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.config.option import options_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.config.serializer_config import SerializerConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.legacy.config import LegacyProducerConfig

PACKAGE = Path(__file__).parents[2] / "spark_kafka_sink"
CLASSES = [SinkOptions, ProducerConfig, RegistryConfig, SerializerConfig, LegacyProducerConfig]
_OF_A_PART = ("schema", "subject", "record_name", "record_namespace", "message")
# Not read by that name, and why.
ELSEWHERE = {
    **{f"{part}_{name}": "format_options.py composes the name" for part in ("key", "value") for name in _OF_A_PART},
    "include_headers": "documented as without effect",
    "sasl_client_callback_handler_class": "documented as without effect",
    "ssl_keystore_type": "stores.py composes the name",
    "ssl_truststore_type": "stores.py composes the name",
    "transaction_two_phase_commit_enable": "producer_rules.py rejects it",
}
_OF_REGISTRY_TLS = "schema_registry_ssl_"  # registry_pools.py composes the names


def is_composed(attribute: str) -> bool:
    return attribute in ELSEWHERE or attribute.startswith(_OF_REGISTRY_TLS)


@pytest.fixture(scope="module")
def read() -> set[str]:
    """All names of attributes that the package reads, and of items, `values["client_id"]`. A rule only checks a value."""
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "producer_rules.py"]
    return {name for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for name in names_in(node)}


def names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        yield node.slice.value


@pytest.mark.parametrize("options", CLASSES)
def test_every_option_is_read_somewhere(options: type[Any], read: set[str]) -> None:
    """sasl.oauthbearer.scope.claim.name was declared, documented, and read by nothing."""
    assert [each for each in options_of(options) if each not in read and not is_composed(each)] == []


def test_every_exception_is_needed(read: set[str]) -> None:
    attributes = {attribute for options in CLASSES for attribute in options_of(options)}
    assert [each for each in ELSEWHERE if each in read or each not in attributes] == []
