"""Transactional messages: a client that puts half messages, ends their transactions, and is asked.

    producer = client.producer("orders")
    halves = producer.put({"topic": ..., "body": ...})   # nobody can read them
    ...                                                  # the local transaction
    producer.commit(halves)                              # or roll_back

A half message that waits for long is checked: `answer_checks` asks a `TransactionChecker`.
(Upstream: TransactionMQProducer, TransactionListener.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.client.connection import Connection
from rmqstore_spark.client.streams import PutStream
from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.layout.constants import (
    PROPERTY_PGROUP,
    PROPERTY_TRAN_MSG,
    group_fault,
)
from rmqstore_spark.produce.encoder import MessageEncoder
from rmqstore_spark.produce.queue_choice import Queues, Router
from rmqstore_spark.wire.messages import MOST_LISTED, ChecksRequest, EndReply, EndRequest
from rmqstore_spark.wire.protocol import Code
from rmqstore_spark.wire.reading import OpenReply, TopicSettings

_SEPARATOR: Final = b"\x02"
_MOST_CHECKS: Final = 32


class TransactionChecker(Protocol):
    """Knows how the local transactions of a producer group ended."""

    def check(self, message: Mapping[str, Any]) -> bool | None:
        """Return the outcome of the transaction of a message.

        Args:
            message: the columns of its half message. The property REAL_TOPIC names its topic.

        Returns:
            True: commit it. False: roll it back. None: it is not known yet.
        """
        ...


class TransactionProducer:
    """Puts transactional messages of a producer group. Used by one thread at a time.

    Args:
        connection: the connection to the store process.
        group: the producer group.
        open_topics: returns the settings of topics, and creates them if the store does.

    Raises:
        OptionError: no broker accepts the group's name.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        open_topics: Callable[[Sequence[str]], OpenReply],
    ) -> None:
        fault = group_fault(group, "producer")
        if fault is not None:
            raise OptionError(fault)
        self._connection = connection
        self._group = group
        self._open = open_topics
        self._topics: dict[str, TopicSettings] = {}
        self._encoder = MessageEncoder(Router(self._queues))
        marks = f"{PROPERTY_TRAN_MSG}\x01true\x02{PROPERTY_PGROUP}\x01{group}".encode()
        self._marks = pa.scalar(marks, pa.binary())

    def put(self, columns: Mapping[str, pa.Array]) -> list[HalfId]:
        """Put messages as half messages: all of them or none.

        Args:
            columns: as `MessageEncoder.prepare` takes them: `topic` and `body`, and optionally
                `tags`, `keys`, `properties`, `queueId`, `delayTimeLevel` and others. A property
                CHECK_IMMUNITY_TIME_IN_SECONDS delays the first check.

        Returns:
            What names each half message.

        Raises:
            RowError: a message cannot be stored.
            RefusedError: the store did not store them, or not as safely as it should; then
                they are rolled back.
            ServiceError: the store process cannot be reached. Half messages that it stored then
                are checked.
        """
        names = pc.unique(columns["topic"]).to_pylist()
        reply = self._open([name for name in names if name is not None])
        self._topics.update(reply.topics)
        ready = self._encoder.prepare(columns)
        marked = pc.binary_join_element_wise(
            ready.columns["properties"].cast(pa.binary()), self._marks, _SEPARATOR
        )
        ready = replace(ready, columns={**ready.columns, "properties": marked})
        data = ready.encode(store_host_v6=reply.store_host_v6).data
        with PutStream(self._connection, results=True, halves=True) as stream:
            done = stream.put(data)
        if done.queue_offset is None or done.physical_offset is None:
            raise RefusedError(f"The half messages were not stored: {done.remark}", done.status)
        places = zip(done.queue_offset.tolist(), done.physical_offset.tolist(), strict=True)
        halves = [HalfId(*place) for place in places]
        if not done.is_ok:
            # As RocketMQ's client: a program must not rely on halves that a power cut can lose.
            self.roll_back(halves)
            raise RefusedError(f"The half messages may not last: {done.remark}", done.status)
        return halves

    def commit(self, halves: Sequence[HalfId]) -> EndReply:
        """Commit transactions: their messages can be read, each once.

        Returns:
            The outcome for each: COMMITTED, or ENDED_BEFORE for one that had ended, whether it was
            committed or rolled back. Any other status means that the transaction waits on.

        Raises:
            RefusedError: the store accepts nothing at present.
            ServiceError: the store process cannot be reached. Repeating the call does no harm.
        """
        return self._end(halves, is_commit=True)

    def roll_back(self, halves: Sequence[HalfId]) -> EndReply:
        """Roll back transactions: nobody reads their messages; see `commit`."""
        return self._end(halves, is_commit=False)

    def checks(self, most: int = _MOST_CHECKS) -> pa.Table:
        """Return half messages whose outcome the store asks for.

        Each check is returned once, to one of the producers of the group.

        Args:
            most: the most half messages, up to 1024.
        """
        request = ChecksRequest(self._group, most)
        return self._connection.call_table(Code.TRANSACTION_CHECKS, request)

    def answer_checks(self, checker: TransactionChecker) -> int:
        """Ask a checker for the outcome of each half message that the store asks for.

        Returns:
            How many transactions were ended. What the checker raises is raised, after the outcomes
            that it returned before have been sent.
        """
        known: dict[bool, list[HalfId]] = {True: [], False: []}
        try:
            for message in self.checks().to_pylist():
                outcome = checker.check(message)
                if outcome is not None:
                    half = HalfId(message["queueOffset"], message["physicalOffset"])
                    known[outcome].append(half)
        finally:  # what the checker knew before it failed counts: the store asks once
            for is_commit, halves in known.items():
                if halves:
                    self._end(halves, is_commit=is_commit)
        return sum(map(len, known.values()))

    def _end(self, halves: Sequence[HalfId], *, is_commit: bool) -> EndReply:
        statuses: list[str] = []
        remarks: list[str] = []
        for first in range(0, len(halves), MOST_LISTED):
            part = halves[first : first + MOST_LISTED]
            request = EndRequest(
                self._group,
                tuple(half.queue_offset for half in part),
                tuple(half.physical_offset for half in part),
                is_commit,
            )
            reply = self._connection.call(Code.END_TRANSACTIONS, request, EndReply)
            statuses += reply.statuses
            remarks += reply.remarks
        return EndReply(tuple(statuses), tuple(remarks))

    def _queues(self, topic: str) -> Queues:
        return Queues.of([self._topics[topic].write_queue_nums])
