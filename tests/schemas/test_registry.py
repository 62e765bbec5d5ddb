"""SchemaRegistry with the fake registry: refusals in words, registering, logins and what goes wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from spark_kafka_sink.schemas.registry import SchemaRegistry
from spark_kafka_sink.schemas.registry_errors import RegistryError
from tests.fakes.registry_config import registry_config
from tests.schemas.fake_registry import FakeRegistry, answers, send
from tests.schemas.registry_samples import FIRST, ID, INCOMPATIBLE, NAME, SECOND, condition, record


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def client(fake: FakeRegistry, **options: str) -> SchemaRegistry:
    settings = {key.replace("__", "."): value for key, value in options.items()}
    return SchemaRegistry(registry_config({"schema.registry.url": fake.url, **settings}))


# REGISTERING


def test_compatibility_is_asked_before_a_schema_is_registered(fake: FakeRegistry) -> None:
    client(fake).register("s", FIRST)
    assert [request.partition(" ")[2].partition("?")[0] for request in fake.requests] == [
        "/subjects/s",
        "/compatibility/subjects/s/versions",
        "/subjects/s/versions",
        "/subjects/s",
    ]


def test_a_refused_schema_has_the_registrys_reasons_and_the_difference(fake: FakeRegistry) -> None:
    fake.register("s", FIRST)
    with pytest.raises(RegistryError) as error:
        client(fake).register("s", INCOMPATIBLE)
    assert condition(error) == "INCOMPATIBLE"
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in str(error.value)
    assert "Against its latest version 1: name is new" in str(error.value)
    assert fake.texts("s") == [FIRST]


def test_without_registering_the_error_of_a_missing_schema_names_the_difference(fake: FakeRegistry) -> None:
    fake.register("s", FIRST)
    registry = client(fake, auto__register__schemas="false")
    assert registry.find_or_register("s", FIRST, "valueSchema").id == 1
    with pytest.raises(RegistryError, match=r"auto.register.schemas=false\. Against its latest version 1: name is new") as error:
        registry.find_or_register("s", SECOND, "valueSchema")
    assert condition(error) == "SCHEMA_NOT_FOUND"
    with pytest.raises(RegistryError, match="The subject does not exist"):
        registry.find_or_register("other", SECOND, "valueSchema")
    assert fake.texts("s") == [FIRST]


def test_the_difference_to_a_schema_of_to_avro_is_more_than_its_fields(fake: FakeRegistry) -> None:
    """to_avro writes null last in unions, and no defaults."""
    fake.register("s", record(ID, {"name": "name", "type": ["string", "null"]}))
    with pytest.raises(RegistryError, match="has the same fields, with other defaults, docs or order in unions"):
        client(fake, auto__register__schemas="false").find_or_register("s", SECOND, "valueSchema")
    assert client(fake).find_or_register("s", SECOND, "valueSchema").version == 2


def test_a_latest_version_that_is_no_avro_is_called_by_its_type(fake: FakeRegistry) -> None:
    """A Protobuf text has no JSON to compare, and was said to have "the same fields, with other defaults, docs or order"."""
    fake.register("s", "message A {}", schemaType="PROTOBUF")
    with pytest.raises(
        RegistryError, match=r"auto.register.schemas=false\. But its latest version 1 is PROTOBUF, not AVRO\. Register"
    ):
        client(fake, auto__register__schemas="false").find_or_register("s", FIRST, "valueSchema")


def test_a_version_that_the_registry_does_not_tell_is_left_out(fake: FakeRegistry) -> None:
    """Logs and errors had "s version None (id 1)" and "its latest version, None"."""
    fake.register("s", FIRST)

    def tells_no_version(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command != "GET":
            return False
        send(handler, 200, json.dumps({"id": 1, "schema": FIRST}).encode())
        return True

    with fake.fail_with(tells_no_version):
        assert client(fake).latest("s").label == "s id 1"
        with pytest.raises(RegistryError, match="Against its latest version: name is new"):
            client(fake, auto__register__schemas="false").find_or_register("s", SECOND, "valueSchema")


def test_a_user_who_may_not_ask_for_compatibility_may_still_register(fake: FakeRegistry) -> None:
    def no_compatibility(handler: BaseHTTPRequestHandler) -> bool:
        if "/compatibility/" not in handler.path:
            return False
        send(handler, 403, b'{"error_code": 40301, "message": "User is denied operation Compatibility"}')
        return True

    with fake.fail_with(no_compatibility):
        assert client(fake).register("s", FIRST).version == 1


def test_normalizing_is_asked_for(fake: FakeRegistry) -> None:
    client(fake, normalize__schemas="true").register("s", FIRST)
    assert all("normalize=true" in request for request in fake.requests if request.startswith("POST"))


def test_a_subject_that_is_read_only_is_an_error(fake: FakeRegistry) -> None:
    fake.set_mode("s", "READONLY")
    with pytest.raises(RegistryError, match="Subject s is in read-only mode") as error:
        client(fake).register("s", FIRST)
    assert condition(error) == "NOT_ALLOWED"


# RULES


def rule(mode: str | None, **more: object) -> dict[str, object]:
    return {"name": "encryptPII", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": mode, **more}


@pytest.mark.parametrize("kind", ["domainRules", "encodingRules"])
@pytest.mark.parametrize("mode", ["WRITE", "WRITEREAD", None, "SOMETIMES"])
def test_a_rule_for_writing_is_refused_by_its_name(fake: FakeRegistry, mode: str | None, kind: str) -> None:
    fake.register("s", FIRST, ruleSet={kind: [rule(mode)]})
    for schema in (client(fake).latest("s"), client(fake).by_id(1), client(fake).register("s", FIRST)):
        assert schema.write_rules == "encryptPII (TRANSFORM, ENCRYPT)"
        with pytest.raises(RegistryError, match="encryptPII") as error:
            schema.require_writable()
        assert condition(error) == "WRITE_RULE"
    with pytest.raises(RegistryError, match="encryptPII"):
        client(fake).find_or_register("s", FIRST, "valueSchema")


def test_rules_for_reading_and_switched_off_ones_do_not_matter(fake: FakeRegistry) -> None:
    rules = {"domainRules": [rule("READ"), rule("WRITE", disabled=True)], "migrationRules": [rule("UPGRADE")]}
    fake.register("s", FIRST, ruleSet=rules)
    client(fake).latest("s").require_writable()


@pytest.mark.parametrize("rules", [5, "WRITE", {"domainRules": 5}, {"domainRules": ["x"]}, {"encodingRules": {"a": 1}}])
def test_rules_that_cannot_be_read_may_be_for_writing(fake: FakeRegistry, rules: object) -> None:
    fake.register("s", FIRST, ruleSet=rules)
    with pytest.raises(RegistryError, match="has rules that apply to writing"):
        client(fake).latest("s").require_writable()


@pytest.mark.parametrize("rules", [None, {}, {"domainRules": None, "migrationRules": []}, {"domainRules": []}])
def test_a_schema_without_rules_is_written_with(fake: FakeRegistry, rules: object) -> None:
    fake.register("s", FIRST, ruleSet=rules)
    client(fake).latest("s").require_writable()


def test_references_of_schemas_that_are_not_read_are_not_followed(fake: FakeRegistry) -> None:
    """A frame for Protobuf asked for each import of the schema, and failed if the user might not read one of them."""
    fake.register("imported", "message B {}", schemaType="PROTOBUF")
    references = [{"name": "b.proto", "subject": "imported", "version": 1}]
    fake.register("s", 'import "b.proto"; message A {}', schemaType="PROTOBUF", references=references)
    fake.forbidden.add("imported")
    assert client(fake).latest("s").references == {}
    assert len(fake.requests) == 1


# CONTEXTS

CONTEXT = ":.staging:"


def test_an_id_is_asked_for_in_the_context_of_its_subject(fake: FakeRegistry) -> None:
    """Each context counts its ids itself. The id of a schema in `:.staging:` was asked for without the context, and was given the
    default context's schema. The context is asked for alone, as with a whole subject the schema would have to be that one's."""
    fake.register("s", FIRST)
    fake.register(f"{CONTEXT}other", SECOND)
    assert client(fake).by_id(1, f"{CONTEXT}s").text == SECOND
    assert client(fake).by_id(1, "s").text == client(fake).by_id(1).text == client(fake).by_id(1, ":.:s").text == FIRST
    with pytest.raises(RegistryError, match=r"cannot get schema 1 in context :.production: at .*not found") as error:
        client(fake).by_id(1, ":.production:s")
    assert condition(error) == "SCHEMA_NOT_FOUND"
    assert fake.requests[0] == "GET /schemas/ids/1?subject=%3A.staging%3A"


def test_references_are_in_the_context_of_what_refers_to_them_unless_they_name_one(fake: FakeRegistry) -> None:
    """A reference without a context was asked for in the default one: it was another schema, or none."""
    inner, middle = record(NAME, name="Inner"), record({"name": "inner", "type": "com.acme.Inner"}, name="Middle")
    outer = record({"name": "middle", "type": "com.acme.Middle"}, name="Outer")
    fake.register("inner", record(ID, name="Inner"))
    fake.register("middle", record(ID, name="Middle"))
    fake.register(":.shared:inner", inner)
    to_inner = {"name": "com.acme.Inner", "subject": "inner", "version": 1}
    fake.register(":.shared:middle", middle, references=[to_inner])
    to_middle = {"name": "com.acme.Middle", "subject": ":.shared:middle", "version": 1}
    fake.register(f"{CONTEXT}outer", outer, references=[to_middle])
    fake.register(":.shared:outer", outer, references=[to_middle | {"subject": "middle"}])
    registry = client(fake)
    for schema in (
        registry.latest(f"{CONTEXT}outer"),
        registry.latest(":.shared:outer"),
        registry.by_id(1, f"{CONTEXT}outer"),
        registry.by_id(3, ":.shared:"),
    ):
        assert schema.references == {"com.acme.Inner": inner, "com.acme.Middle": middle}


def test_a_subject_that_the_registry_finds_in_a_context_is_known_with_it(fake: FakeRegistry) -> None:
    """A registry looks for a subject without a context in all contexts. The id that it tells is of the context that it found, and
    was taken for one of the default context; so were the references."""
    inner, outer = record(ID, name="Inner"), record({"name": "inner", "type": "com.acme.Inner"}, name="Outer")
    fake.register("other", FIRST)
    fake.register(f"{CONTEXT}inner", inner)
    fake.register(f"{CONTEXT}s", outer, references=[{"name": "com.acme.Inner", "subject": "inner", "version": 1}])
    fake.register("inner", FIRST)
    schema = client(fake).latest("s")
    assert (schema.subject, schema.id, schema.references) == (f"{CONTEXT}s", 2, {"com.acme.Inner": inner})


@pytest.mark.parametrize("answered", [5, "", "other", ":.staging:other", ":.a:.b:s", f":.{'x' * 1_000}:s"])
def test_another_subject_than_the_one_that_was_asked_for_is_not_believed(fake: FakeRegistry, answered: object) -> None:
    with fake.fail_with(answers(200, json.dumps({"id": 1, "version": 1, "schema": FIRST, "subject": answered}).encode())):
        assert client(fake).latest("s").subject == "s"


# REFERENCES


def test_references_are_followed_to_the_end(fake: FakeRegistry) -> None:
    inner = record(ID, name="Inner")
    middle = record({"name": "inner", "type": "com.acme.Inner"}, name="Middle")
    outer = record({"name": "middle", "type": "com.acme.Middle"}, name="Outer")
    fake.register("inner", inner)
    fake.register("middle", middle, references=[{"name": "com.acme.Inner", "subject": "inner", "version": 1}])
    fake.register("outer", outer, references=[{"name": "com.acme.Middle", "subject": "middle", "version": 1}])
    references = client(fake).latest("outer").references
    assert {name: json.loads(text) for name, text in references.items()} == {
        "com.acme.Middle": json.loads(middle),
        "com.acme.Inner": json.loads(inner),
    }


def test_a_registry_that_gives_its_reasons_only_when_it_refuses_is_quoted(fake: FakeRegistry) -> None:
    """Apicurio's says that a schema is not compatible, and why only when somebody registers it."""
    fake.register("s", FIRST)

    def says_no(handler: BaseHTTPRequestHandler) -> bool:
        if "/compatibility/" not in handler.path:
            return False
        send(handler, 200, b'{"is_compatible": false}')
        return True

    with fake.fail_with(says_no), pytest.raises(RegistryError) as error:
        client(fake).register("s", INCOMPATIBLE)
    assert condition(error) == "INCOMPATIBLE"
    assert "Schema being registered is incompatible with an earlier schema" in str(error.value)
    assert "name is new" in str(error.value)


