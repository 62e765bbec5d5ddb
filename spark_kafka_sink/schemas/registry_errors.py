"""What a schema registry's rejections mean, and what to do about each: RegistryError.

An answer is plain data here; registry_client.py gets it. Texts of a registry are shown on one line, escaped and shortened.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_kafka_sink.errors import KafkaError, printable

UNREACHABLE = "KAFKA_SCHEMA_REGISTRY_UNREACHABLE"
LOGIN_FAILED = "KAFKA_SCHEMA_REGISTRY_LOGIN_FAILED"
NOT_ALLOWED = "KAFKA_SCHEMA_REGISTRY_NOT_ALLOWED"
INVALID_ANSWER = "KAFKA_SCHEMA_REGISTRY_INVALID_ANSWER"
SUBJECT_NOT_FOUND = "KAFKA_SCHEMA_REGISTRY_SUBJECT_NOT_FOUND"
VERSION_NOT_FOUND = "KAFKA_SCHEMA_REGISTRY_VERSION_NOT_FOUND"
SCHEMA_NOT_FOUND = "KAFKA_SCHEMA_REGISTRY_SCHEMA_NOT_FOUND"
INCOMPATIBLE = "KAFKA_SCHEMA_REGISTRY_INCOMPATIBLE"
INVALID_SCHEMA = "KAFKA_SCHEMA_REGISTRY_INVALID_SCHEMA"
WRITE_RULE = "KAFKA_SCHEMA_REGISTRY_WRITE_RULE"

NOT_FOUND = frozenset({SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND})
ABOUT_SCHEMAS = NOT_FOUND | {INCOMPATIBLE, INVALID_SCHEMA, WRITE_RULE}  # the registry works: the next request may succeed


class RegistryError(KafkaError):
    """The schema registry rejected a request, or could not be asked. `error_code`: the registry's own, if it gave one."""

    condition = "KAFKA_SCHEMA_REGISTRY"

    def __init__(self, message: str, *, condition: str | None = None, error_code: int | None = None) -> None:
        super().__init__(message, condition=condition)
        self.error_code = error_code


class RegistryAnswer(NamedTuple):
    """An answer over HTTP. `body`: the JSON in it; NO_JSON if it holds none."""

    url: str  # of the address, without a login
    status: int
    body: Any
    content_type: str


NO_JSON = object()

# By the code in the body of an answer.
_CONDITION_BY_CODE: dict[int, str] = {
    404: INVALID_ANSWER,  # of the HTTP server itself: there is no such path
    405: INVALID_ANSWER,
    40401: SUBJECT_NOT_FOUND,
    40402: VERSION_NOT_FOUND,
    40403: SCHEMA_NOT_FOUND,
    409: INCOMPATIBLE,
    40901: INCOMPATIBLE,
    42201: INVALID_SCHEMA,
    42205: NOT_ALLOWED,
}
_CONDITION_BY_STATUS: dict[int, str] = {401: LOGIN_FAILED, 403: NOT_ALLOWED, 409: INCOMPATIBLE}
_REMEDIES: dict[str, str] = {
    LOGIN_FAILED: "; check basic.auth.user.info, or bearer.auth.*",
    NOT_ALLOWED: "; the user needs the right to do this there, or another user is needed",
    INVALID_ANSWER: "; is schema.registry.url the address of a schema registry, with its path, such as /apis/ccompat/v7?",
}


def rejection_error(answer: RegistryAnswer, action: str) -> RegistryError:
    """The error for an answer that is no success. `action`: what was asked, in words that follow "cannot"."""
    code, message = _code_and_message(answer)
    condition = _CONDITION_BY_CODE.get(code or 0) or _CONDITION_BY_STATUS.get(answer.status)
    if condition is None and (code is None or answer.status < 400):
        condition = INVALID_ANSWER
    remedy = _REMEDIES.get(condition or "", "")
    message = message.removesuffix(".") if remedy else message
    answer_in_words = f"HTTP status {answer.status}" + (f", {message}" if message else "") + _kind_of_page(answer)
    return RegistryError(f"cannot {action} at {answer.url}: {answer_in_words}{remedy}", condition=condition, error_code=code)


def unreadable_error(answer: RegistryAnswer, action: str) -> RegistryError:
    """The error for an answer with a status of success, but without JSON."""
    answer_in_words = f"it is not an answer of a schema registry{_kind_of_page(answer)}{_REMEDIES[INVALID_ANSWER]}"
    return RegistryError(f"cannot {action} at {answer.url}: {answer_in_words}", condition=INVALID_ANSWER)


def _code_and_message(answer: RegistryAnswer) -> tuple[int | None, str]:
    body = answer.body
    if not isinstance(body, dict):
        return None, ""
    code, message = body.get("error_code"), body.get("message")
    return (code if isinstance(code, int) else None), (printable(message, 2_000) if isinstance(message, str) else "")


def _kind_of_page(answer: RegistryAnswer) -> str:
    return f", with {printable(answer.content_type) or 'nothing'} in place of JSON" if answer.body is NO_JSON else ""
