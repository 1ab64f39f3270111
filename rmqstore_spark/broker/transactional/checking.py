"""Asks producers for the outcome of transactions that have waited for too long.

The store decides when (`engine.transactions.checks`). Each check goes to one connection of the
producer group, in turn. The answer is a request to end the transaction, or none.
Upstream: AbstractTransactionalMessageCheckListener, Broker2Client, ProducerManager.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import count
from typing import Final

from rmqstore_spark.broker.acl.gate import Gate
from rmqstore_spark.broker.clients import Clients
from rmqstore_spark.broker.worker import Worker
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.errors import FrameError, RefusedError
from rmqstore_spark.layout.constants import TRANS_HALF_TOPIC
from rmqstore_spark.layout.record.addressee import addressees
from rmqstore_spark.layout.record.half import restored
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.printable import escaped
from rmqstore_spark.reader.transactions import Transaction
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.peerlog import PeerLog

__all__ = ["Checking"]

_LOOK_SECONDS: Final = 0.5
_MOST_OF_GROUP: Final = 64
"""Most checks of a group in a round: its producers must keep up."""
_MOST_BYTES: Final = 16 << 20
"""About the most bytes of half messages that are sent in a round."""


class Checking:
    """Asks producers, in a thread of its own. Create it in the thread of a running event loop.

    Args:
        store: the store.
        clients: knows the connections of producer groups.
        gate: knows which of them may be shown the messages of a topic.
    """

    def __init__(self, store: StoreWriter, clients: Clients, gate: Gate) -> None:
        self._transactions = store.transactions
        self._reader = store.queue_reader()
        self._clients = clients
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._log = PeerLog(logging.getLogger(__name__))
        self._turns = count()
        self._last = ""
        self._worker: Worker[None] = Worker("rmqstore-check", self, _LOOK_SECONDS)
        self._worker.start()

    def close(self) -> None:
        """Stop asking, and end the thread."""
        self._worker.close()
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
            found = self._check(one)
            if found is None:
                continue
            topic, check = found
            # Anyone can name a group, and the check shows the message.
            able = [connection for connection in ready if self._gate.may_learn(connection, topic)]
            if able:
                size += len(check.body)
                chosen = able[next(self._turns) % len(able)]
                self._loop.call_soon_threadsafe(self._send, chosen, check)
        return size

    def _check(self, one: Transaction) -> tuple[str, Command] | None:
        """Return the request for the outcome of a transaction, and the topic of its message.

        None if its half is damaged.
        """
        place = one.place
        record = self._reader.record(place.physical_offset)
        is_half = record is not None and string_array(record.topic)[0].as_py() == TRANS_HALF_TOPIC
        if record is None or not is_half:
            return None
        to = addressees(record, MOST_QUEUES)
        if not to.known[0]:
            return None
        ext = {
            "tranStateTableOffset": str(place.queue_offset),
            "commitLogOffset": str(place.physical_offset),
            "offsetMsgId": f"{record.store_host(0).hex().upper()}{place.physical_offset:016X}",
        }
        if one.key:
            ext["msgId"] = ext["transactionId"] = one.key
        body = restored(record, to, one.checks)
        topic = to.topics[0].as_py().decode()
        return topic, Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body)

    def _send(self, connection: RemotingConnection, check: Command) -> None:
        """Send a check. In the event loop; a connection that has ended sends nothing."""
        try:
            connection.one_way(check)
        except FrameError as error:
            self._log.warning(
                connection.peer, "%s was not asked for the outcome of a transaction: %s",
                escaped(connection.peer), error,
            )  # fmt: skip
