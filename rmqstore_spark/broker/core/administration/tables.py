"""The tables that slaves copy (upstream: SlaveSynchronize, AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Any

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.followed import DELETED_TOPICS, PROMOTIONS


class SlaveTables:
    """Tells slaves the tables, each as its file has it. Used by one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog

    def topics(self) -> dict[str, Any]:
        """Return all topics; and for slaves of ours, those that were deleted, and promotions."""
        found: dict[str, Any] = {
            "dataVersion": self._catalog.version(),
            "topicConfigTable": self._catalog.topics(),
            # After the topics: what these lack is then among the deletions, unless it is deleted
            # right now.
            DELETED_TOPICS: dict(self._store.deleted_topics),
        }
        if promotions := self._store.role.promotions:
            found[PROMOTIONS] = [list(promotion) for promotion in promotions]
        return found

    def consumer_offsets(self) -> dict[str, Any]:
        """Return the offsets of all groups."""
        # Slaves of RocketMQ 5 write no offsets without a version; those of 4.9 pass over it.
        offsets = self._store.consumer_offsets
        return {"dataVersion": offsets.version(), "offsetTable": offsets.table()}

    def delay_offsets(self) -> dict[str, Any]:
        """Return how far delayed messages are delivered."""
        # The file covers only copies that are on disk, unlike what the process has in memory.
        # A slave of ours needs to know which, too; RocketMQ's passes over that.
        return {"offsetTable": {}, **ConfigFile(self._store.path, "delayOffset").value}

    def groups(self) -> dict[str, Any]:
        """Return all groups."""
        return self._store.groups.to_json()
