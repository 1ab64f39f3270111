"""Gives slaves the tables that they copy (upstream: SlaveSynchronize, AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Any

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.followed import DELETED_TOPICS, PROMOTIONS
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["SlaveTables"]


class SlaveTables:
    """Answers slaves. Its handlers belong to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._request_modes,
            RequestCode.GET_TIMER_CHECK_POINT: self._timer,
            RequestCode.GET_TIMER_METRICS: self._timer,
        }

    def _topics(self, _: RemotingConnection, request: Command) -> Command:
        body: dict[str, Any] = {
            "dataVersion": self._catalog.version(),
            "topicConfigTable": self._catalog.topics(),
            # After the topics: what these lack is then among the deletions, unless it is deleted
            # right now.
            DELETED_TOPICS: dict(self._store.deleted_topics),
        }
        if promotions := self._store.role.promotions:
            body[PROMOTIONS] = [list(promotion) for promotion in promotions]
        return request.answer(body=dump_body(body))

    def _consumer_offsets(self, _: RemotingConnection, request: Command) -> Command:
        # Slaves of RocketMQ 5 write no offsets without a version; those of 4.9 pass over it.
        offsets = self._store.consumer_offsets
        body = {"dataVersion": offsets.version(), "offsetTable": offsets.table()}
        return request.answer(body=dump_body(body))

    def _delay_offsets(self, _: RemotingConnection, request: Command) -> Command:
        # The file covers only copies that are on disk, unlike what the process has in memory.
        # A slave of ours needs to know which, too; RocketMQ's passes over that.
        value = ConfigFile(self._store.path, "delayOffset").value
        return request.answer(body=dump_body({"offsetTable": {}, **value}))

    def _groups(self, _: RemotingConnection, request: Command) -> Command:
        return request.answer(body=dump_body(self._store.groups.to_json()))

    def _request_modes(self, _: RemotingConnection, request: Command) -> Command:
        """Answer slaves of RocketMQ 5 that no group consumes by POP."""
        return request.answer(body=dump_body({"messageRequestModeMap": {}}))

    def _timer(self, _: RemotingConnection, request: Command) -> Command:
        """Answer slaves of RocketMQ 5 as a broker does that has no timer wheel."""
        what = "Checkpoint" if request.code == RequestCode.GET_TIMER_CHECK_POINT else "MessageStore"
        return request.answer(ResponseCode.SYSTEM_ERROR, f"The timer{what} is null")
