"""A small HTTP server for fakes that speak a service's own interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, Any]
"""Status, and what is sent: text as it is, the rest as JSON."""


class FakeService:
    """Answers requests on a port of its own until it is closed; `answer` is what a service is."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        """Method and path of each, in order."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                service.requests.append((self.command, parts.path))
                status, content = service.answer(
                    self.command, parts.path, parse_qs(parts.query), body, dict(self.headers)
                )
                encoded = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    answer: Callable[..., Answer]

    @property
    def address(self) -> str:
        """http://127.0.0.1:port."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
