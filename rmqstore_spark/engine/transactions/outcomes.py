"""What the end of transactions stores and answers: messages, and the op messages after them.

(Upstream: EndTransactionProcessor.endMessageTransaction, TransactionalMessageBridge.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine.append.appender import Stored
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqstore_spark.layout.record.addressee import addressees
from rmqstore_spark.layout.record.block import Block, Route, read_block
from rmqstore_spark.layout.record.delayed import has_sound_delay, schedule
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records
from rmqstore_spark.layout.record.half import committed, given_up
from rmqstore_spark.layout.spans import I8, U1, text_pool
from rmqstore_spark.produce.records import Origin, record_batch
from rmqstore_spark.reader.transactions import Transaction

_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
ENDED_BEFORE: Final = "ENDED_BEFORE"
HELD_UP: Final = "HELD_UP"
MOST_AT_ONCE: Final = 1 << 12
MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Made:
    """What the end of transactions stores.

    Attributes:
        data: uint8, records, unstamped: the messages, if there are any, then the op messages.
        ended: the transactions that it ends.
        halves: n, the half message that each op message ends.
        routes: the queues of the messages.
    """

    data: U1
    ended: Sequence[Transaction]
    halves: I8
    routes: Sequence[Route] = ()


@dataclass(frozen=True)
class _Halves:
    """Sound half messages, and which of some transactions they belong to."""

    records: Records
    rows: I8

    @classmethod
    def read(cls, waiting: Sequence[Transaction], buffer: U1, positions: I8) -> _Halves:
        sizes = np.array([one.place.size for one in waiting], np.int32)
        offsets = np.array([one.place.physical_offset for one in waiting], np.int64)
        records = check_crcs(decode_records(buffer, positions, sizes), bodies=True)
        sound = (records.status == 0) & (records.physical_offset == offsets)
        half = text_pool([TRANS_HALF_TOPIC]).take(np.zeros(len(sound), np.int64))
        rows = np.flatnonzero(sound & records.topic.equal(half))
        return cls(records.take(rows), rows)


class Outcomes:
    """Makes records.

    Args:
        config: the store's configuration.
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, config: StoreConfig, clock: Callable[[], int]) -> None:
        self._v6 = config.store_host_v6
        self._host = config.host[0]
        self._delays = config.delays
        self._clock = clock

    def ops(self, ended: Sequence[Transaction]) -> Made:
        """Return the op messages that end transactions, one for each half message."""
        offsets = [place.queue_offset for one in ended for place in one.places]
        batch = record_batch(
            {
                "topic": pa.repeat(TRANS_OP_HALF_TOPIC, len(offsets)),
                "body": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
                "properties": pa.repeat(pa.scalar(_OP_PROPERTIES, pa.binary()), len(offsets)),
            },
            Origin(self._clock(), self._host),
            self._host,
        )
        return Made(encode_records(batch).data, ended, np.array(offsets, np.int64))

    def commits(self, waiting: Sequence[Transaction], buffer: U1, positions: I8) -> Made:
        """Return the messages of transactions, and their op messages.

        Transactions whose half message is damaged, or names no queue, or a delay that is not a
        number, are left out.

        Args:
            waiting: n transactions.
            buffer: uint8, holds their half messages.
            positions: n, where.
        """
        found = _Halves.read(waiting, buffer, positions)
        to = addressees(found.records, MOST_QUEUES)
        good = np.flatnonzero(to.known & has_sound_delay(found.records))
        if len(good) < len(found.rows):
            found = _Halves(found.records.take(good), found.rows[good])
            to = addressees(found.records, MOST_QUEUES)
        if not len(good):
            return self.ops([])
        ended = [waiting[row] for row in found.rows.tolist()]
        data = committed(found.records, to, found.records.physical_offset, store_host_v6=self._v6)
        block = read_block(data, max_rows=len(ended))
        routes = block.routes
        if block.delayed:
            block = schedule(block, self._delays)
        return self._with_ops(block, ended, routes)

    def give_up(self, waiting: Sequence[Transaction], buffer: U1, positions: I8) -> Made:
        """Return the messages for TRANS_CHECK_MAX_TIME_TOPIC, and their op messages.

        Args are those of `commits`. Damaged half messages are left out.
        """
        found = _Halves.read(waiting, buffer, positions)
        if not len(found.rows):
            return self.ops([])
        ended = [waiting[row] for row in found.rows.tolist()]
        properties = addressees(found.records, MOST_QUEUES).properties
        data = given_up(found.records, properties, store_host_v6=self._v6)
        block = read_block(data, max_rows=len(ended))
        return self._with_ops(block, ended, block.routes)

    def _with_ops(
        self, block: Block, ended: Sequence[Transaction], routes: Sequence[Route]
    ) -> Made:
        ops = self.ops(ended)
        return Made(np.concatenate([block.data, ops.data]), ended, ops.halves, routes)


