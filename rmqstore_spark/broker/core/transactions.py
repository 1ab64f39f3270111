"""Ends transactions of producers as they ask, and asks for the outcome of those that wait too long.

Both stand on the store's own transactions (`engine.transactions`), as clients of the endpoint do:
a transaction ends once, from wherever it is asked for, and who asks again is told so. The store
decides when to check. Each check goes to one connection of the producer group, in turn; the answer
is a request to end the transaction, or none.

Upstream: EndTransactionProcessor, AbstractTransactionalMessageCheckListener, ProducerManager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients, Peer
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.engine.transactions.outcomes import (
    COMMITTED,
    ENDED_BEFORE,
    HELD_UP,
    ROLLED_BACK,
    Ended,
)
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.constants import TRANS_HALF_TOPIC
from rmqstore_spark.layout.record.addressee import addressees
from rmqstore_spark.layout.record.half import restored
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.reader.transactions import Transaction

_NOT_FOUND: Final = "Find prepared transaction message failed"
_LOOK_S: Final = 1.0
_AGAIN: Final = "The transaction had ended before; nothing was stored."


@dataclass(slots=True)
class End:
    """A producer's word about a transaction.

    Attributes:
        group: the producer group.
        half: the half message.
        is_commit: whether to commit it; None: the producer does not know yet.
        asker: the request, for who answers it; it is not looked at here.
        remark: of the answer, once it has ended; "" for none.
    """

    group: str
    half: HalfId
    is_commit: bool | None
    asker: Any = None
    remark: str = ""

    @property
    def name(self) -> tuple[str, HalfId]:
        """What names the transaction."""
        return self.group, self.half


class Ending:
    """Ends transactions. Thread-safe.

    Args:
        store: the store.
        catalog: knows whether it is a slave.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog) -> None:
        self._store = store
        self._transactions = store.transactions
        self._catalog = catalog

    def require_master(self) -> None:
        """Refuse to end transactions on a slave.

        Raises:
            Refusal: this is one.
        """
        if self._catalog.is_slave:
            raise Refusal(
                Reason.SLAVE, "Message store is slave mode, so end transaction is forbidden."
            )

    def end_all(
        self,
        ends: Sequence[End],
        ended: Callable[[End], None],
        failed: Callable[[Sequence[End], Exception], None],
    ) -> list[End]:
        """End transactions, and wait for no commit of a batch.

        Args:
            ends: which; each says whether to commit it.
            ended: is called with each one that has ended, now or before.
            failed: is called with those that have not, and why: a Refusal, or a bug.

        Returns:
            Those that a commit holds up, and those of the same transactions that came after them.
        """
        held = list[End]()
        left = ends
        while left:
            left = self._end_some(left, ended, failed, held)
            names = {end.name for end in held}
            held += [end for end in left if end.name in names]
            left = [end for end in left if end.name not in names]
        return held

    def await_commit(self) -> None:
        """Wait until a commit that holds up ends is over, or for a second."""
        self._store.await_commit(_LOOK_S)

    def _end_some(
        self,
        ends: Sequence[End],
        ended: Callable[[End], None],
        failed: Callable[[Sequence[End], Exception], None],
        held: list[End],
    ) -> list[End]:
        """End transactions, those of a group and outcome together; return what must come later.

        These ask for another outcome of a transaction that an earlier request has ended here. Those
        that a commit holds up are added to a list.
        """
        together: dict[tuple[str, bool], list[End]] = {}
        outcomes: dict[tuple[str, HalfId], bool] = {}
        later = []
        for end in ends:
            is_commit = bool(end.is_commit)
            if outcomes.setdefault(end.name, is_commit) == is_commit:
                together.setdefault((end.group, is_commit), []).append(end)
            else:
                later.append(end)
        for (group, is_commit), part in together.items():
            halves = [end.half for end in part]
            try:
                done = self._transactions.end(group, halves, is_commit=is_commit, patient=False)
            except RefusedError as error:
                failed(part, Refusal(Reason.UNAVAILABLE, str(error.args[0])))
                continue
            except Exception as error:  # noqa: BLE001 - one must not fail those of other clients
                failed(part, error)
                continue
            for end, found in zip(part, done, strict=True):
                if found.status == HELD_UP:
                    held.append(end)
                    continue
                try:
                    end.remark = _remark(found)
                except Refusal as error:
                    failed([end], error)
                else:
                    ended(end)
        return later


def _remark(ended: Ended) -> str:
    if ended.status in (COMMITTED, ROLLED_BACK):
        return ended.remark
    if ended.status == ENDED_BEFORE:
        return _AGAIN
    raise Refusal(Reason.WRONG, f"{_NOT_FOUND}\n{ended.remark}")


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
