"""A schema registry in this process, over HTTP, with Confluent's answers. test_registry_contract.py holds it to real ones, but
not its contexts, which those lack: each has ids of its own, and a subject without a context is looked for in all of them.

    with FakeRegistry() as registry:
        registry.register("orders-value", text)          # as another client would
        SchemaRegistry(registry_config({"schema.registry.url": registry.url}))

`requests` lists what was asked, as "GET /subjects/orders-value/versions/latest". `fail_with` makes each request, or the next
ones, go wrong in one of the ways of Fault.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.schemas.avro_compatibility import InvalidAvroSchemaError, parse, violations

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Version:
    id: int
    body: dict[str, Any]  # schema, schemaType, references, ruleSet: as they were registered
    is_deleted: bool = False


@dataclass
class Subject:
    versions: list[Version] = field(default_factory=list)
    compatibility: str | None = None
    mode: str = "READWRITE"


Fault = Callable[[BaseHTTPRequestHandler], bool]  # answers in its own way and returns True, or lets the registry answer


class FakeRegistry:
    """Starts with `with`, on a free port. One lock guards all that it holds.

    Args:
        compatibility: of subjects without a level of their own.
        login: user:password that each request needs; None: none.
        token: a bearer token that each request needs; None: none.
        tls: serves https with this context.
        port: 0: a free one.
    """

    def __init__(
        self,
        *,
        compatibility: str = "BACKWARD",
        login: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.compatibility = compatibility
        self.login = login
        self.token = token
        self.forbidden: set[str] = set()  # subjects that the user may not use
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._subjects: dict[str, Subject] = {}
        self._ids: dict[str, dict[str, int]] = {}  # by the context, then by the canonical text
        self._faults: list[Fault] = []
        self._connections: list[socket.socket] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        host = "localhost" if self._scheme == "https" else "127.0.0.1"
        return f"{self._scheme}://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> FakeRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """From now on, connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def started_again(self) -> Iterator[FakeRegistry]:
        """After `stop`: one at the same address, with the same schemas. It counts its own requests."""
        with FakeRegistry(compatibility=self.compatibility, port=self._server.server_address[1]) as again:
            again._subjects, again._ids = self._subjects, self._ids
            yield again

    # WHAT TESTS DO AS ANOTHER CLIENT

    def register(self, subject: str, text: str, **more: Any) -> int:
        """Returns the id. `more`: schemaType, references, ruleSet. Raises Refusal."""
        with self._lock:
            return self._register(subject, {"schema": text, **more})["id"]

    def set_compatibility(self, subject: str, level: str) -> None:
        with self._lock:
            self._subjects.setdefault(subject, Subject()).compatibility = level

    def set_mode(self, subject: str, mode: str) -> None:
        """READWRITE or READONLY."""
        with self._lock:
            self._subjects.setdefault(subject, Subject()).mode = mode

    def texts(self, subject: str) -> list[str]:
        with self._lock:
            return [version.body["schema"] for version in self._subjects.get(subject, Subject()).versions]

    @contextlib.contextmanager
    def fail_with(self, fault: Fault, times: int = 10**6) -> Iterator[None]:
        """The next `times` requests meet `fault`."""
        faults = [fault] * min(times, 1_000)
        self._faults = faults
        try:
            yield
        finally:
            self._faults = []

    # REQUESTS

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                registry._connections.append(self.connection)

            def log_message(self, *_: object) -> None:
                return None

            def do_GET(self) -> None:
                registry._serve(self)

            do_POST = do_PUT = do_DELETE = do_GET

        return Handler

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.requests.append(f"{handler.command} {handler.path}")
        self.headers.append(dict(handler.headers))
        if self._faults and self._faults.pop(0)(handler):
            return
        try:
            answer, status = self._answer(handler, json.loads(content) if content else {}), 200
        except Refusal as refusal:
            answer, status = {"error_code": refusal.code, "message": str(refusal)}, refusal.status
        send(handler, status, json.dumps(answer).encode())

    def _answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        self._check_login(handler.headers.get("Authorization", ""))
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        for method, pattern, answer in self._routes():
            match = re.fullmatch(pattern, url.path)
            if method == handler.command and match:
                with self._lock:
                    return answer(*map(unquote, match.groups()), body=body, query=query)
        raise Refusal(404, 404, "HTTP 404 Not Found")

    def _check_login(self, authorization: str) -> None:
        if self.login is not None:
            expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        elif self.token is not None:
            expected = f"Bearer {self.token}"
        else:
            return
        if authorization != expected:
            raise Refusal(401, 40101 if authorization else 401, "User cannot access the resource.")

    def _routes(self) -> tuple[tuple[str, str, Callable[..., Any]], ...]:
        return (
            ("GET", "/subjects", lambda **_: sorted(self._subjects)),
            ("GET", "/subjects/([^/]+)/versions", self._versions),
            ("GET", "/subjects/([^/]+)/versions/([^/]+)", self._version),
            ("POST", "/subjects/([^/]+)/versions", lambda subject, body, **_: self._register(subject, body)),
            ("POST", "/subjects/([^/]+)", self._look_up),
            ("GET", "/schemas/ids/([0-9]+)", self._by_id),
            ("POST", "/compatibility/subjects/([^/]+)/versions(?:/latest)?", self._check_compatibility),
            ("GET", "/config/([^/]+)", self._config),
            ("GET", "/config", lambda **_: {"compatibilityLevel": self.compatibility}),
            ("PUT", "/config/([^/]+)", self._put_config),
        )

    def _subject(self, name: str) -> tuple[str, Subject]:
        """The subject, with the context in which it is."""
        if name in self.forbidden:
            raise Refusal(403, 40301, f"User is denied operation on Subject: {name}")
        names = [name] if context_of(name) else [name, *(context + name for context in self._ids)]
        for each in names:
            subject = self._subjects.get(each)
            if subject is not None and subject.versions:
                return each, subject
        raise Refusal(404, 40401, f"Subject '{name}' not found.")

    def _versions(self, name: str, **_: Any) -> list[int]:
        return [number for number, version in enumerate(self._subject(name)[1].versions, 1) if not version.is_deleted]

    def _version(self, name: str, number: str, **_: Any) -> dict[str, Any]:
        name, subject = self._subject(name)
        if number != "latest" and not number.isdecimal():
            raise Refusal(422, 42202, f"The specified version '{number}' is not a valid version id.")
        version_number = len(subject.versions) if number == "latest" else int(number)
        if not 1 <= version_number <= len(subject.versions):
            raise Refusal(404, 40402, f"Version {number} not found.")
        return self._described(name, version_number)

    def _described(self, name: str, number: int) -> dict[str, Any]:
        version = self._subjects[name].versions[number - 1]
        return {"subject": name, "version": number, "id": version.id, **version.body}

    def _by_id(self, schema_id: str, query: dict[str, str], **_: Any) -> dict[str, Any]:
        """Looks into one context. If the query names a whole subject, the schema must be of that subject."""
        wanted_name = query.get("subject", "")
        is_context = wanted_name == context_of(wanted_name)
        for name, subject in self._subjects.items():
            is_wanted = wanted_name == (context_of(name) if is_context else name)
            for version in subject.versions:
                if is_wanted and version.id == int(schema_id):
                    return dict(version.body)
        raise Refusal(404, 40403, f"Schema {schema_id} not found")

    def _look_up(self, name: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        (name, subject), canonical = self._subject(name), self._canonical(name, body)
        for number, version in enumerate(subject.versions, 1):
            if self._canonical(name, version.body) == canonical:
                return self._described(name, number)
        raise Refusal(404, 40403, "Schema not found")

    def _register(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        canonical = self._canonical(name, body)
        if name in self.forbidden:
            raise Refusal(403, 40301, f"User is denied operation Write on Subject: {name}")
        subject = self._subjects.setdefault(name, Subject())
        if subject.mode != "READWRITE":
            raise Refusal(422, 42205, f"Subject {name} is in read-only mode")
        for number, version in enumerate(subject.versions, 1):
            if self._canonical(name, version.body) == canonical:
                return self._described(name, number)
        wrong = self._violations(name, body)
        if wrong:
            raise Refusal(
                409, 409, f"Schema being registered is incompatible with an earlier schema for subject {name!r}: {wrong}"
            )
        stored_body = {key: body[key] for key in ("schema", "schemaType", "references", "ruleSet") if body.get(key)}
        ids = self._ids.setdefault(context_of(name), {})
        subject.versions.append(Version(ids.setdefault(canonical, len(ids) + 1), stored_body))
        return {"id": subject.versions[-1].id}

    def _check_compatibility(self, name: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self._canonical(name, body)
        if name in self.forbidden:
            raise Refusal(403, 40301, f"User is denied operation on Subject: {name}")
        wrong = self._violations(name, body)
        return {"is_compatible": not wrong} | ({"messages": wrong} if query.get("verbose") == "true" else {})

    def _violations(self, name: str, body: dict[str, Any]) -> list[str]:
        subject = self._subjects.get(name, Subject())
        if body.get("schemaType", "AVRO") != "AVRO":
            return []
        return violations(
            subject.compatibility or self.compatibility,
            self._parsed(name, body),
            [self._parsed(name, each.body) for each in subject.versions],
        )

    def _config(self, name: str, query: dict[str, str], **_: Any) -> dict[str, Any]:
        level = self._subjects.get(name, Subject()).compatibility
        if level is None and query.get("defaultToGlobal") != "true":
            raise Refusal(404, 40408, f"Subject '{name}' does not have subject-level compatibility configured")
        return {"compatibilityLevel": level or self.compatibility}

    def _put_config(self, name: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self._subjects.setdefault(name, Subject()).compatibility = body["compatibility"]
        return body

    def _canonical(self, name: str, body: dict[str, Any]) -> str:
        """Schemas are equal if their JSON is, and what they refer to."""
        if body.get("schemaType", "AVRO") != "AVRO":
            return json.dumps([body["schema"], body.get("schemaType")])
        self._parsed(name, body)
        return json.dumps([json.loads(body["schema"]), body.get("references") or []])

    def _parsed(self, name: str, body: dict[str, Any]) -> Any:
        try:
            return parse(body.get("schema") or "", self._references(name, body))
        except (InvalidAvroSchemaError, KeyError) as error:
            raise Refusal(422, 42201, f"Invalid schema {body.get('schema')}, details: {error}") from error

    def _references(self, name: str, body: dict[str, Any]) -> dict[str, str]:
        """The texts of a subject's references, which are in its context unless they name another."""
        texts: dict[str, str] = {}
        for each in body.get("references") or []:
            subject = each["subject"] if context_of(each["subject"]) else context_of(name) + each["subject"]
            inner = self._version(subject, str(each["version"]))
            texts |= self._references(subject, inner) | {each["name"]: inner["schema"]}
        return texts


def context_of(name: str) -> str:
    """`:.context:` before a subject, or nothing."""
    match = re.match(r":\.[^:]+:", name)
    return match[0] if match else ""


# FAULTS


def send(handler: BaseHTTPRequestHandler, status: int, content: bytes, content_type: str = MEDIA_TYPE, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(content)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


def answers(status: int, content: bytes, content_type: str = MEDIA_TYPE, **headers: str) -> Fault:
    """A fault: always this answer."""

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, status, content, content_type, **headers)
        return True

    return fault


def hangs_up(handler: BaseHTTPRequestHandler) -> bool:
    """A fault: the connection is closed without an answer."""
    handler.close_connection = True
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)
    return True


def stops_halfway(handler: BaseHTTPRequestHandler) -> bool:
    """A fault: half of an answer, then the end of the connection."""
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"id": 1, "sch')
    return hangs_up(handler)
