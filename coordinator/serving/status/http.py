"""The status page over HTTP, with the health and the metrics of the coordinator: reading only, for this machine."""

import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from coordinator.errors import RunError
from coordinator.serving.status.page import STYLE, Status, page
from protos.console.settings import is_loopback

log = logging.getLogger("conclave.coordinator")

SECONDS: Final = 10.0
"""Seconds that a caller has for its request, and to take the answer."""
MOST_CALLERS: Final = 32
HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
TEXT: Final = "text/plain; charset=utf-8"
Answer = tuple[HTTPStatus, str, bytes]


class StatusServer:
    """Serves the page at `listen`. A context manager, whose threads end with it.

    status: what to show now; healthy: whether the coordinator takes runs. public: whether it is known under any name.
    """

    def __init__(
        self,
        listen: str,
        status: Callable[[], Status],
        healthy: Callable[[], bool],
        registry: CollectorRegistry,
        *,
        public: bool = False,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._status = status
        self._healthy = healthy
        self._registry = registry
        self._public = public
        self.room = threading.BoundedSemaphore(MOST_CALLERS)
        bare = host.removeprefix("[").removesuffix("]")
        try:
            self._server = _Server((bare, int(port)), self, ":" in bare)
        except (OSError, OverflowError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise RunError(
                f"the status page cannot be served at {listen}: {why}. Name a free port of this machine in [status] "
                "listen.",
                code="C305",
            ) from None
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, host: str) -> Answer:
        """The answer to a request for a path. host: the name under which the caller knows this server."""
        if not (self._public or is_loopback(_name(host))):
            # Another site's page in a browser of this machine may reach loopback, but only under that site's name.
            return HTTPStatus.MISDIRECTED_REQUEST, TEXT, b"ask for this page as 127.0.0.1 or localhost.\n"
        match path.partition("?")[0]:
            case "/":
                return HTTPStatus.OK, "text/html; charset=utf-8", page(self._status()).encode()
            case "/style.css":
                return HTTPStatus.OK, "text/css; charset=utf-8", STYLE.encode()
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/health":
                if self._healthy():
                    return HTTPStatus.OK, TEXT, b"up\n"
                return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"about to end\n"
        return HTTPStatus.NOT_FOUND, TEXT, b"there is /, /health and /metrics.\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * MOST_CALLERS

    def __init__(self, address: tuple[str, int], status: StatusServer, six: bool) -> None:
        self.address_family = socket.AF_INET6 if six else socket.AF_INET
        self.status = status
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, unless too many callers are there."""
        if not self.status.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As the base does; the caller's place is free afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.status.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say no more than that it failed: a caller that hangs up is no error."""
        log.debug("a caller of the status page was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS
    server_version = "conclave"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer, and close."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """The same without the content."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        status, kind, content = self.server.status.answer(self.path, self.headers.get("Host") or "")
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(content))), *HEADERS):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: whoever may reach this page may ask for it."""


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
