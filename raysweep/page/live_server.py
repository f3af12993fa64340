"""Serves the report while a sweep runs: one page, which asks every other second whether there is something new."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, gaierror
from types import TracebackType
from typing import Any

from raysweep.errors import ConfigError

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
VERSION_PATH = "/version"


def parse_address(text: str) -> tuple[str, int]:
    """`[HOST:]PORT` as host and port; the loopback address where no host is given, and port 0 for any free one.

    Raises:
        ConfigError: when it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        rule = "is [HOST:]PORT with a port of at most 65535"
        raise ConfigError(key="--serve", value=text, rule=rule, nearest="8080")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host's name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class LiveServer:
    """A server in a thread of its own, from `with` to its end. It gives the page and its version, and nothing else.

    Args:
        page: gives the page as it is now, told its version.
        version: gives a short text that changes when the page would.
        host: where to listen. On loopback only requests that name it so are answered, because a foreign web page can
            make a browser ask under a name of its own (DNS rebinding).
        port: 0 for any free one.
    """

    def __init__(self, *, page: Callable[[str], str], version: Callable[[], str], host: str, port: int) -> None:
        pages = _Pages(page, version)
        allowed = LOOPBACK_NAMES if is_loopback(host) else ()
        try:
            self._server = _Server(host, port, handler_for(pages, allowed_hosts=allowed))
        except (OSError, gaierror) as error:
            value, rule = f"{host}:{port}", f"cannot be listened on: {error.strerror or error}"
            raise ConfigError(key="--serve", value=value, rule=rule) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="raysweep-report", daemon=True)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), handler)


class _Pages:
    """The page, made again only where its version has changed: a browser that looks on costs the sweep little."""

    def __init__(self, page: Callable[[str], str], version: Callable[[], str]) -> None:
        self._page = page
        self.version = version
        self._lock = threading.Lock()
        self._made_of = ""
        self._made = ""

    def page(self) -> str:
        with self._lock:
            version = self.version()
            if not self._made or version != self._made_of:
                self._made, self._made_of = self._page(version), version
            return self._made


def handler_for(pages: Any, *, allowed_hosts: tuple[str, ...]) -> type[BaseHTTPRequestHandler]:
    """The handler of requests; any host is allowed where `allowed_hosts` is empty."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "raysweep", ""

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rsplit(":", 1)[0] if allowed_hosts else ""
            if allowed_hosts and name not in allowed_hosts:
                self._send(HTTPStatus.FORBIDDEN, "this page is for this machine only\n")
            elif self.path == "/":
                self._send(HTTPStatus.OK, pages.page(), kind="text/html")
            elif self.path == VERSION_PATH:
                self._send(HTTPStatus.OK, pages.version())
            else:
                self._send(HTTPStatus.NOT_FOUND, "there is / and nothing else\n")

        def _send(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """A sweep's terminal is not for requests."""

    return Handler
