"""Asks the broker of a master what its slaves need besides the log: topics, groups, progress.

A thread copies them every ten seconds, but only while the slave is connected: a store that is to be
the master, and is a slave still, has older ones than the former master that waits for it.
(Upstream: BrokerController.handleSlaveSynchronize.)
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.role import Promotion, promotions_of
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.followed import PROMOTIONS, FollowedTables
from rmqstore_spark.engine.tables.queue_ends import QUEUE_ENDS, QueueEnds, told_ends
from rmqstore_spark.errors import FrameError, RemotingError, RmqStoreError
from rmqstore_spark.ha.broker_link import BrokerLink
from rmqstore_spark.ha.follower_progress import Progress
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_log = logging.getLogger(__name__)

_TABLES: Final = (
    RequestCode.GET_BROKER_RUNTIME_INFO,  # its end of the log is before what happens to topics
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,  # its end of the log is behind what the offsets count
)
_INTERVAL_S: Final = 10.0
_LOOK_S: Final = 0.1
_MOST_QUEUES: Final = 1 << 18
"""As many as a slave keeps. They come in one answer, which a foreign master makes."""


class ToldTables(NamedTuple):
    """What a broker has answered: nothing of it is checked.

    Attributes:
        begin: where its log ended before it told the tables.
        topics, offsets, delays, groups: the contents of its files.
        end: where its log ended afterwards.
    """

    begin: int
    topics: Any
    offsets: Any
    delays: Any
    groups: Any
    end: int

    def copy_to(self, tables: FollowedTables) -> None:
        """Take all of it into the tables of a slave.

        Raises:
            CorruptStoreError, RefusedError, StoreWriteError: a table cannot be read or written.
        """
        tables.take_promotions(_promotions(self.topics))
        tables.take_topics(self.topics, self.begin)
        tables.take_consumer_offsets(self.offsets, self.end)
        tables.take_delay_offsets(self.delays, self.end)
        tables.take_groups(self.groups)


class MasterBroker:
    """The broker of a master, over remoting; each call opens a connection, and closes it.

    Args:
        config: says where it is (`haMasterRemotingAddress`), and as whom this side asks it.
        stays: whether the connection is kept for the next call instead, until `close`.

    Attributes:
        address: where it is.

    Raises:
        OptionError: the access key or a certificate cannot be read.
    """

    def __init__(self, config: StoreConfig, *, stays: bool = False) -> None:
        self.address = config.ha_master_remoting_address
        config.check_client_tls()
        self._identity = ClientIdentity.of(config)
        self._stays = stays
        self._link: BrokerLink | None = None

    def close(self) -> None:
        """End the connection that was kept."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def log_begin(self) -> int:
        """Return the physical offset at which the master's log begins.

        Raises:
            ServiceError: the broker cannot be reached, or does not answer.
            RemotingError: it refuses the request, or does not name the offset.
        """
        (answer,) = self._ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        return self._offset(answer, "commitLogMinOffset", "begins")

    def promotions(self) -> tuple[Promotion, ...]:
        """Return the promotions that its log has seen; a broker of RocketMQ knows of none.

        Raises:
            ServiceError: the broker cannot be reached, or does not answer.
            RemotingError: it refuses the request.
        """
        (answer,) = self._ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG))
        return _promotions(answer)

    def teach_queue_ends(self, ends: QueueEnds, begin: int) -> None:
        """Tell a store that lacks them where queues end, if this broker has what it needs.

        Args:
            ends: those of the store.
            begin: where that store's log begins; what is behind it tells the store enough.

        Raises:
            ServiceError: the broker cannot be reached, or does not answer.
            RemotingError: it refuses a request, or does not tell: it may lack the ends itself.
            StoreWriteError: they could not be saved.
        """
        info, topics = self._ask(
            Command(RequestCode.GET_BROKER_RUNTIME_INFO),  # first: the ends count all before it
            Command(RequestCode.GET_ALL_TOPIC_CONFIG, {QUEUE_ENDS: "true"}),
        )
        try:
            told, end = told_ends(topics[QUEUE_ENDS], _MOST_QUEUES), self._log_end(info)
        except (KeyError, TypeError, ValueError):
            text = f"The broker {self.address} does not say where its queues end."
            raise RemotingError(ResponseCode.SYSTEM_ERROR, text) from None
        if end >= begin:
            ends.learn(told)
            _log.info("The broker %s says where %d queues end.", self.address, len(told))

    def _log_end(self, answer: Any) -> int:
        return self._offset(answer, "commitLogMaxOffset", "ends")

    def _offset(self, answer: Any, name: str, what: str) -> int:
        table = answer.get("table") if isinstance(answer, dict) else None
        found = str(table.get(name)) if isinstance(table, dict) else ""
        if not found.isdecimal() or len(found) > 19:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker {self.address} does not say where its log {what}.",
            )
        return int(found)

    def tables(self) -> ToldTables:
        """Return its tables, as its answers have them.

        Raises:
            ServiceError: the broker cannot be reached, or does not answer.
            RemotingError: it refuses a request, or its answer cannot be read.
        """
        before, topics, offsets, delays, groups, after = self._ask(*map(Command, _TABLES))
        return ToldTables(
            self._log_end(before), topics, offsets, delays, groups, self._log_end(after)
        )

    def _ask(self, *requests: Command) -> list[Any]:
        """Return the bodies of the answers to requests."""
        if self._link is None:
            self._link = BrokerLink(self.address, self._identity)
        try:
            return [parse_body(body) for body in self._link.ask(requests)]
        except FrameError as error:
            text = f"The broker {self.address} gave an answer that cannot be read: {error}."
            raise RemotingError(ResponseCode.SYSTEM_ERROR, text) from None
        finally:
            if not self._stays:
                self.close()


