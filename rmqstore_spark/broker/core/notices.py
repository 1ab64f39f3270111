"""Tells the members of groups that others have come or gone: many changes at once, and not often.

Each member then asks who they all are, so a change of a group of n members costs n answers of n
names. When n clients start together, or their host is gone, that would be n * n * n names. So what
changes in a turn of the event loop is told once, and a group that was told rests in proportion to
its size. A member that hears of a change later has the same picture in the end; by itself, each
looks every 20 seconds. (Upstream: DefaultConsumerIdsChangeListener, which tells each change at
once.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from rmqstore_spark.broker.core.peer import Peer

_REST_S: Final = 0.001
"""For each member: a notice, and the list for which it asks, take a fraction of it."""
_AT_ONCE: Final = 256
"""Notices after which others have their turn."""


class GroupNotices:
    """Tells members of changes. Use it in the thread of a running event loop.

    Args:
        members: returns the members of a group who want to know, by its name.
        tell: tells one of them that the group has changed.
    """

    def __init__(
        self,
        members: Callable[[str], Collection[Peer]],
        tell: Callable[[Peer, str], None],
    ) -> None:
        self._members = members
        self._tell_one = tell
        self._loop = asyncio.get_running_loop()
        self._resting: set[str] = set()
        self._again: set[str] = set()
        self._due: deque[tuple[str, Peer]] = deque()

    def changed(self, group: str) -> None:
        """Tell the members of a group, soon, that it has changed."""
        if group in self._resting:
            self._again.add(group)
        else:
            self._resting.add(group)
            self._loop.call_soon(self._tell, group)

    def _tell(self, group: str) -> None:
        members = self._members(group)
        self._loop.call_later(len(members) * _REST_S, self._rested, group)
        is_idle = not self._due
        self._due.extend((group, member) for member in members)
        if is_idle:
            self._send()

    def _send(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._due))):
            group, connection = self._due.popleft()
            if connection.is_open:
                self._tell_one(connection, group)
        if self._due:
            self._loop.call_soon(self._send)

    def _rested(self, group: str) -> None:
        self._resting.remove(group)
        if group in self._again:
            self._again.remove(group)
            self.changed(group)
