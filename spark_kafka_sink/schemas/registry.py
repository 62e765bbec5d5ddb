"""A schema registry by Confluent's protocol: reads schemas by subject, version or id, and registers them.

SchemaRegistry blocks, and keeps no answers: KnownSchemas keeps them for the sink. registry_client.py sends the requests.
Laws: only `register`, which `find_or_register` may call, changes the registry. An answer is checked before it is used. More than
MAX_REFERENCES references are an error. A schema with rules that apply to writing names them in `write_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.format_options import MAX_SCHEMA_ID, parse_schema_json, schema_label
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import printable, printable_list
from spark_kafka_sink.schemas.differences import differences
from spark_kafka_sink.schemas.registry_client import RegistryClient, RegistryRequest
from spark_kafka_sink.schemas.registry_errors import (
    INCOMPATIBLE,
    INVALID_ANSWER,
    NOT_ALLOWED,
    NOT_FOUND,
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    WRITE_RULE,
    RegistryError,
)
from spark_kafka_sink.schemas.subjects import context_of, in_context_of

AVRO_TYPE = "AVRO"
MAX_REFERENCES = 200
MAX_REFERENCED_CHARACTERS = 16_000_000  # of all texts that a schema refers to
# The first checks against all versions that the mode names; some registries lack it. The second, of the latest version, all have.
_COMPATIBILITY_PATHS = (("versions",), ("versions", "latest"))
_MODES_NOT_FOR_WRITING = ("READ", "UPGRADE", "DOWNGRADE", "UPDOWN")  # a mode that is not known may be for writing


class RegisteredSchema(NamedTuple):
    """A schema as the registry has it. Plain data.

    `references`: the texts of all schemas that it refers to, directly or not, by their names in the references; empty unless it
    is Avro. `write_rules`: the names of the rules that apply to writing; None without any.
    """

    id: int
    version: int | None  # None if the registry does not tell it, as for a schema that is found by its id
    subject: str | None  # None for a schema that is found by its id
    schema_type: str
    text: str
    references: Mapping[str, str] = {}
    write_rules: str | None = None

    @property
    def label(self) -> str:
        """What errors and logs call the schema."""
        return schema_label(self.subject, self.id, self.version)

    def require_writable(self) -> None:
        """Raises RegistryError if a rule applies to writing: encryption, conditions and transforms are not carried out here."""
        if self.write_rules is not None:
            raise RegistryError(
                f"{self.label} has rules that apply to writing: {self.write_rules}. They are not carried out here, and rows"
                " are not written around them: write with a client that does, or remove the rules",
                condition=WRITE_RULE,
            )


class _Compatibility(NamedTuple):
    """Whether the registry would reject a schema, and its reasons. Not rejected if the registry lacks or forbids the check."""

    is_rejected: bool
    reasons: list[str]


_NOT_REJECTED = _Compatibility(is_rejected=False, reasons=[])


class SchemaRegistry:
    """Reads, checks and registers schemas. Any thread may call it. A call needs one request or more. A request blocks for
    schema.registry.default.api.timeout.ms at most; all requests for the references of a schema share that time.

    Raises:
        ConfigError: by the constructor: urllib3 is not installed, certificates cannot be read, or https_proxy is no URL.
        RegistryError: by each call: the registry cannot be reached, rejects the request, or has no such schema.
        AuthenticationError: by each call: there is no token to log in with.
    """

    def __init__(self, config: RegistryConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._client = RegistryClient(config, clock)

    def close(self) -> None:
        """End the connections. A later call opens new ones."""
        self._client.close()

    # READING

    def latest(self, subject: str) -> RegisteredSchema:
        return self._version_of_subject(subject, "latest")

    def version(self, subject: str, number: int) -> RegisteredSchema:
        """Version `number` of the subject. Raises RegistryError too if the answer is another version."""
        schema = self._version_of_subject(subject, str(number))
        if schema.version not in (None, number):
            action = f"get version {number} of subject {printable(subject)}"
            raise _answer_error(action, f"it is version {printable(schema.version)}")
        return schema

    def _version_of_subject(self, subject: str, version: str) -> RegisteredSchema:
        action = f"get version {version} of subject {printable(subject)}"
        request = RegistryRequest(action, "GET", ("subjects", subject, "versions", version))
        return self._read_schema(self._ask(request), subject, action)

    def by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        """The schema with this id, of any subject in the context of `subject`."""
        context = context_of(subject)
        action = f"get schema {schema_id}" + (f" in context {printable(context)}" if context else "")
        query = {"subject": context} if context else {}  # with a whole subject, the schema would have to be that one's
        body = self._ask(RegistryRequest(action, "GET", ("schemas", "ids", str(schema_id)), query))
        schema = self._read_schema({**body, "id": schema_id, "version": None, "subject": None}, context, action)
        return schema._replace(subject=None)

    def lookup(self, subject: str, text: str) -> RegisteredSchema | None:
        """The registered schema that is equal to `text`; None if the subject lacks it, or does not exist."""
        action = f"look up a schema in subject {printable(subject)}"
        request = RegistryRequest(action, "POST", ("subjects", subject), self._normalize_query(), {"schema": text})
        try:
            return self._read_schema(self._ask(request), subject, action)
        except RegistryError as error:
            if error.condition not in NOT_FOUND:
                raise
            is_subject_missing = error.condition == SUBJECT_NOT_FOUND
        return None if is_subject_missing else self._latest_if_same_json(subject, text)

    def _latest_if_same_json(self, subject: str, text: str) -> RegisteredSchema | None:
        """The latest version, if it is the same JSON. For registries that compare texts with their blanks, as Apicurio does
        unless normalize.schemas is set."""
        try:
            latest = self.latest(subject)
            return latest if parse_schema_json(latest.text) == parse_schema_json(text) else None
        except RegistryError as error:
            if error.condition not in NOT_FOUND and error.condition != NOT_ALLOWED:
                raise
        except (ValueError, RecursionError):  # the latest version is no JSON, so no Avro
            pass
        return None

    def compatibility(self, subject: str) -> str:
        """The compatibility mode that applies to the subject, such as BACKWARD."""
        action = f"get the compatibility mode of subject {printable(subject)}"
        try:
            return _parse_mode(self._ask(RegistryRequest(action, "GET", ("config", subject), {"defaultToGlobal": "true"})))
        except RegistryError as error:
            if error.condition not in NOT_FOUND:
                raise
        return self.default_compatibility()  # Apicurio answers that the subject does not exist

    def default_compatibility(self) -> str:
        """The compatibility mode of subjects that have none of their own."""
        return _parse_mode(self._ask(RegistryRequest("get the compatibility mode", "GET", ("config",))))

    # WRITING

    def find_or_register(self, subject: str, text: str, schema_key: str) -> RegisteredSchema:
        """The registered schema that is equal to `text`. With auto.register.schemas=true, registers `text` for good if it is new.

        Args:
            schema_key: the option that names a schema instead, for the error.

        Raises:
            RegistryError: the schema is not compatible or not registered; the text says how it differs from the latest version.
                Or the schema has rules that apply to writing.
        """
        schema = self.register(subject, text) if self._config.auto_register_schemas else self.lookup(subject, text)
        if schema is None:
            raise self._not_registered(subject, text, schema_key)
        schema.require_writable()
        return schema

    def register(self, subject: str, text: str) -> RegisteredSchema:
        """Register `text`, unless it is registered. First checks compatibility, as the answer to a check lists reasons.

        Raises:
            RegistryError: `text` is not compatible with what is registered, or may not be registered.
        """
        schema = self.lookup(subject, text)
        if schema is not None:
            return schema
        reasons = self._compatibility_of(subject, text).reasons
        if not reasons:  # also if it is rejected without reasons: the error of this request may have them
            try:
                return self._post_schema(subject, text)
            except RegistryError as error:
                if error.condition != INCOMPATIBLE:
                    raise
                reasons = [error.message]
        raise self._incompatible(subject, text, reasons)

    def _post_schema(self, subject: str, text: str) -> RegisteredSchema:
        """Not every registry's answer has the version, so the schema is looked up again."""
        action = f"register a schema in subject {printable(subject)}"
        request = RegistryRequest(action, "POST", ("subjects", subject, "versions"), self._normalize_query(), {"schema": text})
        schema_id = _parse_schema_id(self._ask(request).get("id"), action)
        return self.lookup(subject, text) or RegisteredSchema(
            schema_id, version=None, subject=subject, schema_type=AVRO_TYPE, text=text
        )

    def require_compatible(self, subject: str, text: str) -> None:
        """Raise RegistryError if the registry would reject `text`. Passes if the registry lacks or forbids the check."""
        compatibility = self._compatibility_of(subject, text)
        if compatibility.is_rejected:
            raise self._incompatible(subject, text, compatibility.reasons or ["the registry gives no reasons"])

    def _compatibility_of(self, subject: str, text: str) -> _Compatibility:
        """Ask whether the registry would reject `text`, by the first of the two checks that it has."""
        for path in _COMPATIBILITY_PATHS:
            try:
                return self._compatibility_at(path, subject, text)
            except RegistryError as error:
                if error.condition in NOT_FOUND or error.condition == NOT_ALLOWED:
                    break
                if error.condition != INVALID_ANSWER:
                    raise
        return _NOT_REJECTED

    def _compatibility_at(self, path: tuple[str, ...], subject: str, text: str) -> _Compatibility:
        action = f"check compatibility in subject {printable(subject)}"
        path, query = ("compatibility", "subjects", subject, *path), {"verbose": "true"} | self._normalize_query()
        body = self._ask(RegistryRequest(action, "POST", path, query, {"schema": text}))
        if body.get("is_compatible") is not False:
            return _NOT_REJECTED
        messages = body.get("messages")
        reasons = [each for each in messages if isinstance(each, str)] if isinstance(messages, list) else []
        return _Compatibility(is_rejected=True, reasons=reasons)

    def _normalize_query(self) -> dict[str, str]:
        return {"normalize": "true"} if self._config.normalize_schemas else {}

    # REJECTIONS IN WORDS

    def _incompatible(self, subject: str, text: str, reasons: list[str]) -> RegistryError:
        return RegistryError(
            f"subject {printable(subject)} rejects the schema as incompatible: {printable_list(reasons, 10)}."
            f"{self._differences(subject, text)} Change the columns, or write to another subject or topic",
            condition=INCOMPATIBLE,
        )

    def _not_registered(self, subject: str, text: str, schema_key: str) -> RegistryError:
        return RegistryError(
            f"subject {printable(subject)} does not have the schema, and auto.register.schemas=false."
            f"{self._differences(subject, text)} Register it, change the columns, or write {schema_key}=latest",
            condition=SCHEMA_NOT_FOUND,
        )

    def _differences(self, subject: str, text: str) -> str:
        try:
            latest = self.latest(subject)
        except RegistryError as error:
            return " The subject does not exist." if error.condition == SUBJECT_NOT_FOUND else ""
        name = "its latest version" if latest.version is None else f"its latest version {latest.version}"
        if latest.schema_type != AVRO_TYPE:
            return f" But {name} is {printable(latest.schema_type)}, not {AVRO_TYPE}."
        sentences = differences(text, latest.text)
        if not sentences:
            return f" But {name} has the same fields, with other defaults, docs or order in unions."
        return f" Against {name}: {printable_list(sentences, 10)}."

    # ANSWERS

    def _ask(self, request: RegistryRequest, deadline_ms: int | None = None) -> dict[str, Any]:
        body = self._client.call(request, deadline_ms)
        if not isinstance(body, dict):
            raise _answer_error(request.action, f"a JSON object is expected, not {type(body).__name__}")
        return body

    def _read_schema(self, body: Mapping[str, Any], wanted_subject: str, action: str) -> RegisteredSchema:
        text, schema_type = body.get("schema"), body.get("schemaType") or AVRO_TYPE
        if not isinstance(text, str) or not isinstance(schema_type, str) or not _is_unicode(text):
            raise _answer_error(action, "there is no schema in it")
        subject = _parse_subject(body.get("subject"), wanted_subject)
        return RegisteredSchema(
            _parse_schema_id(body.get("id"), action),
            _parse_version(body.get("version")),
            subject,
            schema_type,
            text,
            self._reference_texts(body.get("references"), subject, action) if schema_type == AVRO_TYPE else {},
            _parse_write_rules(body.get("ruleSet")),
        )

    def _reference_texts(self, references: object, referring_subject: str, action: str) -> dict[str, str]:
        """The texts of all schemas that are referred to, directly or not. Each version of a subject is asked for once."""
        texts: dict[str, str] = {}
        deadline_ms = self._client.deadline_ms()
        open_references = _read_references(references, referring_subject, action)
        asked_versions = set[tuple[str, int]]()
        while open_references:
            name, subject, version = open_references.pop()
            if (subject, version) in asked_versions:
                continue
            asked_versions.add((subject, version))
            if len(asked_versions) > MAX_REFERENCES:
                raise _answer_error(action, f"it refers to more than {MAX_REFERENCES} other schemas")
            path = ("subjects", subject, "versions", str(version))
            body = self._ask(
                RegistryRequest(f"{action}: its reference {printable(name)}", "GET", path, {"deleted": "true"}), deadline_ms
            )
            if not isinstance(body.get("schema"), str) or not _is_unicode(body["schema"]):
                raise _answer_error(action, f"its reference {printable(name)} has no schema")
            texts[name] = body["schema"]
            if sum(map(len, texts.values())) > MAX_REFERENCED_CHARACTERS:
                raise _answer_error(action, f"it refers to schemas of more than {MAX_REFERENCED_CHARACTERS:,} characters")
            open_references += _read_references(body.get("references"), subject, action)
        return texts


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _read_references(references: object, referring_subject: str, action: str) -> list[tuple[str, str, int]]:
    """The name, subject and version of each reference, with the subject's context."""
    if not isinstance(references, list):
        return []
    if len(references) > MAX_REFERENCES:
        raise _answer_error(action, f"it refers to more than {MAX_REFERENCES} other schemas")
    with suppress(TypeError, KeyError, ValueError, OverflowError):
        triples = [(str(each["name"]), str(each["subject"]), int(each["version"])) for each in references]
        if all(_is_unicode(name + subject) for name, subject, _ in triples):
            return [(name, in_context_of(referring_subject, subject), version) for name, subject, version in triples]
    raise _answer_error(action, "its references cannot be read")


