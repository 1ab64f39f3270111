"""Serves one or several stores over Arrow Flight, on a port, a unix socket, or both.

Each call has a thread. Whatever a client does or sends can only end its own call. An error that is
not one of this package's is a bug: its details go to the log, not to the client.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore_spark.engine.failure_counts import Failures
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.auth import Security
from rmqstore_spark.server.blocks import BlockReader
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.calls import Call, Calls, EvictedError, TooManyCallsError
from rmqstore_spark.server.flight import status as grpc
from rmqstore_spark.server.flight.connection import CallService
from rmqstore_spark.server.flight.inbox import MessageTooLargeError
from rmqstore_spark.server.flight.listener import Listener, listen_on_path, listen_on_port
from rmqstore_spark.server.flight.messages import (
    action_type_bytes,
    flight_data_head,
    read_action,
    read_ticket,
    result_head,
)
from rmqstore_spark.server.flight.status import EndedError, Status
from rmqstore_spark.server.flight.stream import Stream
from rmqstore_spark.server.puts import BlockStreams
from rmqstore_spark.server.reads import check_request, range_messages
from rmqstore_spark.server.stores.by_name import StoresByName
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.server.view import ViewError
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.failures import (
    BUSY,
    DENIED,
    FAILED,
    ILLEGAL,
    NOT_FOUND,
    UNAVAILABLE,
    refusal_bytes,
)
from rmqstore_spark.wire.messages import RangesRequest
from rmqstore_spark.wire.protocol import MAX_REQUEST, RANGES_SCHEMA, STORE_HEADER, Actions

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

__all__ = ["StoreServer"]

_log = logging.getLogger(__name__)

_RECEIVED_BYTES: Final = 128 << 20
"""Maximum bytes of received, unhandled messages of more than 1 MiB each, over all clients."""
_SMALL_BYTES: Final = 16 << 20
"""The same for messages of up to 1 MiB."""
_SENT_BYTES: Final = 64 << 20
"""Maximum bytes that are read from files but not sent."""
_SLACK: Final = 64 << 10
_MAX_TICKET: Final = 4 << 20
_AT_ONCE: Final = {Actions.QUERY: 2, Actions.LIST: 4, Actions.WALK: 4}
"""Concurrent calls of those actions that can each take tens of megabytes."""
_LARGE_AT_ONCE: Final = 2
_SMALL_ANSWER: Final = 64 << 10
_LARGE_REQUEST: Final = 256 << 10
_PLACE_SECONDS: Final = 10.0
"""How long a call waits for a place among them."""
_ROOM_SECONDS: Final = 10.0
_CONNECTIONS_PER_STREAM: Final = 4
_CUT_SECONDS: Final = 5.0

_REFUSALS: Final[tuple[tuple[type[Exception], str, str], ...]] = (
    (TopicNotFoundError, NOT_FOUND, "{}"),
    (OptionError, ILLEGAL, "{}"),
    (MessageError, ILLEGAL, "The message is invalid: {}."),
    (MessageTooLargeError, ILLEGAL, "The data sent is too large: {} (maxBlockBytes)."),
    (
        OverBudgetError,
        BUSY,
        "The store process receives more data than it can handle. Try again later.",
    ),
    (TimeoutError, UNAVAILABLE, "The client was idle for streamIdleTimeout."),
    (
        EvictedError,
        BUSY,
        "The store process closed the idle stream to make room (maxStreams). Start again.",
    ),
)
"""The status and text for errors that the client caused, or that are transient."""

_SERVICE: Final = "/arrow.flight.protocol.FlightService/"
_MOST_REFUSAL: Final = 3000


class StoreServer:
    """Serves stores, from its construction until `close`.

    Args:
        stores: the stores, with different names; the server does not close them.
        config: where to listen, credentials and limits.
        stop: called, from another thread, when a client asks the process to stop.

    Attributes:
        endpoints: its endpoints; the port's comes before the socket's. None if neither is
            configured: then only RocketMQ's clients, or slaves, use the process.
        room: the room for messages that are received but not handled.

    Raises:
        OptionError: the configuration would let strangers in, or names a file that cannot be used.
        ServiceError: an address is in use, or cannot be bound.
    """

    def __init__(
        self, stores: Sequence[ServedStore], config: StoreConfig, stop: Callable[[], None]
    ) -> None:
        security = Security.of(config)
        self._calls = Calls(config.max_streams)
        path = os.path.abspath(config.flight_socket) if config.flight_socket else None
        self._socket: str | None = None  # set once this process has bound it
        self._listeners: list[Listener] = []
        self.endpoints: list[Endpoint] = []
        service = _FlightService(StoresByName(stores), config, security, self._calls, stop)
        self.room = service.room
        self._failures = service.failures
        ways = (config.flight_port >= 0) + (path is not None)
        most = _most_connections(config.max_streams) // max(1, ways)
        try:
            if config.flight_port >= 0:
                listening = listen_on_port(config.bind_address, config.flight_port)
                self._listeners.append(Listener(listening, service, security.tls, most))
                scheme: Any = TCP if security.tls is None else TLS
                port = listening.getsockname()[1]
                self.endpoints.append(Endpoint(scheme, config.bind_address, port))
            if path is not None:
                if "#" in path:
                    raise OptionError(
                        f"flightSocket {path} has a #, which begins the name of a store in an "
                        "endpoint. Choose another name for the socket."
                    )
                endpoint = parse_endpoint(f"{UNIX}://{path}")
                listening = listen_on_path(path)
                self._socket = path
                self._listeners.append(Listener(listening, service, None, most))
                self.endpoints.append(endpoint)
        except BaseException:
            self.close()
            raise

    @property
    def calls_under_way(self) -> int:
        """Number of calls in progress."""
        return len(self._calls.all())

    @property
    def calls_at_work(self) -> int:
        """Number of calls that do not wait for their client."""
        return sum(call.waiting_since is None for call in self._calls.all())

    @property
    def calls_ended(self) -> int:
        """Number of calls that have ended."""
        return self._calls.ended

    @property
    def connections(self) -> int:
        """Number of connections."""
        return sum(len(listener) for listener in self._listeners)

    def stats(self) -> dict[str, Any]:
        """Return figures of the clients' calls, ready for JSON."""
        return {
            "connections": self.connections,
            "calls": self.calls_under_way,
            "receivedBytes": self.room.used,
            "callFailures": self._failures.to_json(),
        }

    def drain(self, seconds: float) -> bool:
        """Refuse new calls, and wait until none is at work; return whether that happened.

        Calls that wait for their client are not waited for.
        """
        self._calls.is_stopping = True
        return self._calls.wait_until(
            lambda calls: all(call.waiting_since is not None for call in calls), seconds
        )

    def end_calls(self) -> None:
        """Refuse new calls, and end those in progress."""
        self._calls.is_stopping = True
        for listener in self._listeners:
            listener.end_connections(_CUT_SECONDS)
        self._calls.wait_until(lambda calls: not calls, _CUT_SECONDS)

    def close(self) -> None:
        """End all calls and stop listening."""
        self.end_calls()
        for listener in self._listeners:
            listener.close(_CUT_SECONDS)
        if self._socket is not None:
            with suppress(OSError):
                os.unlink(self._socket)