@dataclass(frozen=True)
class Ended:
    """The answer to a request to end a transaction.

    Attributes:
        status: COMMITTED, ROLLED_BACK, or ENDED_BEFORE: the transaction had ended, however, and
            nothing was stored. HELD_UP: it waits on until the commit of a batch to the same queues
            is over. Otherwise a status of a put, and the transaction waits on.
        remark: why it waits on, or what its message lacks that is in the log.
    """

    status: str
    remark: str = ""


def unknown(half: HalfId, group: str) -> Ended:
    """Return the answer for a half message that a producer group does not have."""
    return Ended(
        PutStatus.MESSAGE_ILLEGAL,
        f"There is no half message of the producer group {group[:255]!r} at offset "
        f"{half.queue_offset} (physical offset {half.physical_offset}).",
    )


def answers(
    found: Sequence[Transaction | Ended], statuses: dict[int, str], lacking: str
) -> list[Ended]:
    """Return the answers to a request.

    Args:
        found: n, the transaction of each half message of the request, or the answer if it has none
            that waits.
        statuses: COMMITTED or ROLLED_BACK, by the newest half message of those that have ended now;
            HELD_UP of those that could not.
        lacking: what their messages lack that are in the log.
    """
    made = []
    for one in found:
        if isinstance(one, Ended):
            made.append(one)
            continue
        offset = one.place.queue_offset
        status = statuses.get(offset)
        if status == HELD_UP:
            made.append(Ended(HELD_UP))
        elif status is not None:
            made.append(Ended(status, "" if status == ENDED_BEFORE else lacking))
            statuses[offset] = ENDED_BEFORE  # if the request names it again
        else:
            made.append(
                Ended(
                    PutStatus.MESSAGE_ILLEGAL,
                    "The half message is damaged, or names no topic and queue, or has a delay that "
                    "is not a number.",
                )
            )
    return made


def lacking(durability: Durability, last: Stored | None) -> str:
    """Wait for the disk and slaves, as configured; return what is lacking then.

    Args:
        durability: waits.
        last: the last that was stored; None: nothing was.

    Raises:
        RefusedError: it is unknown whether the transactions have ended.
    """
    try:
        found = None
        if last is not None:
            found = durability.await_put(last.end_offset, last.term)
    except StoreWriteError as error:
        raise RefusedError(
            "Until the store is reopened, it is unknown whether the transactions have ended: "
            f"{error}",
            PutStatus.SERVICE_NOT_AVAILABLE,
            is_open=True,
        ) from error
    if found is None:
        return ""
    if found.is_open:
        raise RefusedError(found.remark, found.status, is_open=True)
    return f"{found.status}: {found.remark}"


def split(
    ended: Sequence[Transaction], held: npt.NDArray[np.bool_]
) -> tuple[list[Transaction], list[Transaction]]:
    """Return the transactions that are held up, and the others.

    Args:
        ended: n transactions.
        held: whether each is held up, as the first n records that end them.
    """
    found: tuple[list[Transaction], list[Transaction]] = [], []
    for one, is_held in zip(ended, held.tolist(), strict=False):
        found[not is_held].append(one)
    return found


def parts_of(waiting: Sequence[Transaction]) -> Iterator[Sequence[Transaction]]:
    """Split transactions into parts that are stored together, by number and bytes."""
    part: list[Transaction] = []
    size = 0
    for one in waiting:
        if part and (len(part) == MOST_AT_ONCE or size + one.place.size > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(one)
        size += one.place.size
    if part:
        yield part
