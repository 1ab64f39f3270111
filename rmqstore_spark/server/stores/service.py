"""All that a process serves, from its start to its end."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.remoting.listener import OtherProtocol
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.wire.endpoint import Endpoint


@dataclass(frozen=True, repr=False)
class ServedPort:
    """Where clients come.

    Attributes:
        bound: the socket of the port; None without one.
        protection: accounts and TLS.
        endpoints: where Spark's clients come; empty if they are not served.
        other: their protocol, which is handed over by a broker that listens on the port; None if
            they are not served.
    """

    bound: socket.socket | None
    protection: Protection
    endpoints: Sequence[Endpoint] = ()
    other: OtherProtocol | None = None


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
    def start(self, port: ServedPort) -> None:
        """Start what works besides the calls of Spark's clients, once those can come."""

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Return the figures of all stores, ready for JSON."""

    def continues(self) -> bool:
        """Return whether the process should continue."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the stores, when no call can reach them."""
