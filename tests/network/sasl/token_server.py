"""A server of OAuth tokens, which answers as a test says."""

from __future__ import annotations

import http.server
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs


class TokenServer(http.server.ThreadingHTTPServer):
    """Answers with what a test has put into `answers`: (status, body, headers), or a function that does as it likes."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, dict[str, str]] | Callable[[Any], None]] = []
        self.requests: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/token"


class TokenHandler(http.server.BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((dict(self.headers), parse_qs(body)))
        answer = self.server.answers.pop(0)
        if callable(answer):
            answer(self)
            return
        status, content, headers = answer
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Quiet."""
