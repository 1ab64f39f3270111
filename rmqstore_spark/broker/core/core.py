"""All that a broker decides, for one store."""

from __future__ import annotations

import time
from collections.abc import Callable

from rmqstore_spark.broker.core.administration.groups import GroupAdministration
from rmqstore_spark.broker.core.administration.messages import MessageQueries
from rmqstore_spark.broker.core.administration.state import BrokerState, SlaveTables
from rmqstore_spark.broker.core.administration.topics import TopicAdministration
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients, Peer
from rmqstore_spark.broker.core.consumers.locks import Locks
from rmqstore_spark.broker.core.consumers.offsets import Offsets
from rmqstore_spark.broker.core.consumers.pulls import Pulls
from rmqstore_spark.broker.core.consumers.send_back import SendBack
from rmqstore_spark.broker.core.producing import Producing
from rmqstore_spark.broker.core.statistics import Statistics
from rmqstore_spark.broker.core.transactions import Check, Checking, Ending
from rmqstore_spark.engine.store import StoreWriter


class Core:
    """The parts of a broker. Create it in the thread of a running event loop.

    Args:
        store: the store.
        catalog: its topics and groups.
        tell: tells a client, in the event loop, that the members of a group have changed.
        may_learn: returns whether a producer may be shown the messages of a topic.
        ask: asks a producer for the outcome of a transaction.

    Attributes:
        files: reads records and queues, for one thread. That uses offsets, state, tables, and what
            reads queues of topics and groups.
        searches, returned: the same, for the thread that uses queries, and that with send_back.
        clients, locks: belong to the event loop.
        pulls, ending, checking: belong to one thread each.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        *,
        tell: Callable[[Peer, str], None],
        may_learn: Callable[[Peer, str], bool],
        ask: Callable[[Peer, Check], None],
    ) -> None:
        self.store = store
        self.catalog = catalog
        self.files = store.queue_reader()
        self.searches = store.queue_reader()
        self.returned = store.queue_reader()
        self.clients = Clients(tell)
        self.statistics = Statistics(time.monotonic())
        self.producing = Producing(store, catalog, self.statistics)
        self.pulls = Pulls(store, catalog, self.clients, store.queue_reader(), self.statistics)
        self.ending = Ending(store, catalog)
        self.checking = Checking(store, self.clients, may_learn, ask)
        self.offsets = Offsets(store, catalog, self.files)
        self.send_back = SendBack(store, catalog, self.returned)
        self.locks = Locks(store)
        self.topics = TopicAdministration(store, catalog, self.clients, self.files)
        self.groups = GroupAdministration(store, catalog, self.clients, self.files, self.statistics)
        self.state = BrokerState(store, catalog, self.files, self.pulls, self.statistics)
        self.tables = SlaveTables(store, catalog)
        self.queries = MessageQueries(store, self.searches)

    def close(self) -> None:
        """Close what it reads with, once no thread uses it."""
        self.checking.close()
        self.files.close()
        self.searches.close()
        self.returned.close()
