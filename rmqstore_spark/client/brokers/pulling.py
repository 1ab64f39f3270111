"""Pulls a range of a queue, a few stretches of it at the same time.

A broker gives at most 32 messages or 256 KiB for a pull (`maxTransferCountOnMessageInMemory`,
`maxTransferBytesOnMessageInMemory`), fewer from disk. One pull after the other would spend most of
its time on the way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rmqstore_spark.client.brokers.answers import Pulled
from rmqstore_spark.client.brokers.broker import (
    ALL_TAGS,
    BrokerClient,
    QueueName,
    pull_request,
)
from rmqstore_spark.client.brokers.pipe import PipeError
from rmqstore_spark.client.brokers.server_group import Answered
from rmqstore_spark.errors import ReplicaError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_STRETCH: Final = 512
_FILTERED_STRETCH: Final = 8192
_AT_ONCE: Final = 8
_GONE: Final = "MESSAGE_WAS_REMOVING"


@dataclass(frozen=True)
class PulledPiece:
    """What one pull gave of a range.

    Attributes:
        start: the offset that was asked for.
        end: one past the last offset that this is about.
        data: the records, one after the other. With a tag expression, or if messages have expired,
            there may be fewer than offsets, and some from `end` on, which belong to the next piece.
        why_gone: why there are no messages; "" unless they are lost.
        void: how many of the offsets have void entries, if that is known.
    """

    start: int
    end: int
    data: bytes = b""
    why_gone: str = ""
    void: int = 0


@dataclass(eq=False)
class _Stretch:
    """A part of the range.

    Attributes:
        at: the next offset to pull.
        held: bytes of its pieces.
        is_asked: whether a pull is on the way.
        late_at: monotonic seconds until when the next message is waited for, which a slave does not
            have; None if none has said so.
    """

    at: int
    end: int
    pieces: list[PulledPiece] = field(default_factory=list)
    held: int = 0
    is_asked: bool = False
    late_at: float | None = None

    @property
    def is_whole(self) -> bool:
        return self.at >= self.end

    def add(self, piece: PulledPiece) -> None:
        self.pieces.append(piece)
        self.held += len(piece.data)
        self.at = piece.end
        self.late_at = None


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
        taking = _Taking(self, rows, size)
        self._client.servers.run(taking)
        return taking.pieces

    def fill(self) -> deque[_Stretch]:
        """Begin stretches, and return those that are not taken yet."""
        while len(self._stretches) < _AT_ONCE and self._next < self._end:
            end = min(self._next + self._length, self._end)
            self._stretches.append(_Stretch(self._next, end))
            self._next = end
        return self._stretches

    def pull(self, stretch: _Stretch) -> Command:
        """Return the next pull of a stretch."""
        stretch.is_asked = True
        return pull_request(self._queue, stretch.at, stretch.end - stretch.at, self._tags)

    def take_answer(self, stretch: _Stretch, asked: Command, answer: Answered) -> None:
        """Take the answer to a pull of a stretch."""
        stretch.is_asked = False
        pulled = self._client.read_pull(asked, answer.command)
        piece = self._piece(stretch, pulled, answer.is_master)
        stretch.add(self._waited_for(stretch, pulled) if piece is None else piece)

    def _piece(self, stretch: _Stretch, pulled: Pulled, is_master: bool) -> PulledPiece | None:
        """Return what a pull gave; None if only a slave does not have the messages."""
        at, end = stretch.at, min(pulled.next, stretch.end)
        if pulled.code == ResponseCode.SUCCESS:
            return PulledPiece(at, end, pulled.data, void=pulled.void)
        # Only with tags can a broker pass over messages that are there.
        if (
            pulled.next > at
            and pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and pulled.status != _GONE
            and (self._tags != ALL_TAGS or pulled.void == pulled.next - at)
        ):
            return PulledPiece(at, end, void=pulled.void)
        if not is_master:
            return None
        if pulled.next > at:  # the queue begins later, the messages or a file of it expired
            return self._expired(at, end)
        # The queue ends here, although it did not when the query was planned.
        why = f"the queue ends at {at}: it was cut, or deleted and recreated"
        return PulledPiece(at, stretch.end, why_gone=why)

    def _waited_for(self, stretch: _Stretch, pulled: Pulled) -> PulledPiece:
        """Return what it means that a slave does not have messages, when the time is over.

        Raises:
            PipeError: it is not: the master may come back, or another slave have them.
            ReplicaError: the slave may have them later.
        """
        servers = self._client.servers
        topic, queue_id = self._queue
        told = f"{servers.name} does not have offset {stretch.at} of {topic}/{queue_id}"
        if stretch.late_at is None:
            stretch.late_at = time.monotonic() + servers.timeout_s
        if time.monotonic() < stretch.late_at:
            raise PipeError(f"{told} ({pulled.status}), and only a slave answers.")
        if pulled.next > stretch.at:
            return self._expired(stretch.at, min(pulled.next, stretch.end))
        raise ReplicaError(
            f"{told} yet ({pulled.status}): only a slave answers, and it is behind its master.",
            can_pass=True,
        )

    @staticmethod
    def _expired(at: int, end: int) -> PulledPiece:
        why = f"{end - at} messages from offset {at} on have expired"
        return PulledPiece(at, end, why_gone=why)


class _Taking:
    """The pulls of one `QueuePuller.take`: an exchange that ends when there is enough.

    Attributes:
        pieces: what was taken.
    """

    def __init__(self, puller: QueuePuller, rows: int, size: int) -> None:
        self.pieces: list[PulledPiece] = []
        self._puller = puller
        self._rows = rows
        self._size = size
        self._asked: dict[int, _Stretch] = {}
        self._collect()

    def due(self, room: int) -> Sequence[Command]:
        if self._rows <= 0 or self._size <= 0:
            return ()
        commands = []
        for stretch in [one for one in self._stretches() if not one.is_asked][:room]:
            command = self._puller.pull(stretch)
            self._asked[id(command)] = stretch
            commands.append(command)
        return commands

    def _stretches(self) -> list[_Stretch]:
        """Return the stretches to continue with: the first one, and others while there is room."""
        stretches = self._puller.fill()
        held = sum(stretch.held for stretch in stretches)
        return [
            stretch
            for number, stretch in enumerate(stretches)
            if not stretch.is_whole and (number == 0 or held < self._size)
        ]

    def answered(self, asked: Command, answer: Answered) -> None:
        self._puller.take_answer(self._asked.pop(id(asked)), asked, answer)
        self._collect()

    def _collect(self) -> None:
        """Take the stretches that are whole, from the first one on, until there is enough."""
        stretches = self._puller.fill()
        while stretches and stretches[0].is_whole and self._rows > 0 and self._size > 0:
            head = stretches.popleft()
            self.pieces += head.pieces
            self._rows -= head.pieces[-1].end - head.pieces[0].start
            self._size -= head.held
