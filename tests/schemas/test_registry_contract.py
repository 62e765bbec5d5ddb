"""What SchemaRegistry relies on, asked of the fake registry and of real ones: so the fake says what they say.

Each test has subjects of its own, so that one real registry serves all of them.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_sink.schemas.registry import RegisteredSchema, SchemaRegistry
from spark_kafka_sink.schemas.registry_client import RegistryClient, RegistryRequest
from spark_kafka_sink.schemas.registry_errors import RegistryError
from tests.fakes.registry_config import registry_config
from tests.schemas.fake_registry import FakeRegistry
from tests.schemas.real_registries import apicurio, srfake
from tests.schemas.registry_samples import FIRST, ID, INCOMPATIBLE, SECOND, condition, record


@contextlib.contextmanager
def fake() -> Iterator[str]:
    with FakeRegistry() as registry:
        yield registry.url


IS_REAL = (pytest.mark.matrix, pytest.mark.timeout(600))


@pytest.fixture(
    scope="module",
    params=[fake, pytest.param(apicurio, marks=IS_REAL), pytest.param(srfake, marks=IS_REAL)],
    ids=lambda f: f.__name__,
)
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as url:
        yield url


@pytest.fixture
def registry(registry_url: str) -> SchemaRegistry:
    return registry_at(registry_url)


@pytest.fixture
def subject() -> str:
    return f"orders/ä-{uuid.uuid4().hex}-value"


def registry_at(url: str, **options: str) -> SchemaRegistry:
    return SchemaRegistry(registry_config({"schema.registry.url": url, **options}))


def skip_srfake(request: pytest.FixtureRequest, why: str) -> None:
    if "srfake" in request.node.name:
        pytest.skip(why)


def plain(schema: RegisteredSchema) -> tuple[Any, ...]:
    """Registries write the same JSON with other blanks."""
    return schema.subject, schema.version, schema.schema_type, json.loads(schema.text), schema.write_rules


def test_a_registered_schema_is_found_in_every_way(registry: SchemaRegistry, subject: str) -> None:
    registered = registry.register(subject, FIRST)
    assert plain(registered) == (subject, 1, "AVRO", json.loads(FIRST), None)
    assert registry.latest(subject).id == registry.version(subject, 1).id == registered.id
    assert plain(registry.latest(subject)) == plain(registered)
    schema = registry.lookup(subject, FIRST)
    assert schema is not None
    assert (schema.id, schema.version) == (registered.id, 1)
    by_id = registry.by_id(registered.id)
    assert (by_id.id, json.loads(by_id.text), by_id.references) == (registered.id, json.loads(FIRST), {})


def test_registering_twice_is_registering_once(registry: SchemaRegistry, subject: str) -> None:
    assert registry.register(subject, FIRST) == registry.register(subject, FIRST)
    with pytest.raises(RegistryError) as error:
        registry.version(subject, 2)
    assert condition(error) == "VERSION_NOT_FOUND"


def test_a_compatible_schema_is_the_next_version(registry: SchemaRegistry, subject: str) -> None:
    first, second = registry.register(subject, FIRST), registry.register(subject, SECOND)
    assert (first.version, second.version) == (1, 2)
    assert first.id != second.id
    assert registry.latest(subject).version == 2


def test_what_is_not_there_has_an_error_of_its_own(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(RegistryError) as error:
        registry.latest(subject)
    assert condition(error) == "SUBJECT_NOT_FOUND"
    assert subject in str(error.value)
    with pytest.raises(RegistryError) as error:
        registry.by_id(2**31 - 1)
    assert condition(error) == "SCHEMA_NOT_FOUND"


def test_lookup_of_a_schema_that_is_not_there_is_none(registry: SchemaRegistry, subject: str) -> None:
    assert registry.lookup(subject, FIRST) is None
    registry.register(subject, FIRST)
    assert registry.lookup(subject, SECOND) is None


def test_invalid_schemas_are_refused(registry: SchemaRegistry, subject: str, request: pytest.FixtureRequest) -> None:
    skip_srfake(request, "it takes every text for a schema")
    with pytest.raises(RegistryError) as error:
        registry.register(subject, '{"type": "record", "name": "Order"}')
    assert condition(error) == "INVALID_SCHEMA"


def test_a_schema_is_found_whatever_its_blanks_are(registry: SchemaRegistry, subject: str) -> None:
    registered = registry.register(subject, FIRST)
    schema = registry.lookup(subject, json.dumps(json.loads(FIRST), indent=2))
    assert schema is not None
    assert schema.id == registered.id


def test_references_come_with_the_schema(registry_url: str, registry: SchemaRegistry, subject: str) -> None:
    inner = record(ID, name="Inner")
    outer = record({"name": "inner", "type": "com.acme.Inner"}, name="Outer")
    registry.register(f"inner-{subject}", inner)
    reference = {"name": "com.acme.Inner", "subject": f"inner-{subject}", "version": 1}
    another_client(registry_url, "POST", ("subjects", subject, "versions"), {"schema": outer, "references": [reference]})
    schema = registry.latest(subject)
    assert {name: json.loads(text) for name, text in schema.references.items()} == {"com.acme.Inner": json.loads(inner)}
    assert registry.by_id(schema.id).references == schema.references


def another_client(url: str, method: str, path: tuple[str, ...], body: dict[str, Any]) -> Any:
    client = RegistryClient(registry_config({"schema.registry.url": url}))
    return client.call(RegistryRequest("prepare a test", method, path, body=body))


def test_the_compatibility_mode_of_a_subject_is_found(registry_url: str, registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, FIRST)
    another_client(registry_url, "PUT", ("config", subject), {"compatibility": "FORWARD"})
    assert registry.compatibility(subject) == "FORWARD"


def test_the_mode_of_all_holds_where_a_subject_has_none(registry: SchemaRegistry, subject: str) -> None:
    assert registry.default_compatibility() in ("BACKWARD", "NONE")
    assert registry.compatibility(subject) == registry.default_compatibility()


def test_an_incompatible_schema_is_refused_with_reasons(
    registry_url: str, registry: SchemaRegistry, subject: str, request: pytest.FixtureRequest
) -> None:
    skip_srfake(request, "it takes every schema for compatible")
    registry.register(subject, FIRST)
    another_client(registry_url, "PUT", ("config", subject), {"compatibility": "BACKWARD"})
    with pytest.raises(RegistryError) as error:
        registry.register(subject, INCOMPATIBLE)
    assert condition(error) == "INCOMPATIBLE"
    assert "name" in str(error.value)
    assert "Against its latest version 1: name is new" in str(error.value)
    assert registry.latest(subject).version == 1
    assert registry.register(subject, SECOND).version == 2
