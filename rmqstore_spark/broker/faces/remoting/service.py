"""The broker as a service: gives each request to the handler of its row."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from rmqstore_spark.broker.acl.gate import Gate
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.faces.remoting.headers import named_group
from rmqstore_spark.broker.faces.remoting.lanes.changing import ChangeRequests
from rmqstore_spark.broker.faces.remoting.lanes.ending import EndRequests
from rmqstore_spark.broker.faces.remoting.lanes.handler_thread import (
    CLOSING,
    HandlerThread,
    SavedReports,
)
from rmqstore_spark.broker.faces.remoting.lanes.pulling import Consuming
from rmqstore_spark.broker.faces.remoting.lanes.sending import SendRequests
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker
from rmqstore_spark.broker.faces.remoting.membership import Members, NewGroups
from rmqstore_spark.broker.faces.remoting.relaying import Relaying, Telling, connection_of
from rmqstore_spark.broker.faces.remoting.row import LaneRows, Row, handler_of
from rmqstore_spark.broker.faces.remoting.table import (
    CHANGES,
    ENDS,
    LOOP,
    PULLS,
    REPORTS,
    RETURNED,
    ROWS,
    SEARCHES,
    SENDS,
    Parts,
)
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Dispatch, GroupHandler, Handler

_log = logging.getLogger(__name__)

_NO_GROUP: Final = (
    "the group cannot be created because of an error in the broker; its log says more"
)
_MOST_IN_FILES: Final = 10_000
_MOST_SEARCHES: Final = 64
"""Requests of a kind that may wait: searches take up to 5 s each."""
_CHECK_SECONDS: Final = 0.5


class BrokerService:
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
        telling = Telling(store.config.broker_name)
        core = self._core = Core(
            store,
            catalog,
            tell=telling.group_changed,
            may_learn=lambda peer, topic: gate.may_learn(connection_of(peer), topic),
            ask=telling.ask_outcome,
        )
        # Files are read and written by a thread of its own, one after the other. A search may take
        # seconds, and what is sent back may have to wait for a commit: nothing else waits for them.
        self._files = HandlerThread("rmqstore-broker-files", _MOST_IN_FILES)
        self._searches = HandlerThread("rmqstore-broker-searches", _MOST_SEARCHES)
        self._returned = HandlerThread("rmqstore-broker-returned", _MOST_IN_FILES)
        self._new_groups = NewGroups(self._files, catalog)
        self._pulling: set[asyncio.Task[None]] = set()
        relaying = Relaying(store, core.clients)
        membership = Members(core, self._new_groups)
        parts = Parts(core, membership, relaying, telling)
        parts.sends = self._sends = SendRequests(core, LaneRows(ROWS, SENDS, parts))
        parts.pulls = self._consuming = Consuming(core.pulls, LaneRows(ROWS, PULLS, parts))
        self._ends = EndRequests(
            core.ending, LaneRows(ROWS, ENDS, parts), gate, store.queue_reader()
        )
        self._changes = ChangeRequests(core, LaneRows(ROWS, CHANGES, parts))
        self._checks: Worker[None] = Worker("rmqstore-check", core.checking, _CHECK_SECONDS)
        self._checks.start()
        self._reports = SavedReports(self._files, core.offsets)
        self._is_closing = False
        self._tasks = [
            asyncio.create_task(work)
            for work in (self._save(), membership.end_silent(), core.state.sample())
        ]
        takers: dict[Any, GroupHandler] = {
            SENDS: self._sends.take,
            PULLS: self._pull,
            ENDS: self._ends.take,
            CHANGES: self._changes.take,
        }
        self._dispatch = Dispatch(
            {row.code: self._handler(row, parts) for row in ROWS if not row.lane.gathers},
            {row.code: takers[row.lane] for row in ROWS if row.lane.gathers},
        )
        store.watch_queues(self._consuming)

    def _handler(self, row: Row[Parts, Any, Any], parts: Parts) -> Handler:
        handler = handler_of(row, parts)
        if row.lane is LOOP:
            return handler
        if row.lane is SEARCHES:
            return self._searches.handler(self._checked(row, handler, self._core.searches))
        if row.lane is RETURNED:
            return self._returned.handler(self._checked(row, handler, self._core.returned))
        if row.lane is REPORTS:
            return self._reports.handler(handler)
        return self._files.handler(self._checked(row, handler, self._core.files))

    def _checked(self, row: Row[Parts, Any, Any], handler: Handler, reader: QueueReader) -> Handler:
        """Return a handler that first looks at the message that a request names, if it does."""
        if row.rights is None or row.rights.place is None:
            return handler

        def handle(connection: RemotingConnection, request: Command) -> Any:
            self._gate.check_place(request, connection.peer, reader)
            return handler(connection, request)

        return handle

    @property
    def clients(self) -> Clients:
        """The connected members of groups; other threads may read."""
        return self._core.clients

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
        self._core.clients.closed(connection)
        self._consuming.closed(connection)

    async def close(self) -> None:
        """Finish the requests that are being handled, and write what consumers reported."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._store.watch_queues(None)
        for thread in (self._files, self._searches, self._returned):
            thread.refuse()
        offsets = self._core.offsets
        await asyncio.to_thread(offsets.save_if_possible)  # what follows may take long
        await asyncio.to_thread(self._changes.close)
        await asyncio.to_thread(self._checks.close)
        await asyncio.to_thread(self._sends.close)
        await asyncio.to_thread(self._ends.close)
        if self._pulling:
            await asyncio.wait(self._pulling)
        await asyncio.to_thread(self._consuming.close)
        await self._dispatch.drain()
        await asyncio.to_thread(offsets.save_if_possible)
        self._files.close()
        self._searches.close()
        self._returned.close()
        self._core.close()

    # ---- its own

    def _pull(self, requests: Sequence[Request]) -> None:
        """Take requests for messages; those that name new groups when these are created."""
        may_create = self._catalog.may_create_group
        new = [each for each in requests if may_create(named_group(each.command))]
        known = [each for each in requests if each not in set(new)] if new else requests
        if known:
            self._consuming.take(known)
        if new:
            task = self._loop.create_task(self._pull_of_new_groups(new))
            self._pulling.add(task)
            task.add_done_callback(self._pulling.discard)

    async def _pull_of_new_groups(self, requests: Sequence[Request]) -> None:
        names = {named_group(request.command) for request in requests}
        try:
            refused = await self._new_groups.make(names, with_topics=False)
        except Exception:  # noqa: BLE001 - each request needs an answer
            _log.exception("The groups of pulls could not be created.")
            refused = dict.fromkeys(names, RemotingError(ResponseCode.SYSTEM_ERROR, _NO_GROUP))
        allowed = []
        for request in requests:
            error = refused.get(named_group(request.command))
            if error is None:
                allowed.append(request)
            else:
                request.reply(request.command.answer(error.code, error.remark))
        if allowed:
            self._consuming.take(allowed)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(self._store.config.flush_consumer_offset_interval / 1000)
            await asyncio.to_thread(self._core.offsets.save_if_possible)
