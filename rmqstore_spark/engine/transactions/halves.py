"""The way in for half messages: what `Puts` asks before it appends, and the append itself.

(Upstream: TransactionalMessageBridge.putHalfMessage.)
"""

from __future__ import annotations

from typing import Protocol

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Stored
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.tables.topics import TopicTable
from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.layout.constants import BLANK_SIZE, TRANS_HALF_TOPIC
from rmqstore_spark.layout.record.block import Block
from rmqstore_spark.layout.record.half import hold
from rmqstore_spark.layout.spans import U1


class Holder(Protocol):
    """Appends half messages, and remembers them."""

    def check_room(self, block: Block) -> None:
        """Check that more half messages may wait.

        Raises:
            RefusedError: too many wait, or what waits is not known.
        """
        ...

    def append_halves(self, block: Block) -> Stored:
        """Append half messages.

        Raises:
            RefusedError: they were not appended.
        """
        ...


class HalfAdmission:
    """Accepts blocks of transactional messages, and turns them into half messages.

    Args:
        admission: decides whether the store and their topics accept them.
        topics: the topics of the store.
        config: the store's configuration.
        segment_size: bytes of a segment of the log.
        holder: knows how many wait.
    """

    def __init__(
        self,
        admission: Admission,
        topics: TopicTable,
        config: StoreConfig,
        segment_size: int,
        holder: Holder,
    ) -> None:
        self._admission = admission
        self._topics = topics
        self._is_rejecting = config.reject_transaction_message
        self._most_bytes = segment_size - BLANK_SIZE
        self._holder = holder

    def check(self, data: U1) -> Block:
        """Return a client's block as half messages.

        Raises:
            BlockError: a record is invalid, or no transactional message.
            RefusedError: the store or a topic accepts no such messages, or too many wait.
        """
        if self._is_rejecting:
            raise RefusedError(
                "The store takes no transactional messages (rejectTransactionMessage).",
                PutStatus.NO_PERMISSION,
            )
        block = hold(self._admission.check_clients(data), most_bytes=self._most_bytes)
        self._holder.check_room(block)
        try:
            self._topics.restore([(TRANS_HALF_TOPIC, 0)])
        except OptionError as error:
            raise RefusedError(
                f"No half message can be stored: {error}", PutStatus.MESSAGE_ILLEGAL
            ) from error
        return block


class HalfAppender:
    """Appends blocks of half messages.

    Args:
        holder: appends them.
    """

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def append(self, block: Block) -> Stored:
        """Append half messages; see `Holder.append_halves`."""
        return self._holder.append_halves(block)