NO_SUCH_PATH = [(404, b"no such path"), (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'), (405, b"")]


@pytest.mark.parametrize("answer", NO_SUCH_PATH)
def test_a_registry_that_cannot_check_compatibility_is_written_to(fake: FakeRegistry, answer: tuple[int, bytes]) -> None:
    def has_no_such_request(handler: BaseHTTPRequestHandler) -> bool:
        if "/compatibility/" not in handler.path:
            return False
        send(handler, *answer)
        return True

    with fake.fail_with(has_no_such_request):
        assert client(fake).register("s", FIRST).version == 1


@pytest.mark.parametrize("answer", NO_SUCH_PATH)
def test_a_registry_that_compares_with_one_version_alone_is_asked_so(fake: FakeRegistry, answer: tuple[int, bytes]) -> None:
    """Redpanda's and Karapace's take a version in the path of the request."""
    fake.register("s", FIRST)

    def takes_one_version(handler: BaseHTTPRequestHandler) -> bool:
        if "/compatibility/" not in handler.path or "/versions/latest" in handler.path:
            return False
        send(handler, *answer)
        return True

    with fake.fail_with(takes_one_version), pytest.raises(RegistryError, match="READER_FIELD_MISSING_DEFAULT_VALUE"):
        client(fake).require_compatible("s", INCOMPATIBLE)


def test_compatibility_is_asked_without_registering(fake: FakeRegistry) -> None:
    fake.register("s", FIRST)
    registry = client(fake)
    registry.require_compatible("s", SECOND)
    registry.require_compatible("none", INCOMPATIBLE)
    with pytest.raises(RegistryError, match="READER_FIELD_MISSING_DEFAULT_VALUE"):
        registry.require_compatible("s", INCOMPATIBLE)
    assert fake.texts("s") == [FIRST]


def test_the_latest_schema_is_found_by_its_content_where_blanks_matter(fake: FakeRegistry) -> None:
    """Apicurio's registry compares texts. Without this, a schema that was registered with line breaks would be another one."""
    pretty = json.dumps(json.loads(FIRST), indent=2)
    fake.register("s", pretty)

    def knows_no_such_text(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command != "POST":
            return False
        send(handler, 404, b'{"error_code": 40403, "message": "Schema not found"}')
        return True

    with fake.fail_with(knows_no_such_text):
        schema = client(fake, auto__register__schemas="false").find_or_register("s", FIRST, "valueSchema")
    assert (schema.id, schema.version) == (1, 1)