def _promotions(answer: Any) -> tuple[Promotion, ...]:
    found = answer.get(PROMOTIONS) if isinstance(answer, dict) else None
    try:
        return promotions_of(found or ())
    except ValueError:
        return ()


class Metadata:
    """Keeps the tables of a slave like its master's, from `start` until `close`.

    Args:
        store: the store; its role is SLAVE, and `haMasterRemotingAddress` is set.

    Raises:
        OptionError: the access key for requests to the master cannot be read.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._address = store.config.ha_master_remoting_address
        self._broker = MasterBroker(store.config)
        self._tables = store.replica.tables
        self._queue_ends = store.queue_ends
        self._replica = store.replica
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, progress: Progress) -> None:
        """Start to copy.

        Args:
            progress: knows whether there is a connection, and is told where the master's log ends.
        """
        self._thread = threading.Thread(
            target=self._run, args=(progress,), name="rmqstore-ha-tables", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop copying."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def copy_last(self) -> None:
        """Copy once more, after `close`: the master may have changed since the last round."""
        text = self._copy()
        if text:
            _log.warning(
                "What has changed of topics, groups and progress since the last copy is lost: the "
                "master %s cannot be asked: %s.", self._address, text,
            )  # fmt: skip

    def _run(self, progress: Progress) -> None:
        told = ""
        while True:
            while not progress.is_connected:
                if self._closing.wait(_LOOK_S):
                    return
            text = self._copy(progress)
            if text and text != told:
                _log.warning(
                    "Topics, groups and progress of the master %s cannot be copied: %s. Trying "
                    "again every %.0f s.", self._address, text, _INTERVAL_S,
                )  # fmt: skip
            told = text
            if self._closing.wait(_INTERVAL_S):
                return

    def _copy(self, progress: Progress | None = None) -> str:
        """Copy once; return why that is not possible, or ""."""
        try:
            told = self._broker.tables()
            told.copy_to(self._tables)
            if progress is not None:
                progress.master_ends(told.end)
            if self._queue_ends.are_lacking and not self._replica.is_empty:
                with suppress(RemotingError):  # one of RocketMQ's does not say it
                    self._broker.teach_queue_ends(self._queue_ends, self._replica.begin)
        except RmqStoreError as error:
            return str(error).removesuffix(".")
        return ""