class _FlightService(CallService):
    """Admits Flight calls, and routes them to their handlers."""

    def __init__(
        self,
        stores: StoresByName,
        config: StoreConfig,
        security: Security,
        calls: Calls,
        stop: Callable[[], None],
    ) -> None:
        self._config = config
        self._token = security.token
        self._calls = calls
        self._stores = stores
        self._actions = {
            store.name: StoreActions(store, stop, self._is_stopping) for store in stores
        }
        self.failures = Failures()
        self._sent = Budget(_SENT_BYTES)
        self._places = {name: threading.BoundedSemaphore(count) for name, count in _AT_ONCE.items()}
        self._large = threading.BoundedSemaphore(_LARGE_AT_ONCE)
        self._idle_seconds = self._config.stream_idle_timeout / 1000
        self._handlers: dict[str, Callable[[Call], None]] = {
            "DoAction": self._do_action,
            "ListActions": self._list_actions,
            "DoExchange": self._do_exchange,
            "DoGet": self._do_get,
        }
        most = max(_RECEIVED_BYTES, 2 * self._config.max_block_bytes) + _SMALL_BYTES
        self.room = Room(most, _SMALL_BYTES)
        self.most_message = (
            max(self._config.max_block_bytes, _MAX_TICKET, *MAX_REQUEST.values()) + _SLACK
        )

    def _is_stopping(self) -> bool:
        return self._calls.is_stopping

    def _store_of(self, call: Call) -> ServedStore:
        """Return the store that a call is about."""
        return self._stores.find(_only(call.stream, STORE_HEADER))

    # ---- the connection's thread ---------------------------------------------------------------

    def begin(self, stream: Stream) -> None:
        """Admit or refuse a call by its headers, before anything else of it is read."""
        if self._token is not None and not self._token.matches(_only(stream, "authorization")):
            message = "The token is missing or wrong."
            self.failures.count(DENIED)
            stream.finish(Status(grpc.UNAUTHENTICATED, message, refusal_bytes(DENIED, message)))
            return
        stream.connection.trust()
        method = (_only(stream, ":path") or "").removeprefix(_SERVICE)
        handler = self._handlers.get(method)
        if handler is None:
            stream.finish(
                Status(grpc.UNIMPLEMENTED, "The store process does not support this call.")
            )
            return
        if self._calls.is_stopping:
            self._refuse(stream, UNAVAILABLE, "The store process is stopping. Try again later.")
            return
        try:
            call = self._calls.begin(stream, method in ("DoExchange", "DoGet"))
        except TooManyCallsError:
            text = "The store process has the maximum number of clients (maxStreams). Try again."
            self._refuse(stream, BUSY, text)
            return
        thread = threading.Thread(
            target=self._run, args=(call, method, handler), name=f"rmqstore-{method}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._calls.end(call)
            self._refuse(stream, BUSY, "The store process has no free thread. Try again.")

    def _refuse(self, stream: Stream, status: str, text: str) -> None:
        self.failures.count(status)
        stream.finish(_refusal(status, text))

    # ---- the call's thread ---------------------------------------------------------------------

    def _run(self, call: Call, method: str, handler: Callable[[Call], None]) -> None:
        status = Status(grpc.OK)
        try:
            call.begin()
            handler(call)
        except Exception as error:  # noqa: BLE001 - a bug here must not end other clients' calls
            status = self._status_of(error, method)
        finally:
            call.stream.finish(status)
            self._calls.end(call)

    def _status_of(self, error: Exception, method: str) -> Status:
        """Return the status that ends a failed call."""
        if isinstance(error, EndedError):
            return Status(grpc.OK)  # there is no client to read it
        status, text = _told(error, method)
        self.failures.count(status)
        return _refusal(status, text)

    def _do_action(self, call: Call) -> None:
        actions = self._actions[self._store_of(call).name]
        message = self._only_message(call)
        with ExitStack() as held:
            held.callback(message.release)
            name, body = read_action(message.view)
            if len(body) > _LARGE_REQUEST:
                held.enter_context(_place(self._large))
            places = self._places.get(name)
            with nullcontext() if places is None else _place(places):
                answer = memoryview(actions.do(name, bytes(body), call.identity))
                if len(answer) > _SMALL_ANSWER:
                    held.enter_context(self._sent.use(len(answer), _ROOM_SECONDS))
            message.release()
            self._send(call, result_head(len(answer)), answer)

    def _list_actions(self, call: Call) -> None:
        for name in self._actions[self._store_of(call).name].names:
            self._send(call, action_type_bytes(name))

    def _do_exchange(self, call: Call) -> None:
        writer = self._store_of(call).writer
        blocks = BlockStreams(writer, self._is_stopping, self.failures)
        blocks.handle(BlockReader(call, self._config))

    def _do_get(self, call: Call) -> None:
        store = self._store_of(call)
        message = self._only_message(call)
        try:
            ticket = read_ticket(message.view)
            request = decode(RangesRequest, bytes(ticket), most=_MAX_TICKET)
        except MessageError as error:
            raise RefusedError(f"The ticket is invalid: {error}.", ILLEGAL) from None
        finally:
            message.release()
        schema = pa.ipc.read_message(RANGES_SCHEMA.serialize()).metadata.to_pybytes()
        self._send(call, flight_data_head(schema, b"", 0))
        check_request(request)
        with ExitStack() as held:
            for path in set(request.paths):
                held.enter_context(store.reading(path))
            for header, body in range_messages(store.view, request, self._sent):
                head = flight_data_head(header, b"", sum(map(len, body)))
                self._send(call, head, *body)
                body.clear()  # free it before the next message waits for room

    def _only_message(self, call: Call) -> Any:
        with call.reading():
            message = call.stream.read(self._idle_seconds, _ROOM_SECONDS)
        if message is None:
            raise RefusedError("The call has no message.", ILLEGAL)
        return message

    def _send(self, call: Call, *parts: bytes | memoryview) -> None:
        call.stream.send(*parts, seconds=self._idle_seconds, budget=self._sent)


@contextmanager
def _place(places: threading.BoundedSemaphore) -> Iterator[None]:
    """Hold a place among the few calls that take much memory."""
    if not places.acquire(timeout=_PLACE_SECONDS):
        text = "The store process is busy with other requests of this kind. Try again later."
        raise RefusedError(text, BUSY)
    try:
        yield
    finally:
        places.release()


def _told(error: Exception, method: str) -> tuple[str, str]:
    """Return the status and the text that a client gets for a failure."""
    if isinstance(error, RefusedError | ViewError):
        return error.status, str(error.args[0])
    for kind, status, text in _REFUSALS:
        if isinstance(error, kind):
            return status, text.format(error)
    if isinstance(error, RmqStoreError):
        level = logging.ERROR if isinstance(error, StoreWriteError) else logging.WARNING
        _log.log(level, "%s failed: %s", method, error)
        return UNAVAILABLE, str(error)
    _log.error("%s failed", method, exc_info=error)
    return FAILED, f"The store process failed ({type(error).__name__}). See its log."


def _refusal(status: str, message: str) -> Status:
    """Return the status that ends a refused call."""
    code = grpc.UNAVAILABLE if status in (BUSY, UNAVAILABLE) else grpc.UNKNOWN
    message = message[:_MOST_REFUSAL]
    return Status(code, f"{status}: {message}", refusal_bytes(status, message))


def _only(stream: Stream, name: str) -> str | None:
    """Return the value of a header that occurs exactly once, else None."""
    values = stream.headers.get(name) or []
    return values[0] if len(values) == 1 else None


def _most_connections(streams: int) -> int:
    """Return the number of connections above which idle ones are closed.

    At least half of the open files stay free for the store.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = streams * _CONNECTIONS_PER_STREAM
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)
