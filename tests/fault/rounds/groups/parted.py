"""A group whose members reach each other over links that can be cut."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tests.fault.proxy import BreakingProxy
from tests.rocketmq.groups import Group

Link = tuple[str, str]
"""Who asks, and who is asked; the answers come the same way."""


class PartedGroup(Group):
    """A group of three; its members can be parted from each other, not from clients."""

    @cached_property
    def _links(self) -> dict[Link, BreakingProxy]:
        return {
            (source, target): BreakingProxy(int(address.rpartition(":")[2]))
            for source in self.members
            for target, address in self.members.items()
            if source != target
        }

    def seen_by(self, me: str) -> dict[str, str]:
        """The addresses of the members that one of them has: those of its links to the others."""
        return {
            other: self.members[me] if other == me else f"127.0.0.1:{self._links[me, other].port}"
            for other in self.members
        }

    def part(self, links: Iterable[Link]) -> None:
        """Let nothing through over some links."""
        for link in links:
            self._links[link].hold()

    def mend(self, *, drops: bool) -> None:
        """Let all through again.

        Args:
            drops: whether what was sent meanwhile is lost; otherwise, it comes now.
        """
        for proxy in self._links.values():
            if drops:
                proxy.cut()
            proxy.release()

    def close(self) -> None:
        """End all."""
        super().close()
        for proxy in self._links.values():
            proxy.__exit__()
