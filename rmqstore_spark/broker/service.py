"""The broker as a service: gives each request to its handler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.broker.acl.gate import Gate
from rmqstore_spark.broker.administration.changes import ChangeRequests
from rmqstore_spark.broker.administration.cleaning import Cleaning
from rmqstore_spark.broker.administration.groups import GroupAdministration
from rmqstore_spark.broker.administration.inventory import Inventory
from rmqstore_spark.broker.administration.messages import MessageQueries
from rmqstore_spark.broker.administration.state import BrokerState
from rmqstore_spark.broker.administration.tables import SlaveTables
from rmqstore_spark.broker.administration.topics import TopicAdministration
from rmqstore_spark.broker.administration.unsupported import unsupported
from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients
from rmqstore_spark.broker.consumers.consuming import Consuming
from rmqstore_spark.broker.consumers.locks import Locks
from rmqstore_spark.broker.consumers.offsets import Offsets
from rmqstore_spark.broker.consumers.pulls import Pulls
from rmqstore_spark.broker.consumers.saved_reports import SavedReports
from rmqstore_spark.broker.consumers.send_back import SendBack
from rmqstore_spark.broker.handler_thread import CLOSING, HandlerThread
from rmqstore_spark.broker.heartbeat import TAG, read_heartbeat
from rmqstore_spark.broker.new_groups import NewGroups
from rmqstore_spark.broker.producing import Producing
from rmqstore_spark.broker.relaying import Relaying
from rmqstore_spark.broker.statistics import Statistics
from rmqstore_spark.broker.transactional.checking import Checking
from rmqstore_spark.broker.transactional.ending import Ending
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.bodies import parse_request
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Dispatch
from rmqstore_spark.remoting.peerlog import PeerLog

__all__ = ["Broker"]

_log = logging.getLogger(__name__)

_SILENT_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 10.0
_MOST_REFUSED: Final = 1000
"""Groups whose refusal is logged."""
_NO_GROUP: Final = (
    "the group cannot be created because of an error in the broker; its log says more"
)
_MOST_IN_FILES: Final = 10_000
_MOST_SEARCHES: Final = 64
"""Requests of a kind that may wait: searches take up to 5 s each."""


class Broker:
    """Answers producers and consumers. Use it in the thread of a running event loop.

    Args:
        store: the store.
        catalog: its topics and groups.
        gate: lets requests through.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, gate: Gate) -> None:
        self._store = store
        self._gate = gate
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._log = PeerLog(_log)
        self._refused: set[str] = set()
        self._clients = Clients()
        statistics = Statistics(time.monotonic())
        self._producing = Producing(store, catalog, statistics)
        pulls = Pulls(store, catalog, self._clients, store.queue_reader(), statistics)
        self._consuming = Consuming(pulls)
        self._ending = Ending(store, catalog, gate)
        self._checking = Checking(store, self._clients, gate)
        # Files are read and written by a thread of its own, one after the other.
        self._files = HandlerThread("rmqstore-broker-files", _MOST_IN_FILES)
        self._new_groups = NewGroups(self._files, catalog)
        self._pulling: set[asyncio.Task[None]] = set()
        self._reader = store.queue_reader()
        self._offsets = Offsets(store, catalog, self._reader)
        self._send_back = SendBack(store, catalog, self._reader)
        topics = TopicAdministration(store, catalog, self._clients, self._reader)
        groups = GroupAdministration(store, catalog, self._clients, self._reader, statistics)
        state = BrokerState(
            store, catalog, self._reader, self._producing, self._consuming, statistics
        )
        inventory = Inventory(store, catalog, self._clients)
        self._changes = ChangeRequests(catalog, topics, groups)
        # A search may take seconds: nothing else waits for it.
        self._searches = HandlerThread("rmqstore-broker-searches", _MOST_SEARCHES)
        self._searching = store.queue_reader()
        searches = MessageQueries(store, self._searching).handlers()
        in_files = {
            **self._offsets.handlers(),
            **topics.file_handlers(),
            **groups.handlers(),
            **state.handlers(),
            **inventory.file_handlers(),
            **Cleaning(store).handlers(),
            **SlaveTables(store, catalog).handlers(),
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _, request: self._send_back.handle(request),
        }
        in_files = gate.checking(in_files, self._reader)
        searches = gate.checking(searches, self._searching)
        report = RequestCode.UPDATE_CONSUMER_OFFSET
        reports = SavedReports(self._files, self._offsets)
        self._is_closing = False
        self._tasks = [
            asyncio.create_task(work) for work in (self._save(), self._expire(), state.sample())
        ]
        # Clients of RocketMQ 5 send the second code for lite pull consumers, with the same fields.
        pulls_of_all = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
        sends = (
            RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        )  # fmt: skip
        self._dispatch = Dispatch(
            {
                report: reports.handler(in_files.pop(report)),
                **self._files.handlers(in_files),
                **self._searches.handlers(searches),
                **topics.handlers(),
                **inventory.handlers(),
                **Locks(store).handlers(),
                **Relaying(store, self._clients).handlers(),
                **unsupported(),
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.UNREGISTER_CLIENT: self._unregister,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
                RequestCode.CHECK_CLIENT_CONFIG: self._check_client,
            },
            {
                **dict.fromkeys(sends, self._producing.take),
                **dict.fromkeys(pulls_of_all, self._pull),
                RequestCode.END_TRANSACTION: self._ending.take,
                **dict.fromkeys(self._changes.codes, self._changes.take),
            },
        )
        store.watch_queues(self._consuming)

    # ---- for the server

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        if not self._is_closing:
            self._dispatch.handle(self._gate.admitted(requests))
            return
        for request in requests:  # with this code, clients try another broker, or again later
            request.reply(request.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, CLOSING))

    def closed(self, connection: RemotingConnection) -> None:
        self._clients.closed(connection)
        self._consuming.closed(connection)

    async def close(self) -> None:
        """Finish the requests that are being handled, and write what consumers reported."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._store.watch_queues(None)
        for thread in (self._files, self._searches):
            thread.refuse()
        await asyncio.to_thread(self._offsets.save_if_possible)  # what follows may take long
        await asyncio.to_thread(self._changes.close)
        await asyncio.to_thread(self._checking.close)
        await asyncio.to_thread(self._producing.close)
        await asyncio.to_thread(self._ending.close)
        if self._pulling:
            await asyncio.wait(self._pulling)
        await asyncio.to_thread(self._consuming.close)
        await self._dispatch.drain()
        await asyncio.to_thread(self._offsets.save_if_possible)
        for thread, reader in (
            (self._files, self._reader), (self._searches, self._searching),
        ):  # fmt: skip
            thread.close()
            reader.close()

    # ---- clients

    async def _heartbeat(self, connection: RemotingConnection, request: Command) -> Command:
        beat = read_heartbeat(request.body)
        names = [told.group for told in beat.consumers]
        refused: list[tuple[str, RemotingError]] = []
        count = len(names) + len(beat.producers)
        if not all(map(self._catalog.is_known, names)):
            missing = await self._new_groups.make(names, with_topics=True)
            refused = list(missing.items())
            beat = beat.without(missing)
        quiet = {
            told.group for told in beat.consumers if not self._catalog.group(told.group).is_notified
        }
        if connection.is_open:
            now = self._loop.time()
            refused += self._clients.hear(connection, request, beat, frozenset(quiet), now)
        if not refused:
            return request.answer()
        for name, error in refused:
            self._tell_refused(connection.peer, name, error)
        # The other groups are served. Other requests of those that are refused fail for themselves.
        _, first = refused[0]
        code = first.code if len(refused) == count else ResponseCode.SUCCESS
        return request.answer(code, first.remark)

    def _pull(self, requests: Sequence[Request]) -> None:
        """Take requests for messages; those that name new groups when these are created."""
        new = [each for each in requests if self._catalog.may_create_group(_group_of(each))]
        known = [each for each in requests if each not in set(new)] if new else requests
        if known:
            self._consuming.take(known)
        if new:
            task = self._loop.create_task(self._pull_of_new_groups(new))
            self._pulling.add(task)
            task.add_done_callback(self._pulling.discard)

    async def _pull_of_new_groups(self, requests: Sequence[Request]) -> None:
        names = {_group_of(request) for request in requests}
        try:
            refused = await self._new_groups.make(names, with_topics=False)
        except Exception:  # noqa: BLE001 - each request needs an answer
            _log.exception("The groups of pulls could not be created.")
            refused = dict.fromkeys(names, RemotingError(ResponseCode.SYSTEM_ERROR, _NO_GROUP))
        allowed = []
        for request in requests:
            error = refused.get(_group_of(request))
            if error is None:
                allowed.append(request)
            else:
                request.reply(request.command.answer(error.code, error.remark))
        if allowed:
            self._consuming.take(allowed)

    def _tell_refused(self, peer: str, group: str, error: RemotingError) -> None:
        """Log that a group is refused: once, though its clients send a heartbeat every 30 s."""
        if group in self._refused or len(self._refused) >= _MOST_REFUSED:
            return
        self._refused.add(group)
        _log.warning(
            "The group %s of %s is refused: %s", escaped(group), escaped(peer),
            escaped(error.remark),
        )  # fmt: skip

    def _unregister(self, connection: RemotingConnection, request: Command) -> Command:
        ext = request.ext
        self._clients.leave(
            connection, ext.get("producerGroup") or "", ext.get("consumerGroup") or ""
        )
        return request.answer()

    def _consumer_list(self, _: RemotingConnection, request: Command) -> Command:
        group = Fields(request.ext).text("consumerGroup")
        found = self._clients.listed(group)
        if not found:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {escaped(group[:MAX_NAME])}",
            )
        return request.answer(body=found)

    def _check_client(self, _: RemotingConnection, request: Command) -> Command:
        subscription = parse_request(request.body).get("subscriptionData")
        if not isinstance(subscription, dict):
            raise FrameError("the request has no subscription")
        kind = subscription.get("expressionType") or TAG
        if kind != TAG:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{escaped(str(kind)[:MAX_NAME])}",
            )
        return request.answer()

    # ---- its own

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(self._store.config.flush_consumer_offset_interval / 1000)
            await asyncio.to_thread(self._offsets.save_if_possible)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for connection in self._clients.silent(self._loop.time() - _SILENT_SECONDS):
                self._log.warning(
                    connection.peer, "The client %s has sent no heartbeat for %d s; its "
                    "connection was closed.", escaped(connection.peer), int(_SILENT_SECONDS),
                )  # fmt: skip
                connection.close()


def _group_of(request: Request) -> str:
    """Return the name of the group for which messages are asked; empty if there is none."""
    return request.command.ext.get("consumerGroup", "")
