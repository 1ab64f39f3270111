"""Groups that clients name and nobody created: all that gather are created with one write.

(Upstream: SubscriptionGroupManager.findSubscriptionGroupConfig and
ClientManageProcessor.heartBeat, which write a file for each group and for each retry topic.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.faces.remoting.lanes.handler_thread import HandlerThread
from rmqstore_spark.broker.faces.remoting.refusals import refused
from rmqstore_spark.errors import RemotingError

_Refused = Mapping[str, RemotingError]


class _Gathered:
    """The groups that gather for one write.

    Attributes:
        groups: whether each needs its retry topic too, by name.
        done: the refused ones.
    """

    def __init__(self) -> None:
        self.groups: dict[str, bool] = {}
        self.done: asyncio.Future[_Refused] = asyncio.get_running_loop().create_future()


class NewGroups:
    """Creates groups. Use it in the thread of the event loop.

    Args:
        thread: writes the files.
        catalog: the groups and topics.
    """

    def __init__(self, thread: HandlerThread, catalog: Catalog) -> None:
        self._thread = thread
        self._catalog = catalog
        self._next: _Gathered | None = None
        self._work: asyncio.Task[None] | None = None

    async def make(self, names: Collection[str], *, with_topics: bool) -> _Refused:
        """Create groups that are missing.

        Args:
            names: of groups, which may exist.
            with_topics: create their retry topics too.

        Returns:
            Why groups could not be created, by name.
        """
        if self._next is None:
            self._next = _Gathered()
        mine = self._next
        for name in names:
            mine.groups[name] = mine.groups.get(name, False) or with_topics
        if self._work is None:
            self._work = asyncio.create_task(self._make_all())
        all_refused = await asyncio.shield(mine.done)
        return {name: all_refused[name] for name in names if name in all_refused}

    async def _make_all(self) -> None:
        try:
            while self._next is not None:
                gathered, self._next = self._next, None
                try:
                    found = await self._thread.run(self._make, gathered.groups)
                except RemotingError as error:  # too much waits
                    found = dict.fromkeys(gathered.groups, error)
                except Exception as error:  # noqa: BLE001 - for those that wait for it
                    gathered.done.set_exception(error)
                    continue
                gathered.done.set_result(found)
        finally:
            self._work = None

    def _make(self, groups: Mapping[str, bool]) -> _Refused:
        found = self._catalog.make_groups(groups)
        return {name: refused(error) for name, error in found.items()}
