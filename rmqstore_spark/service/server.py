"""A store served over Arrow Flight, on a port, a unix socket, or both.

Handlers run in Flight's threads, one for each call. Whatever a client does or sends can end its own
call and nothing else; an error that is not one of this package's is a bug, and is told to the log
and not to the client.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
    ServiceError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.service.actions import StoreActions
from rmqstore_spark.service.auth import Security
from rmqstore_spark.service.blocks import BlockStreams
from rmqstore_spark.service.budget import Budget
from rmqstore_spark.service.calls import Call, Calls, Reaper
from rmqstore_spark.service.connections import peer_of
from rmqstore_spark.service.gate import GATE, Gate, refusal
from rmqstore_spark.service.reads import range_batches
from rmqstore_spark.service.view import StoreView, ViewError
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.failures import FAILED, ILLEGAL, NOT_FOUND, UNAVAILABLE
from rmqstore_spark.wire.messages import RangesRequest
from rmqstore_spark.wire.protocol import RANGES_SCHEMA

if TYPE_CHECKING:
    from rmqstore_spark.writer.store import StoreWriter

__all__ = ["StoreServer"]

_log = logging.getLogger(__name__)

_MAX_TICKET: Final = 4 << 20
_IN_FLIGHT_BYTES: Final = 128 << 20
_CONNECTIONS_PER_STREAM: Final = 4
_CUT_SECONDS: Final = 5.0


class StoreServer:
    """Serves a store that is open for writing, from the moment it is made until `close`.

    Args:
        store: the store; it is not closed by this.
        stop: called, from another thread, when a client asks the process to end.

    Raises:
        OptionError: the configuration would let strangers in, or a file of it cannot be used.
        ServiceError: an address is in use, or cannot be bound.
    """

    def __init__(self, store: StoreWriter, stop: Callable[[], None]) -> None:
        config = store.config
        security = Security.of(config)
        self._calls = Calls(config.max_streams)
        view = StoreView(store.path, store.log_folder, lambda: store.published_end)
        budget = Budget(max(_IN_FLIGHT_BYTES, config.max_block_bytes))
        handlers = _Handlers(
            StoreActions(store, view, stop, lambda: self._calls.is_stopping),
            BlockStreams(store, self._calls, budget, config.max_block_bytes),
            view,
        )
        self._socket = os.path.abspath(config.flight_socket) if config.flight_socket else None
        self._flights: list[_Flight] = []
        self.endpoints: list[Endpoint] = []
        try:
            if config.flight_port >= 0:
                self._listen(handlers, security, config.bind_address, config.flight_port)
            if self._socket is not None:
                self._listen_on_socket(handlers, security, self._socket)
        except BaseException:
            self._shut_down()
            raise
        self._reaper = Reaper(
            self._calls,
            self.endpoints[0].port or None,
            self._socket,
            config.stream_idle_timeout / 1000,
            _most_connections(config.max_streams),
        )

    def _listen(self, handlers: _Handlers, security: Security, host: str, port: int) -> None:
        _require_free(host, port)
        scheme: Any = TLS if security.is_encrypted else TCP
        location = str(Endpoint(scheme, host, port or 1)).rpartition(":")[0] + f":{port}"
        options: dict[str, Any] = {}
        if security.is_encrypted:
            options["tls_certificates"] = [(security.certificate, security.key)]
        if security.client_ca is not None:
            options.update(verify_client=True, root_certificates=security.client_ca)
        served = self._start(location, handlers, security, options)
        self.endpoints.append(Endpoint(scheme, host, served.port))

    def _listen_on_socket(self, handlers: _Handlers, security: Security, path: str) -> None:
        endpoint = parse_endpoint(f"{UNIX}://{path}")
        _prepare_socket(path)
        self._start(str(endpoint), handlers, security, {})
        os.chmod(path, 0o600)
        self.endpoints.append(endpoint)

    def _start(
        self, location: str, handlers: _Handlers, security: Security, options: dict[str, Any]
    ) -> _Flight:
        gate = Gate(security, self._calls)
        try:
            served = _Flight(location, handlers, middleware={GATE: gate}, **options)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            text = str(error).partition(". gRPC")[0]
            raise ServiceError(
                f"Nothing can be served on {location}: {text}. Choose another address, and look "
                "at the certificates if there are some."
            ) from None
        self._flights.append(served)
        return served

    @property
    def calls_under_way(self) -> int:
        """How many calls are being served."""
        return len(self._calls.all())

    def drain(self, seconds: float) -> bool:
        """Take no new calls, and wait until no call is at work; tells whether that came about.

        Calls that wait for their client are not waited for.
        """
        self._calls.is_stopping = True
        return self._calls.wait_until(
            lambda calls: all(call.waiting_since is not None for call in calls), seconds
        )

    def close(self) -> None:
        """End all calls and stop listening."""
        self._calls.is_stopping = True
        self._reaper.close()
        deadline_passed = False
        while self._calls.all() and not deadline_passed:
            self._reaper.cut_calls()
            deadline_passed = not self._calls.wait_until(lambda calls: not calls, _CUT_SECONDS)
        self._shut_down()

    def _shut_down(self) -> None:
        for served in self._flights:
            served.shutdown()
        if self._socket is not None:
            with suppress(OSError):
                os.unlink(self._socket)


class _Handlers:
    """What both the port and the socket serve."""

    def __init__(self, actions: StoreActions, blocks: BlockStreams, view: StoreView) -> None:
        self.actions = actions
        self.blocks = blocks
        self.view = view


class _Flight(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    """Flight's calls, brought to their handlers."""

    def __init__(self, location: str, handlers: _Handlers, **options: Any) -> None:
        self._handlers = handlers
        super().__init__(location, **options)

    def do_action(self, context: Any, action: Any) -> Iterator[flight.Result]:
        """Do an action."""
        with _told(f"action {action.type[:64]!r}"):
            _call(context).begin_work()
            size = 0 if action.body is None else action.body.size
            body = action.body.to_pybytes() if size else b""
            return iter([flight.Result(self._handlers.actions.do(action.type, body))])

    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        """Name the actions."""
        return [(name, "") for name in self._handlers.actions.names]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take a stream of blocks."""
        with _told("a stream of blocks"):
            self._handlers.blocks.handle(_call(context), descriptor.command, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        """Give byte ranges of a file."""
        with _told("ranges of a file"):
            try:
                request = decode(RangesRequest, bytes(ticket.ticket), most=_MAX_TICKET)
            except MessageError as error:
                raise RefusedError(f"The ticket is wrong: {error}.", ILLEGAL) from None
            batches = range_batches(self._handlers.view, request, _call(context))
            return flight.GeneratorStream(RANGES_SCHEMA, _each_told(batches))


def _each_told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _told("ranges of a file"):
        yield from batches


def _call(context: Any) -> Call:
    """The call of a context, now that its peer is known."""
    call: Call = context.get_middleware(GATE).call
    call.peer = peer_of(context.peer(), call.process)
    return call


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell failures to the client as refusals."""
    try:
        yield
    except flight.FlightError:
        raise
    except RefusedError as error:
        raise refusal(error.status, str(error.args[0])) from None
    except ViewError as error:
        raise refusal(error.status, str(error)) from None
    except TopicNotFoundError as error:
        raise refusal(NOT_FOUND, str(error)) from None
    except OptionError as error:
        raise refusal(ILLEGAL, str(error)) from None
    except StoreWriteError as error:
        _log.error("%s failed: %s", what, error)
        raise refusal(UNAVAILABLE, str(error)) from None
    except RmqStoreError as error:
        _log.warning("%s failed: %s", what, error)
        raise refusal(UNAVAILABLE, str(error)) from None
    except Exception as error:  # noqa: BLE001 - a bug here must not end other clients' calls
        _log.exception("%s failed", what)
        text = f"The store process failed ({type(error).__name__}). Its log says more."
        raise refusal(FAILED, text) from None


def _most_connections(streams: int) -> int:
    """With more than these, idle ones are ended: half of the open files stay free for the store."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = streams * _CONNECTIONS_PER_STREAM
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)


def _require_free(host: str, port: int) -> None:
    """Refuse a port that is in use: Flight itself would share it with whoever listens there.

    Raises:
        ServiceError: it is in use, or may not be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            why = (
                "another process listens there already"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise ServiceError(
                f"Nothing can be served on {host}:{port}: {why}. Choose another port (flightPort; "
                "0 takes any free one)."
            ) from None


def _prepare_socket(path: str) -> None:
    """Make sure that a unix socket can be made, and reached by nobody else.

    Raises:
        OptionError: its folder is open to others, or something else is there.
        ServiceError: another process listens there.
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        raise OptionError(f"The folder {folder} of flightSocket cannot be used: {error}.") from None
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise OptionError(
            f"The folder {folder} of flightSocket must be its user's alone (mode 0700): whoever "
            "reaches the socket can write to the store. Run chmod 700, or name another folder."
        )
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OptionError(f"flightSocket {path} is there already, and is no socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)  # of a process that was killed
            return
    raise ServiceError(f"Another process listens on {path}. Stop it, or name another socket.")
