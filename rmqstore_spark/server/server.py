"""Serves one or several stores to Spark and the command, on a port, a unix socket, or both.

Each connection has a thread. Whatever a client does or sends can only end its own connection. An
error that is not one of this package's is a bug: its details go to the log, not to the client.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.engine.counters import Failures
from rmqstore_spark.errors import (
    FrameError,
    OptionError,
    RefusedError,
    RmqStoreError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.remoting.access.signing import ACCESS_KEY
from rmqstore_spark.remoting.addresses import address_text, listen
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.listener import OtherProtocol
from rmqstore_spark.remoting.tls import PLAIN, ServerTls
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.blocks import BlockReader
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.calls import Call, Calls, EvictedError, TooManyCallsError
from rmqstore_spark.server.connections.connection import ClientConnection
from rmqstore_spark.server.connections.listener import Connections, Listener
from rmqstore_spark.server.connections.receiver import EndedError, ReceivedRequest
from rmqstore_spark.server.connections.unix_socket import listen_on_path
from rmqstore_spark.server.puts import BlockStreams
from rmqstore_spark.server.reads import check_request, range_answers
from rmqstore_spark.server.stores.by_name import StoresByName
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.server.table import BY_CODE, ROWS
from rmqstore_spark.server.view import ViewError
from rmqstore_spark.wire.codec import MessageError, encode
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
from rmqstore_spark.wire.protocol import (
    ALPN,
    CODES,
    MAX_REQUEST,
    SMALL_REQUEST,
    STORE_FIELD,
    Code,
)
from rmqstore_spark.wire.transport import FileSpan, Part

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

_log = logging.getLogger(__name__)

_RECEIVED_BYTES: Final = 128 << 20
"""Maximum bytes of received, unhandled messages of more than 1 MiB each, over all clients."""
_SMALL_BYTES: Final = 32 << 20
"""The same for messages of up to 1 MiB."""
_REQUEST_BYTES: Final = 16 << 20
"""The same for requests other than blocks: a client that announces many of them delays no put."""
_SENT_BYTES: Final = 64 << 20
"""Maximum bytes that are read from files but not sent."""
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
_IN_STREAM: Final = frozenset({Code.BLOCK, Code.FINISH})
_MOST_REFUSAL: Final = 3000


class StoreServer:
    """Serves stores, from its construction until `close`.

    Args:
        stores: the stores, with different names; the server does not close them.
        config: where to listen, and limits.
        protection: accounts and TLS.
        bound: the socket of its port, which does not listen yet; None without one.
        stop: called, from another thread, when a client asks the process to stop.

    Attributes:
        endpoints: its endpoints; the port's comes before the socket's. None if neither is
            configured: then only RocketMQ's clients, or slaves, use the process.
        room: the room for blocks that are received but not handled.

    Raises:
        OptionError: the socket's folder is open to others.
        ServiceError: an address is in use, or cannot be bound.
    """

    def __init__(
        self,
        stores: Sequence[ServedStore],
        config: StoreConfig,
        protection: Protection,
        bound: socket.socket | None,
        stop: Callable[[], None],
    ) -> None:
        self._calls = Calls(config.max_streams)
        self._path: str | None = None  # set once this process has bound it
        self._listeners: list[Listener] = []
        self._protection = protection
        self._service = service = _Requests(StoresByName(stores), config, self._calls, stop)
        self.room = service.room
        self._failures = service.failures
        ways = 2 if config.listen_socket else 1
        most = _most_connections(config.max_streams) // ways
        self._connections = Connections(self._remote, most)
        self._local_ones = Connections(self._local, most)
        self.endpoints: list[Endpoint] = []
        try:
            if bound is not None and config.serves_spark:
                self.endpoints.append(_endpoint(bound, protection.tls))
                # A broker listens itself, and hands over who talks this protocol.
                if not config.is_broker:
                    listen(bound)
                    self._listeners.append(Listener(bound, self._connections))
            if config.listen_socket:
                self._listen_on(os.path.abspath(config.listen_socket))
        except BaseException:
            self.close()
            raise

    @property
    def protocol(self) -> OtherProtocol:
        """What shows the listener of a broker which connections are for this server."""
        connections = self._connections
        return OtherProtocol(CODES, ALPN, connections.take, lambda: connections.end_idle(1))

    def _listen_on(self, path: str) -> None:
        if "#" in path:
            raise OptionError(
                f"listenSocket {path} has a #, which begins the name of a store in an "
                "endpoint. Choose another name for the socket."
            )
        endpoint = parse_endpoint(f"{UNIX}://{path}")
        listening = listen_on_path(path)
        self._path = path
        self._listeners.append(Listener(listening, self._local_ones))
        self.endpoints.append(endpoint)

    def _remote(self, accepted: socket.socket) -> ClientConnection:
        # As RocketMQ's clients are told apart: one of IPv4 has its own address on a port of IPv6.
        host = address_text(accepted.getpeername()).rpartition(":")[0].strip("[]")
        caller = Caller(self._protection.accounts, host)
        return ClientConnection(accepted, self._protection.tls, caller, self._service)

    def _local(self, accepted: socket.socket) -> ClientConnection:
        return ClientConnection(accepted, PLAIN, Caller(None, ""), self._service)

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
        return len(self._connections) + len(self._local_ones)

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
        for connections in (self._connections, self._local_ones):
            connections.end(_CUT_SECONDS)
        self._calls.wait_until(lambda calls: not calls, _CUT_SECONDS)

    def close(self) -> None:
        """End all calls and stop listening."""
        self.end_calls()
        for listener in self._listeners:
            listener.close(_CUT_SECONDS)
        for connections in (self._connections, self._local_ones):
            connections.close(_CUT_SECONDS)
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)


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
        calls: Calls,
        stop: Callable[[], None],
    ) -> None:
        self._config = config
        self._calls = calls
        self._stores = stores
        self._actions = {
            store.name: StoreActions(store, stop, self._is_stopping) for store in stores
        }
        self.failures = Failures()
        self._sent = Budget(_SENT_BYTES)
        self._places = {
            row.code: threading.BoundedSemaphore(row.at_once) for row in ROWS if row.at_once
        }
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
        if code != Code.LOGIN and not connection.caller.is_known:
            raise RefusedError("A login with an account is needed.", UNAUTHENTICATED)
        if code not in BY_CODE:
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
        connection.is_trusted = connection.caller.is_known

    def refuse(self, connection: ClientConnection, error: Exception) -> None:
        """Answer a request that was not admitted."""
        status, text = _told(error, "a request")
        self.failures.count(status)
        connection.refuse(status, text[:_MOST_REFUSAL], self._idle_seconds)

    def handle(self, connection: ClientConnection, request: ReceivedRequest) -> bool:
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

    def _login(self, connection: ClientConnection, request: ReceivedRequest) -> bool:
        """Answer a login: without a body with a challenge, and with one, the answer to that."""
        caller, proof = connection.caller, request.data.tobytes()
        challenge = b""
        try:
            if proof:
                caller.log_in(request.head.ext.get(ACCESS_KEY, ""), proof, connection.server)
            else:
                challenge = caller.challenge()
        except RefusedError as error:
            self.refuse(connection, error)
            return False
        connection.is_trusted = caller.is_known
        connection.answer(challenge, seconds=self._idle_seconds)
        return True

    def _store_of(self, request: ReceivedRequest) -> ServedStore:
        """Return the store that a request is about."""
        return self._stores.find(request.head.ext.get(STORE_FIELD))

    def _action(self, call: Call, code: Code, request: ReceivedRequest) -> None:
        row, store = BY_CODE[code], self._store_of(request)
        assert row.handle is not None, f"{code.text} is not handled"  # noqa: S101 - `handle` knows
        asked = row.read(request.data.tobytes())
        store.require(call.caller, row.needs_of(asked))
        with ExitStack() as held:
            if len(request.data) > _LARGE_REQUEST:
                held.enter_context(_place(self._large))
            places = self._places.get(code)
            with nullcontext() if places is None else _place(places):
                result = row.handle(self._actions[store.name], asked, call.caller)
                is_encoded = isinstance(result, bytes | pa.Buffer)
                answer = memoryview(result if is_encoded else encode(result))  # type: ignore[arg-type]
                if len(answer) > _SMALL_ANSWER:
                    held.enter_context(self._sent.use(len(answer), _ROOM_SECONDS))
            request.release()
            self._answer(call, answer)

    def _blocks(self, call: Call, request: ReceivedRequest) -> bool:
        store = self._store_of(request)
        store.require(call.caller, BY_CODE[Code.BLOCKS].needs_of(None))
        blocks = BlockReader(call, request, self._config)
        streams = BlockStreams(store, self._is_stopping, self.failures)
        call.connection.has_stream = True
        streams.handle(blocks)
        call.connection.has_stream = False
        return blocks.is_finished

    def _read(self, call: Call, request: ReceivedRequest) -> None:
        store = self._store_of(request)
        row = BY_CODE[Code.READ]
        asked: RangesRequest = row.read(request.data.tobytes())
        store.require(call.caller, row.needs_of(asked))
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


def _endpoint(bound: socket.socket, tls: ServerTls) -> Endpoint:
    host, port = bound.getsockname()[:2]
    return Endpoint(TCP if tls.context is None else TLS, host, port)


def _most_connections(streams: int) -> int:
    """Return the number of connections above which idle ones are closed.

    At least half of the open files stay free for the store.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = streams * _CONNECTIONS_PER_STREAM
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)
