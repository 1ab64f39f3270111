"""The HTTP port that monitoring asks: `/metrics` for Prometheus, `/healthz` for supervisors.

It has no secrets and no effects, and so no password: bind it to loopback, or to a network that
only monitoring reaches. Whatever else is asked is 404; requests are small and few at a time.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.service.metrics import Stats, new_registry

__all__ = ["HEALTHY", "Monitoring"]

HEALTHY: Final = "RUNNING"
"""The one state in which the store takes messages."""

_MOST_REQUESTS: Final = 8
_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


class Monitoring:
    """Serves metrics and health from a thread of its own, until it is closed.

    Args:
        stats: the store's figures; called for each request, from other threads.
        host: address to bind.
        port: port to bind; 0 for any free one.

    Raises:
        ServiceError: the address cannot be bound.
    """

    def __init__(self, stats: Stats, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), stats, new_registry(stats))
        except OSError as error:
            raise ServiceError(
                f"Metrics cannot be served on {host}:{port}: {error.strerror or error}. "
                "Set metricsPromExporterPort to a free port, to 0 for any, or to -1 for none."
            ) from error
        if not ipaddress.ip_address(host).is_loopback:
            _log.warning(
                "Metrics on %s have no password and no TLS: whoever reaches them learns the names "
                "of all topics, how many messages they hold, and how the store is doing. Let only "
                "monitoring reach that address, or set metricsPromExporterHost=127.0.0.1.",
                self.address,
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="monitoring", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], stats: Stats, registry: CollectorRegistry) -> None:
        self.stats = stats
        self.registry = registry
        self._places = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A socket's own timeout is for each piece: who sends a byte now and then would stay.
        end = threading.Timer(_SECONDS, _hang_up, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request of %s failed", client_address, exc_info=True)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version = "rmqstore"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._health()
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There are /metrics and /healthz.\n")

    def _metrics(self) -> None:
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, kind, encode(self.server.registry))

    def _health(self) -> None:
        state = str(self.server.stats()["state"])
        body = json.dumps({"state": state}).encode() + b"\n"
        status = HTTPStatus.OK if state == HEALTHY else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, "application/json", body)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _log.debug("%s %s", self.address_string(), format % args)
