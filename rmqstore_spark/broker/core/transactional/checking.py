"""Asks producers for the outcome of transactions that have waited for too long.

The store decides when (`engine.transactions.checks`). Each check goes to one connection of the
producer group, in turn. The answer is a request to end the transaction, or none.
Upstream: AbstractTransactionalMessageCheckListener, Broker2Client, ProducerManager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.broker.core.clients import Clients
from rmqstore_spark.broker.core.peer import Peer
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.constants import TRANS_HALF_TOPIC
from rmqstore_spark.layout.record.addressee import addressees
from rmqstore_spark.layout.record.half import restored
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.reader.transactions import Transaction

_MOST_OF_GROUP: Final = 64
"""Most checks of a group in a round: its producers must keep up."""
_MOST_BYTES: Final = 16 << 20
"""About the most bytes of half messages that are sent in a round."""


class Check(NamedTuple):
    """A question for the outcome of a transaction.

    Attributes:
        half: the half message.
        msg_id: its id, by which its place is known.
        key: that its producer has given it; "" if none.
        topic: to which the message is sent if it is committed.
        record: the message, as it would then be.
    """

    half: HalfId
    msg_id: str
    key: str
    topic: str
    record: bytes


class Checking:
    """Asks producers. Used by one thread.

    Args:
        store: the store.
        clients: knows the connections of producer groups.
        may_learn: returns whether one of them may be shown the messages of a topic.
        ask: asks one of them.
    """

    def __init__(
        self,
        store: StoreWriter,
        clients: Clients,
        may_learn: Callable[[Peer, str], bool],
        ask: Callable[[Peer, Check], None],
    ) -> None:
        self._transactions = store.transactions
        self._reader = store.queue_reader()
        self._clients = clients
        self._may_learn = may_learn
        self._ask_one = ask
        self._turns = count()
        self._last = ""

    def close(self) -> None:
        """Close what it reads with."""
        self._reader.close()

    def handle(self, _jobs: Sequence[None]) -> None:
        """Ask the producers that are there for what is to be checked."""
        names = sorted(self._transactions.asked_groups)
        at = bisect_right(names, self._last)  # a group with much to check delays no other twice
        room = _MOST_BYTES
        for name in names[at:] + names[:at]:
            if room <= 0:
                break
            self._last = name
            room -= self._ask(name)

    def _ask(self, group: str) -> int:
        """Ask the producers of a group; return how many bytes that took."""
        ready = [
            connection
            for connection, _ in self._clients.producers(group)
            if connection.is_open and connection.has_room
        ]
        if not ready:
            return 0
        try:
            asked = self._transactions.take_asked(group, _MOST_OF_GROUP)
        except RefusedError:  # the store is being closed, or has failed
            return 0
        size = 0
        for one in asked:
            check = self._check(one)
            if check is None:
                continue
            # Anyone can name a group, and the check shows the message.
            able = [connection for connection in ready if self._may_learn(connection, check.topic)]
            if able:
                size += len(check.record)
                self._ask_one(able[next(self._turns) % len(able)], check)
        return size

    def _check(self, one: Transaction) -> Check | None:
        """Return the question for the outcome of a transaction; None if its half is damaged."""
        place = one.place
        record = self._reader.record(place.physical_offset)
        is_half = record is not None and string_array(record.topic)[0].as_py() == TRANS_HALF_TOPIC
        if record is None or not is_half:
            return None
        to = addressees(record, MOST_QUEUES)
        if not to.known[0]:
            return None
        msg_id = f"{record.store_host(0).hex().upper()}{place.physical_offset:016X}"
        topic = to.topics[0].as_py().decode()
        half = HalfId(place.queue_offset, place.physical_offset)
        return Check(half, msg_id, one.key, topic, restored(record, to, one.checks))
