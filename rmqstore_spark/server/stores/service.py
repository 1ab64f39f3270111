"""All that a process serves, from its start to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.wire.endpoint import Endpoint

__all__ = ["StoreService"]


class StoreService(ABC):
    """The stores that a process serves, and what belongs to them.

    Attributes:
        stores: the stores.
        look_seconds: how often `continues` is asked; None for never.
    """

    def __init__(self, stores: Sequence[ServedStore]) -> None:
        self.stores = stores
        self.look_seconds: float | None = None

    @property
    def slaves(self) -> str | None:
        """Where slaves connect, as host:port; None if none are taken."""
        return None

    @property
    def broker(self) -> str | None:
        """Where RocketMQ's clients connect, as host:port; None if none are served."""
        return None

    @property
    def broker_held(self) -> int:
        """Bytes of requests and answers of RocketMQ's clients in memory."""
        return 0

    @abstractmethod
    def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Start what works besides the calls of clients, once those can come.

        Args:
            endpoints: where they come.
        """

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Return the figures of all stores, ready for JSON."""

    def continues(self) -> bool:
        """Return whether the process should continue."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the stores, when no call can reach them."""
