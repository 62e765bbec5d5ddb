"""Schemas of a subject, and the code of the error that a call to a registry raises."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_kafka_sink.schemas.registry_errors import RegistryError


def record(*fields: dict[str, Any], name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "com.acme", "fields": list(fields)})


ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
REQUIRED = {"name": "name", "type": "string"}
FIRST, SECOND, INCOMPATIBLE = record(ID), record(ID, NAME), record(ID, REQUIRED)


def condition(error: pytest.ExceptionInfo[RegistryError]) -> str:
    return error.value.condition.removeprefix("KAFKA_SCHEMA_REGISTRY_")
