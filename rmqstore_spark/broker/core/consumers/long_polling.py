"""Requests for messages that are not there yet: held until messages come, or their time is over.

Upstream: PullRequestHoldService, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from rmqstore_spark.broker.core.clients import Peer
from rmqstore_spark.broker.core.consumers.pulls import Pull, Pulls
from rmqstore_spark.broker.core.consumers.waiting_pulls import Queue, WaitingPulls
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.queue_reader import NoRoomForReadingError, Reading
from rmqstore_spark.errors import RmqStoreError

_log = logging.getLogger(__name__)

_MOST_STEPS: Final = 16
"""How often a request without messages for it is read on at once, before it gets an answer."""
_MOST_WOKEN: Final = 256
"""Requests that a message wakes and that are looked at together; all that come meanwhile wait."""


class Askers(Protocol):
    """Those who have asked: how a request that was held gets its answer."""

    def may_answer(self, pull: Pull) -> bool:
        """Return whether who has asked reads its answers."""

    def most_bytes(self, pull: Pull) -> int | None:
        """Return most bytes of the answer; None: as many as the configuration says."""

    def answer(self, pull: Pull, reading: Reading) -> None:
        """Give what was read."""

    def fail(self, pull: Pull, error: Exception) -> None:
        """Tell that reading failed."""

    def put_back(self, pull: Pull) -> None:
        """Have the request handed out again when its answer has room."""

    def drop(self, pull: Pull) -> None:
        """Forget the request: nobody needs an answer any more."""


class LongPolling:
    """Holds requests. Used by one thread at a time; any may ask whether one waits for a queue.

    Args:
        pulls: reads messages.
        askers: those who have asked.
    """

    def __init__(self, pulls: Pulls, askers: Askers) -> None:
        self._pulls = pulls
        self._askers = askers
        self._waiting = WaitingPulls()
        self._woken: dict[Pull, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, queue: Queue) -> bool:
        """Return whether a request waits for messages of a queue."""
        return queue in self._waiting

    def hold(self, pull: Pull, reading: Reading) -> None:
        """Let a request wait from now on, or answer it if there are too many for its queue.

        Raises:
            Refusal: there are too many of all, or of its client.
        """
        connection: Peer = pull.asker.connection
        if self._waiting.is_full(connection):
            remark = f"{len(self._waiting)} requests wait for messages, as many as may"
            raise Refusal(Reason.BUSY, remark)
        pull.ends = pull.asker.arrived + pull.hold_seconds
        if not self._waiting.add(pull):
            self._askers.answer(pull, reading)
        elif not connection.is_open:
            self._waiting.remove(pull)
            self._askers.drop(pull)
        elif self._pulls.has_more(pull):  # it came before anybody knew that this one waits
            self._look_again(pull)

    def wake(self, queues: Iterable[Queue]) -> None:
        """Take note that queues have grown: `look` looks at the requests that this concerns."""
        for queue in queues:
            if queue not in self._waiting:
                continue
            try:
                end, arrived = self._pulls.arrived(queue, self._waiting.tested(queue))
            except (RmqStoreError, OSError) as error:
                _log.warning("Could not read new queue entries: %s", error)
                end, arrived = self._waiting.tested(queue), None
            self._woken.update(dict.fromkeys(self._waiting.concerned(queue, end, arrived)))

    def look(self) -> bool:
        """Answer requests that were woken, as far as there are messages; some of them at a time.

        Returns:
            Whether more were woken.
        """
        for _ in range(min(len(self._woken), _MOST_WOKEN)):
            pull = next(iter(self._woken))
            del self._woken[pull]
            if self._waiting.has(pull):
                self._look_again(pull)
        return bool(self._woken)

    def end(self, now: float | None = None) -> None:
        """Answer requests whose time is over.

        Args:
            now: by `time.monotonic`; None: the time of all is over.
        """
        for pull in self._waiting.all() if now is None else self._waiting.ended(now):
            if not self._puts_back(pull):
                pull.offset = max(pull.offset, self._waiting.tested(pull.queue))
                self._answer(pull, self._read(pull))

    def closed(self, connection: Peer) -> None:
        """Forget the requests of a connection that has ended."""
        for pull in self._waiting.of_connection(connection):
            self._waiting.remove(pull)
            self._askers.drop(pull)

    # ---- parts -----------------------------------------------------------------------------------

    def _look_again(self, pull: Pull) -> None:
        """Answer a request that waits if there are messages for it now."""
        if self._puts_back(pull):
            return
        steps = 0
        reading = self._read(pull)
        while (
            reading is not None and reading.status == "NO_MATCHED_MESSAGE" and steps < _MOST_STEPS
        ):
            pull.offset = reading.next  # the next look begins there
            if reading.next >= reading.most:
                return
            reading, steps = self._read(pull), steps + 1
        if reading is not None and not self._pulls.is_held(pull, reading):
            self._answer(pull, reading)

    def _puts_back(self, pull: Pull) -> bool:
        """Return a request that waits to its connection, if that does not read its answers."""
        if self._askers.may_answer(pull):
            return False
        self._waiting.remove(pull)
        self._askers.put_back(pull)
        return True

    def _read(self, pull: Pull) -> Reading | None:
        """Read messages for a request that waits; None if it does not wait any more."""
        try:
            return self._pulls.read(pull, most_bytes=self._askers.most_bytes(pull))
        except NoRoomForReadingError:
            self._waiting.remove(pull)
            self._askers.put_back(pull)
        except (RmqStoreError, OSError) as error:
            self._waiting.remove(pull)
            self._askers.fail(pull, error)
        return None

    def _answer(self, pull: Pull, reading: Reading | None) -> None:
        if reading is not None:
            self._waiting.remove(pull)
            self._askers.answer(pull, reading)
