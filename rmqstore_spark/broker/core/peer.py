"""The client at the other end, as far as a broker's decisions need to know it."""

from __future__ import annotations

from typing import Protocol


class Peer(Protocol):
    """A connection of a client. It is the key of what the client has: groups, requests.

    Attributes:
        peer: address of the client, as text.
    """

    peer: str

    @property
    def is_open(self) -> bool:
        """Whether the client can be told something."""

    @property
    def has_room(self) -> bool:
        """Whether it reads what it was told."""
