"""The HTTP port for monitoring: `/metrics` for Prometheus, `/healthz` for supervisors.

These show no secrets and change nothing, so they have no password. Bind the port to loopback, or to
a network that only monitoring can reach. With `statusPageEnable`, it also has pages for people
(`status`), which may need an account. Every other path answers 404.

Each connection has a thread, one of a few places, and little time to send a small request. When all
places are taken, the oldest connection that waits for its client is closed. Clients that connect
and then neither send nor read anything therefore cannot block a probe.
"""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.server.metrics import Stats, new_registry
from rmqstore_spark.server.status.asking import HEADERS
from rmqstore_spark.server.stores.sidecar import READ_ONLY

if TYPE_CHECKING:
    from rmqstore_spark.server.status.site import StatusSite

HEALTHY: Final = "RUNNING"
"""The only state in which the store accepts messages."""

_SLAVE: Final = "SLAVE"
_STOPPED: Final = "STOPPED"
_MOST_CONNECTIONS: Final = 32
_MOST_SCRAPES: Final = 4
"""Concurrent scrapes. With many queues, each takes long."""
_HEAD_SECONDS: Final = 2.0
_HEAD_BYTES: Final = 8 << 10
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_ANSWER_SECONDS: Final = 10.0
_GIVE_WAY_SECONDS: Final = 1.0
_PAGES: Final = "/status"
_NO_FRAME: Final = "frame-ancestors 'none'"
_SAFE: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; " + _NO_FRAME,
    ),
)
"""The headers of all answers: no script, no frame, nothing from elsewhere, no copy is kept."""

_log = logging.getLogger(__name__)


class Monitoring:
    """Serves metrics and health in a separate thread until it is closed.

    Args:
        stats: returns the store's figures; called for each request, from other threads.
        host: address to bind.
        port: port to bind; 0 for any free one.
        site: has the pages for people; None without any. It is not closed here.

    Raises:
        ServiceError: the address cannot be bound.
    """

    def __init__(self, stats: Stats, host: str, port: int, site: StatusSite | None = None) -> None:
        try:
            self._server = _Server((host, port), stats, new_registry(stats), site)
        except OSError as error:
            raise ServiceError(
                f"The store process cannot serve metrics on {host}:{port}: "
                f"{error.strerror or error}. Set metricsPromExporterPort to a free port, to 0 "
                "for any, or to -1 for none."
            ) from error
        if not ipaddress.ip_address(host).is_loopback:
            _log.warning(
                "Metrics on %s have no password and no TLS: anyone who reaches them sees the "
                "names of all topics, how many messages they hold, and the state of the store. "
                "Restrict that address to monitoring, or set metricsPromExporterHost=127.0.0.1.",
                self.address,
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="monitoring", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """The address that it listens on, as `host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Doing(Enum):
    """What a connection's thread is doing. In the first two states it can be closed for another."""

    READING = "reading the request"
    WRITING = "writing the answer"
    WORKING = "making the answer"


class _Places:
    """The places of concurrent connections. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._doing: dict[socket.socket, _Doing] = {}  # in order of arrival

    def take(self, connection: socket.socket) -> bool:
        """Take a place, closing a waiting connection if none is free; return whether it worked."""
        with self._changed:
            if not self._is_free():
                oldest = self._oldest_idle()
                if oldest is None:
                    return False
                with suppress(OSError):  # it is closed already
                    oldest.shutdown(socket.SHUT_RDWR)
                if not self._changed.wait_for(self._is_free, _GIVE_WAY_SECONDS):
                    return False
            self._doing[connection] = _Doing.READING
            return True

    def note(self, connection: socket.socket, doing: _Doing) -> None:
        """Record what a connection's thread is doing."""
        with self._changed:
            self._doing[connection] = doing

    def leave(self, connection: socket.socket) -> None:
        """Free a connection's place."""
        with self._changed:
            del self._doing[connection]
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return len(self._doing) < _MOST_CONNECTIONS

    def _oldest_idle(self) -> socket.socket | None:
        for idle in (_Doing.READING, _Doing.WRITING):
            for connection, doing in self._doing.items():
                if doing is idle:
                    return connection
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        stats: Stats,
        registry: CollectorRegistry,
        site: StatusSite | None,
    ) -> None:
        self.stats = stats
        self.site = site
        self.registry = registry
        self.places = _Places()
        self.scrapes = threading.Semaphore(_MOST_SCRAPES)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.take(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        if isinstance(sys.exc_info()[1], OSError):
            _log.debug("a request of %s failed", client_address, exc_info=True)
        else:
            _log.exception("A request for metrics or health failed.")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "rmqstore"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self._read_head())
        self.server.places.note(self.connection, _Doing.WORKING)
        # For the whole answer: `sendall` counts the total.
        self.connection.settimeout(_ANSWER_SECONDS)

    def _read_head(self) -> bytes:
        """Read the request line and headers; return nothing if they are too slow or too long."""
        end = time.monotonic() + _HEAD_SECONDS
        head = b""
        with suppress(OSError):
            while len(head) < _HEAD_BYTES:
                self.connection.settimeout(max(0.001, end - time.monotonic()))
                piece = self.connection.recv(_HEAD_BYTES - len(head))
                head += piece
                if _HEAD_END.search(head):
                    return head
                if not piece or time.monotonic() >= end:
                    break
        return b""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._health()
        elif self.server.site is not None and (path == _PAGES or path.startswith(f"{_PAGES}/")):
            self._page(self.server.site)
        else:
            more = "" if self.server.site is None else f", and pages under {_PAGES}"
            self._answer(
                HTTPStatus.NOT_FOUND,
                "text/plain",
                f"There are /metrics and /healthz{more}.\n".encode(),
            )

    def do_HEAD(self) -> None:
        self.do_GET()

    def _page(self, site: StatusSite) -> None:
        headers = {name: self.headers[name] for name in HEADERS if name in self.headers}
        answer = site.answer(self.path, self.client_address[0], headers)
        self._answer(answer.status, answer.kind, answer.body, answer.headers)

    def _metrics(self) -> None:
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        if not self.server.scrapes.acquire(blocking=False):
            busy = b"The metrics are being made for others. Ask again.\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", busy)
            return
        try:
            body = encode(self.server.registry)
        finally:
            self.server.scrapes.release()
        self._answer(HTTPStatus.OK, kind, body)

    def _health(self) -> None:
        stats = self.server.stats()
        state = str(stats["state"])
        # A member that knows no leader gets nothing; a slave tries again by itself.
        follows = stats.get("groupHasLeader", False) or (
            stats.get("replicationState", _STOPPED) != _STOPPED
        )
        body = json.dumps({"state": state}).encode() + b"\n"
        is_well = state in (HEALTHY, READ_ONLY) or (state == _SLAVE and follows)
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, "application/json", body)

    def end_headers(self) -> None:
        for header in _SAFE:
            self.send_header(*header)
        super().end_headers()

    def _answer(
        self,
        status: HTTPStatus,
        kind: str,
        body: bytes,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.server.places.note(self.connection, _Doing.WRITING)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _log.debug("%s %s", self.address_string(), format % args)