def _parse_write_rules(rule_set: object) -> str | None:
    """The names of the rules that apply to writing; None without any. A rule that cannot be read counts as one."""
    if rule_set is None:
        return None
    lists = [rule_set.get(kind) or [] for kind in ("domainRules", "encodingRules")] if isinstance(rule_set, dict) else [rule_set]
    rules = [rule for each in lists for rule in (each if isinstance(each, list) else [each])]
    names = [_rule_in_words(rule) for rule in rules if not isinstance(rule, dict) or _applies_to_writing(rule)]
    return printable_list(names) if names else None


def _applies_to_writing(rule: Mapping[str, Any]) -> bool:
    return rule.get("mode") not in _MODES_NOT_FOR_WRITING and rule.get("disabled") is not True


def _rule_in_words(rule: object) -> str:
    if not isinstance(rule, dict):
        return "a rule that cannot be read"
    return f"{rule.get('name')} ({rule.get('kind')}, {rule.get('type')})"


def _parse_subject(value: object, wanted_subject: str) -> str:
    """The subject of the answer, if it is the one that was asked for, in a context: a registry looks for a subject without a
    context in all of them."""
    is_with_context = isinstance(value, str) and context_of(value) + wanted_subject == value
    return str(value) if is_with_context else wanted_subject


def _parse_mode(body: Mapping[str, Any]) -> str:
    return printable(body.get("compatibilityLevel") or body.get("compatibility") or "unknown")


def _parse_schema_id(value: object, action: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SCHEMA_ID:
        return value
    raise _answer_error(action, f"{printable(value)} is not the id of a schema")


def _parse_version(value: object) -> int | None:
    """The version; None if there is none, as an answer need not have one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _answer_error(action: str, reason: str) -> RegistryError:
    return RegistryError(f"cannot {action}: it is not an answer of a schema registry: {reason}", condition=INVALID_ANSWER)
