"""Pulls a range of a queue, a few stretches of it at the same time.

A broker gives at most 32 messages or 256 KiB for a pull (`maxTransferCountOnMessageInMemory`,
`maxTransferBytesOnMessageInMemory`), fewer from disk. One pull after the other would spend most of
its time on the way.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from rmqstore_spark.client.brokers.answers import Pulled
from rmqstore_spark.client.brokers.broker import ALL_TAGS, BrokerClient, QueueName
from rmqstore_spark.errors import ReplicaError
from rmqstore_spark.remoting.codec.codes import ResponseCode

__all__ = ["PulledPiece", "QueuePuller"]

_STRETCH: Final = 512
_FILTERED_STRETCH: Final = 8192
_AT_ONCE: Final = 8
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_GONE: Final = "MESSAGE_WAS_REMOVING"


@dataclass(frozen=True)
class PulledPiece:
    """What one pull gave of a range.

    Attributes:
        start: the offset that was asked for.
        end: one past the last offset that this is about.
        data: the records, one after the other. With a tag expression, and only then, there may be
            fewer than offsets, and some from `end` on, which belong to the next piece.
        why_gone: why there are no messages; "" unless they are lost.
    """

    start: int
    end: int
    data: bytes = b""
    why_gone: str = ""


@dataclass(eq=False)
class _Stretch:
    """A part of the range.

    Attributes:
        at: the next offset to pull.
        held: bytes of its pieces.
        task: pulls it, during `QueuePuller.take`.
    """

    at: int
    end: int
    pieces: list[PulledPiece] = field(default_factory=list)
    held: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def is_whole(self) -> bool:
        return self.at >= self.end

    def add(self, piece: PulledPiece) -> None:
        self.pieces.append(piece)
        self.held += len(piece.data)
        self.at = piece.end


class QueuePuller:
    """Pulls the messages of a range of offsets, in their order.

    Args:
        client: asks the broker.
        queue: the queue.
        start, end: the offsets `start` to `end - 1`.
        tags: a tag expression for the broker.
    """

    def __init__(
        self, client: BrokerClient, queue: QueueName, start: int, end: int, tags: str = ALL_TAGS
    ) -> None:
        self._client = client
        self._queue = queue
        self._next = start
        self._end = end
        self._tags = tags
        self._length = _STRETCH if tags == ALL_TAGS else _FILTERED_STRETCH
        self._stretches: deque[_Stretch] = deque()
        self._is_pausing = False

    def take(self, rows: int, size: int) -> list[PulledPiece]:
        """Return the next pieces, in order; none at the end of the range.

        Nothing is on the way when this returns, so that the connection may rest.

        Args:
            rows: about how many offsets.
            size: about how many bytes; at most about twice as many are held.

        Raises:
            ServiceError: the broker does not answer, or its answer makes no sense.
            TopicNotFoundError: it no longer has the topic.
            RemotingError: it refuses a pull.
            ReplicaError: only a slave answers, and it stays behind.
        """
        return self._client.session.run(self._take(rows, size))

    async def _take(self, rows: int, size: int) -> list[PulledPiece]:
        taken: list[PulledPiece] = []
        count = held = 0
        self._is_pausing = False
        try:
            while count < rows and held < size and self._fill():
                for stretch in self._stretches:
                    if stretch.task is None or stretch.task.done():
                        stretch.task = asyncio.create_task(self._pull(stretch, size))
                head = self._stretches[0]
                assert head.task is not None  # noqa: S101  # just made
                await head.task
                if not head.is_whole:
                    continue  # it had ended for want of room, while another one was the first
                self._stretches.popleft()
                taken += head.pieces
                count += head.pieces[-1].end - head.pieces[0].start if head.pieces else 0
                held += head.held
        finally:
            self._is_pausing = True
            tasks = [stretch.task for stretch in self._stretches if stretch.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            for stretch in self._stretches:
                stretch.task = None  # what failed is tried again when its turn comes
        return taken

    def _fill(self) -> bool:
        """Begin stretches; return whether any are left."""
        while len(self._stretches) < _AT_ONCE and self._next < self._end:
            end = min(self._next + self._length, self._end)
            self._stretches.append(_Stretch(self._next, end))
            self._next = end
        return bool(self._stretches)

    async def _pull(self, stretch: _Stretch, size: int) -> None:
        """Pull a stretch until it is whole, the caller pauses, or there is no room for more."""
        late: _Patience | None = None
        while not stretch.is_whole and not self._is_pausing:
            if stretch is not self._stretches[0] and self._held >= size:
                return
            pulled, is_first = await self._client.pull(
                self._queue, stretch.at, stretch.end - stretch.at, self._tags
            )
            piece = self._piece(stretch, pulled, is_first)
            if piece is not None:
                stretch.add(piece)
                late = None
                continue
            late = late or _Patience(self._client.session.timeout_s)
            if late.is_over:
                topic, queue_id = self._queue
                raise ReplicaError(
                    f"{self._client.name} does not have offset {stretch.at} of {topic}/{queue_id} "
                    f"yet ({pulled.status}): only a slave answers, and it is behind its master.",
                    can_pass=True,
                )
            await late.pause()

    @property
    def _held(self) -> int:
        return sum(stretch.held for stretch in self._stretches)

    def _piece(self, stretch: _Stretch, pulled: Pulled, is_first: bool) -> PulledPiece | None:
        """Return what a pull gave; None if a slave does not have the offset yet."""
        at, end = stretch.at, min(pulled.next, stretch.end)
        if pulled.code == ResponseCode.SUCCESS:
            return PulledPiece(at, end, pulled.data)
        if pulled.next > at:
            # The queue begins later, the messages expired, or a file of the queue did. Only with
            # tags can a broker pass over messages that are there.
            is_filtered = (
                pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                and pulled.status != _GONE
                and self._tags != ALL_TAGS
            )
            why = "" if is_filtered else f"{end - at} messages from offset {at} on have expired"
            return PulledPiece(at, end, why_gone=why)
        if is_first:  # the queue ends here, although it did not when the query was planned
            why = f"the queue ends at {at}: it was cut, or deleted and recreated"
            return PulledPiece(at, stretch.end, why_gone=why)
        return None


class _Patience:
    """How long to wait for a slave.

    Args:
        seconds: when its time is over.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
