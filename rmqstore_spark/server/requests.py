"""Admits the requests of Spark and the command by their headers, and routes them to handlers.

An error that is not one of this package's is a bug: its details go to the log, not to the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import pyarrow as pa

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
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.actions import StoreActions
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.calls import Call, Calls, EvictedError, TooManyCallsError
from rmqstore_spark.server.connections.connection import ClientConnection
from rmqstore_spark.server.connections.receiver import EndedError, ReceivedRequest
from rmqstore_spark.server.puts import BlockReader, BlockStreams
from rmqstore_spark.server.reads import check_request, range_answers
from rmqstore_spark.server.stores.served import ServedStore, StoresByName
from rmqstore_spark.server.table import BY_CODE, ROWS
from rmqstore_spark.server.view import ViewError
from rmqstore_spark.wire.codec import MessageError, encode
from rmqstore_spark.wire.protocol import (
    BUSY,
    FAILED,
    ILLEGAL,
    MAX_REQUEST,
    NOT_FOUND,
    SMALL_REQUEST,
    STORE_FIELD,
    UNAUTHENTICATED,
    UNAVAILABLE,
    Code,
)
from rmqstore_spark.wire.reading import RangesRequest
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


class Requests:
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
