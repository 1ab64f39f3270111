"""Puts of many clients that each wait for theirs, in turns of one thread.

What such a put costs a store process is the change of threads: a thread of its connection that is
woken for it, then waits for others, the log and the disk, and is woken again. So connections whose
clients put one message at a time wait here. One thread watches their sockets, stores all that has
arrived, waits for the disk once, and answers. What is not usual goes back to the thread of its
connection, with the request: another request, more than one block, a client with limits, a commit
in the way, slaves to wait for, an answer that the client does not take at once.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.engine.append.group_commit import is_single
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.server.calls import Call
from rmqstore_spark.server.connections.receiver import EndedError, ReceivedRequest
from rmqstore_spark.wire.protocol import TRANSIENT, Acknowledgement, Code
from rmqstore_spark.wire.transport import PlainTransport

if TYPE_CHECKING:
    from rmqstore_spark.engine.append.puts import Puts
    from rmqstore_spark.engine.status import PutResult

CAN_WATCH: Final = hasattr(select, "epoll")
_LOOK_SECONDS: Final = 1.0
"""How long the thread continues without a connection."""
_MOST: Final = 256
"""Connections of a turn."""


class WaitingStream:
    """A stream of puts that waits for its client.

    Args:
        call: its call.
        allows: whether a block may be stored in a turn.
        answer: makes the answer to a block.

    Attributes:
        left: a request that came and was not handled.
        rest: bytes of an answer that the client has not taken.
        is_over: whether the last answer ends the stream.
        failure: what went wrong in a turn.
        is_busy: whether a turn has it.
    """

    def __init__(
        self,
        call: Call,
        allows: Callable[[], bool],
        answer: Callable[[int, PutResult], Acknowledgement],
    ) -> None:
        self.call = call
        self.allows = allows
        self.answer = answer
        self.left: ReceivedRequest | None = None
        self.rest = b""
        self.is_over = self.is_busy = False
        self.failure: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()


class PutTurns:
    """Stores and answers the puts of streams that wait here. Thread-safe.

    Args:
        puts: stores blocks.
    """

    def __init__(self, puts: Puts) -> None:
        self._puts = puts
        self._lock = threading.Lock()
        self._streams: dict[int, WaitingStream] = {}
        self._poll = select.epoll()
        self._thread: threading.Thread | None = None

    def wait(self, stream: WaitingStream, seconds: float) -> None:
        """Have a stream's puts stored and answered, until its own thread has to act.

        Args:
            stream: one of a connection without TLS, of which no byte is received and not handled.
            seconds: how long its client may send nothing.

        Raises:
            TimeoutError: it has sent nothing for so long.
            EndedError: the client has gone.
        """
        connection = stream.call.connection
        transport = connection.transport
        assert isinstance(transport, PlainTransport)  # noqa: S101 - the caller has looked
        number = transport.fileno()
        with stream.call.reading():
            with self._lock:
                self._streams[number] = stream
                self._poll.register(number, select.EPOLLIN | select.EPOLLRDHUP)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="rmqstore-puts", daemon=True
                    )
                    self._thread.start()
            left = seconds
            while not stream.gate.acquire(timeout=left):
                left = connection.moved + seconds - time.monotonic()
                if left <= 0:
                    if self._withdrawn(number, stream):
                        raise TimeoutError("the client sent nothing for too long")
                    left = seconds
        if stream.failure is not None:
            raise stream.failure

    def _withdrawn(self, number: int, stream: WaitingStream) -> bool:
        """Take back a stream, unless a turn has it."""
        with self._lock:
            if stream.is_busy or number not in self._streams:
                return False
            del self._streams[number]
            self._poll.unregister(number)
            return True

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            ready = self._poll.poll(_LOOK_SECONDS, _MOST)
            with self._lock:
                if not self._streams:
                    self._thread = None
                    return
                found = {at: self._streams[at] for at, _ in ready if at in self._streams}
                for stream in found.values():
                    stream.is_busy = True
            self._take(found)

    def _take(self, streams: dict[int, WaitingStream]) -> None:
        """Take a turn for streams of which something has come."""
        group: dict[int, ReceivedRequest] = {}
        for number, stream in streams.items():
            stream.call.works()
            try:
                request = _request_of(stream)
            except Exception as error:  # noqa: BLE001 - raised in the stream's own thread
                stream.failure = error
                continue
            if request is not None:
                group[number] = request
        try:
            results = self._puts.put_turn([request.data for request in group.values()])
            self._answer(streams, group, results)
        except BaseException as error:  # noqa: BLE001 - each thread gets it, and this one lives on
            for number in group:
                streams[number].failure = error
        with self._lock:
            for number, stream in streams.items():
                stream.is_busy = False
                if number in group and not _has_to_act(stream):
                    stream.call.waits()
                    continue
                del self._streams[number]
                self._poll.unregister(number)
                stream.gate.release()

    def _answer(
        self,
        streams: dict[int, WaitingStream],
        group: dict[int, ReceivedRequest],
        results: Sequence[PutResult | None],
    ) -> None:
        for (number, request), result in zip(group.items(), results, strict=True):
            stream = streams[number]
            if result is None:
                stream.left = request
                continue
            request.release()
            answer = stream.answer(request.head.opaque, result)
            stream.is_over = answer.status in TRANSIENT
            try:
                stream.rest = stream.call.connection.answer_now(answer.to_bytes(), answer.number)
            except EndedError as error:
                stream.failure = error


def _has_to_act(stream: WaitingStream) -> bool:
    """Return whether the thread of a stream continues with it."""
    return bool(
        stream.left is not None or stream.rest or stream.is_over or stream.failure is not None
    )


def _request_of(stream: WaitingStream) -> ReceivedRequest | None:
    """Return a block that can be stored with others; None if the stream's thread has to act."""
    connection = stream.call.connection
    try:
        request = connection.ready()
    except (RmqStoreError, OSError):
        return None  # the thread meets it again
    if request is None:  # the client has gone, or a part of a request has come
        return None
    is_usual = (
        request.head.code == Code.BLOCK
        and not connection.has_more
        and is_single(request.data)
        and stream.allows()
    )
    if is_usual:
        return request
    stream.left = request
    return None
