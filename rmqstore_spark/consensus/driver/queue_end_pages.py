"""Tells other members where the queues of this one's store end, page by page.

All pages are made at once, and kept for a while: however often they are asked for, they are made in
one thread, one time after the other, and those who ask share them. Each has its end of the log, and
who asks takes the least: so pages that were made at different times fit together.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from rmqstore_spark.consensus.driver.group import QueueEndsTold
from rmqstore_spark.consensus.driver.wire import WireQueueEnds, encode

Route: TypeAlias = tuple[str, int]

BEFORE_ALL: Final[Route] = ("", -1)
"""Behind it are all queues, by topic and queueId."""
_PAGE_BYTES: Final = 256 << 10
_QUEUE_BYTES: Final = 36
"""Most that a queue takes beside its topic: `"2147483647":288230376151711744,`."""
_KEPT_S: Final = 60.0
_LEAST_FRESH_S: Final = 1.0
_FRESH_TIMES: Final = 2.0
"""How much longer than making them took, new pages are not made. Who gave up waiting gets them."""


class _Pages(NamedTuple):
    lasts: list[Route]
    bodies: list[bytes]
    fresh_until: float


class QueueEndPages:
    """The pages of a member. Use it in the thread of a running event loop.

    Args:
        group, me: the names.
        told: returns where the queues end; a thread calls it.
    """

    def __init__(self, group: str, me: str, told: Callable[[], QueueEndsTold]) -> None:
        self._group = group
        self._me = me
        self._told = told
        self._made: _Pages | None = None
        self._making: asyncio.Task[_Pages] | None = None
        self._forgetting: asyncio.TimerHandle | None = None

    async def behind(self, route: Route) -> bytes:
        """Return the page that has the next queue behind one; it may have others before that, too.

        Raises:
            RmqStoreError: they are not known.
        """
        made, now = self._made, asyncio.get_running_loop().time()
        if made is None or (route == BEFORE_ALL and now >= made.fresh_until):
            if self._making is None:
                self._making = asyncio.ensure_future(self._make())
                self._making.add_done_callback(self._end_making)
            made = await asyncio.shield(self._making)
        return made.bodies[min(bisect_right(made.lasts, route), len(made.bodies) - 1)]

    async def close(self) -> None:
        """Make no more pages."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait((self._making,))

    async def _make(self) -> _Pages:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        lasts, bodies = await asyncio.to_thread(self._encoded)
        end = loop.time()
        fresh = max(_LEAST_FRESH_S, _FRESH_TIMES * (end - begin))
        self._made = made = _Pages(lasts, bodies, end + fresh)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = loop.call_later(max(_KEPT_S, fresh), self._forget)
        return made

    def _end_making(self, making: asyncio.Task[_Pages]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # perhaps nobody waits for it any more

    def _forget(self) -> None:
        self._made = None

    def _encoded(self) -> tuple[list[Route], list[bytes]]:
        told = self._told()
        lasts, bodies = [], []
        page = WireQueueEnds(
            group=self._group, remote_id=self._me, known=told.known, log_end=told.log_end
        )
        for last, page.ends, page.is_last in _split(told):
            lasts.append(last)
            bodies.append(encode(page))
        return lasts, bodies


def _split(told: QueueEndsTold) -> Iterator[tuple[Route, dict[str, dict[str, int]], bool]]:
    """Yield the last queue of each page, the page, and whether it is the last one."""
    page: dict[str, dict[str, int]] = {}
    size, last = 0, BEFORE_ALL
    for topic in sorted(told.ends):
        queues, name_size = told.ends[topic], len(encode(topic))
        for queue_id in sorted(map(int, queues)):
            if size >= _PAGE_BYTES:
                yield last, page, False
                page, size = {}, 0
            size += _QUEUE_BYTES + (0 if topic in page else name_size)
            page.setdefault(topic, {})[str(queue_id)] = queues[str(queue_id)]
            last = topic, queue_id
    yield last, page, True
