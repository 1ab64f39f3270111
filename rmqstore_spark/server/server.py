"""Serves one or several stores to Spark and the command, on a port, a unix socket, or both.

Each connection has a thread. Whatever a client does or sends can only end its own connection. An
error that is not one of this package's is a bug: its details go to the log, not to the client.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.engine.failure_counts import Failures
from rmqstore_spark.errors import (
    FrameError,
    OptionError,
    RefusedError,
    RmqStoreError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.auth import Security
from rmqstore_spark.server.blocks import BlockReader
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.calls import Call, Calls, EvictedError, TooManyCallsError
from rmqstore_spark.server.connections.connection import ClientConnection
from rmqstore_spark.server.connections.listener import Listener, listen_on_path, listen_on_port
from rmqstore_spark.server.connections.receiver import EndedError, Request
from rmqstore_spark.server.puts import BlockStreams
from rmqstore_spark.server.reads import check_request, range_answers
from rmqstore_spark.server.stores.by_name import StoresByName
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.server.view import ViewError
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.failures import (
    BUSY,
    FAILED,
    ILLEGAL,
    NOT_FOUND,
    UNAUTHENTICATED,
    UNAVAILABLE,
)
from rmqstore_spark.wire.messages import RangesRequest
from rmqstore_spark.wire.protocol import MAX_REQUEST, SMALL_REQUEST, STORE_FIELD, Code
from rmqstore_spark.wire.transport import FileSpan, Part

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

__all__ = ["StoreServer"]

_log = logging.getLogger(__name__)

_RECEIVED_BYTES: Final = 128 << 20
"""Maximum bytes of received, unhandled messages of more than 1 MiB each, over all clients."""
_SMALL_BYTES: Final = 32 << 20
"""The same for messages of up to 1 MiB."""
_REQUEST_BYTES: Final = 16 << 20
"""The same for requests other than blocks: a client that announces many of them delays no put."""
_SENT_BYTES: Final = 64 << 20
"""Maximum bytes that are read from files but not sent."""
_AT_ONCE: Final = {Code.QUERY: 2, Code.LIST: 4, Code.WALK: 4}
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

_LASTING: Final = frozenset({Code.BLOCKS, Code.READ})
_CODES: Final = frozenset(Code)
_IN_STREAM: Final = frozenset({Code.BLOCK, Code.FINISH})
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
        room: the room for blocks that are received but not handled.

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
        self._service = service = _Requests(
            StoresByName(stores), config, security, self._calls, stop
        )
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
            "receivedBytes": self._service.received,
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


class _Requests:
    """Admits requests, and routes them to their handlers.

    Attributes:
        room: the room for blocks.
        failures: counts what was refused.
    """

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
        self._places = {code: threading.BoundedSemaphore(count) for code, count in _AT_ONCE.items()}
        self._large = threading.BoundedSemaphore(_LARGE_AT_ONCE)
        self._idle_seconds = self._config.stream_idle_timeout / 1000
        most = max(_RECEIVED_BYTES, 2 * self._config.max_block_bytes) + _SMALL_BYTES
        self.room = Room(most, _SMALL_BYTES)
        self._bodies = Budget(_REQUEST_BYTES)

    def _is_stopping(self) -> bool:
        return self._calls.is_stopping

    @property
    def received(self) -> int:
        """Bytes of requests that are received, or being received, and not handled."""
        return self.room.used + self._bodies.used

    def budget_of(self, head: Command, size: int) -> Budget:
        """Return the budget that the body of an admitted request draws on."""
        return self.room.of(size) if head.code == Code.BLOCK else self._bodies

    def admit(self, connection: ClientConnection, head: Command, size: int) -> None:
        """Admit a request by its header, or raise a RefusedError."""
        code = head.code
        if self._token is not None and not connection.is_trusted and code != Code.LOGIN:
            raise RefusedError("The token is missing.", UNAUTHENTICATED)
        if code not in _CODES:
            raise RefusedError(f"The store process knows no request {code}.", ILLEGAL)
        if (code in _IN_STREAM) != connection.has_stream:
            raise RefusedError("A request does not belong where it was sent.", ILLEGAL)
        most = (
            self._config.max_block_bytes
            if code == Code.BLOCK
            else MAX_REQUEST.get(Code(code), SMALL_REQUEST)
        )
        if size > most:
            name = " (maxBlockBytes)" if code == Code.BLOCK else ""
            raise RefusedError(
                f"The data sent is too large: a {Code(code).text} has {size} bytes, and may have "
                f"{most}{name}.",
                ILLEGAL,
            )
        connection.is_trusted = self._token is None or connection.is_trusted

    def refuse(self, connection: ClientConnection, error: Exception) -> None:
        """Answer a request that was not admitted."""
        status, text = _told(error, "a request")
        self.failures.count(status)
        connection.refuse(status, text[:_MOST_REFUSAL], self._idle_seconds)

    def handle(self, connection: ClientConnection, request: Request) -> bool:
        """Handle a request; return whether more may follow."""
        code = Code(request.head.code)
        if code == Code.LOGIN:
            return self._login(connection, request)
        if self._calls.is_stopping:
            text = "The store process is stopping. Try again later."
            self.refuse(connection, RefusedError(text, UNAVAILABLE))
            return False
        try:
            call = self._calls.begin(connection, code in _LASTING)
        except TooManyCallsError:
            text = "The store process has the maximum number of clients (maxStreams). Try again."
            self.refuse(connection, RefusedError(text, BUSY))
            return False
        try:
            if code == Code.BLOCKS:
                return self._blocks(call, request)
            if code == Code.READ:
                self._read(call, request)
            else:
                self._action(call, code, request)
        except EndedError:
            return False  # there is no client to read why
        except FrameError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug here must not end other clients' calls
            status, text = _told(error, code.text)
            self.failures.count(status)
            connection.refuse(status, text[:_MOST_REFUSAL], self._idle_seconds)
            return code not in _LASTING and connection.failure is None
        finally:
            self._calls.end(call)
        return True

    def _login(self, connection: ClientConnection, request: Request) -> bool:
        given = request.data.tobytes().decode("utf-8", "surrogateescape")
        if self._token is not None and not self._token.matches(given):
            error = RefusedError("The token is wrong.", UNAUTHENTICATED)
            self.refuse(connection, error)
            return False
        connection.is_trusted = True
        connection.answer(seconds=self._idle_seconds)
        return True

    def _store_of(self, request: Request) -> ServedStore:
        """Return the store that a request is about."""
        return self._stores.find(request.head.ext.get(STORE_FIELD))

    def _action(self, call: Call, code: Code, request: Request) -> None:
        actions = self._actions[self._store_of(request).name]
        with ExitStack() as held:
            if len(request.data) > _LARGE_REQUEST:
                held.enter_context(_place(self._large))
            places = self._places.get(code)
            with nullcontext() if places is None else _place(places):
                answer = memoryview(actions.do(code, request.data.tobytes(), call.identity))
                if len(answer) > _SMALL_ANSWER:
                    held.enter_context(self._sent.use(len(answer), _ROOM_SECONDS))
            request.release()
            self._answer(call, answer)

    def _blocks(self, call: Call, request: Request) -> bool:
        writer = self._store_of(request).writer
        blocks = BlockReader(call, request, self._config)
        streams = BlockStreams(writer, self._is_stopping, self.failures)
        call.connection.has_stream = True
        streams.handle(blocks)
        call.connection.has_stream = False
        return blocks.is_finished

    def _read(self, call: Call, request: Request) -> None:
        store = self._store_of(request)
        try:
            asked = decode(RangesRequest, request.data.tobytes(), most=MAX_REQUEST[Code.READ])
        except MessageError as error:
            raise RefusedError(f"The request read is invalid: {error}.", ILLEGAL) from None
        request.release()
        check_request(asked)
        with ExitStack() as held:
            for path in set(asked.paths):
                held.enter_context(store.reading(path))
            for parts in range_answers(store.view, asked, self._sent):
                self._answer(call, *parts)
                parts.clear()  # free it before the next answer waits for room

    def _answer(self, call: Call, *parts: Part) -> None:
        # What is sent from a file takes no room.
        budget = None if any(isinstance(part, FileSpan) for part in parts) else self._sent
        call.connection.answer(*parts, seconds=self._idle_seconds, budget=budget)


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


def _most_connections(streams: int) -> int:
    """Return the number of connections above which idle ones are closed.

    At least half of the open files stay free for the store.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = streams * _CONNECTIONS_PER_STREAM
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)
