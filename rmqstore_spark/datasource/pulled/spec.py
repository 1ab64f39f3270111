"""Say which broker to pull from, and how: what a task needs to ask it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.broker import BrokerClient
    from rmqstore_spark.datasource.pulled.store import PulledStore

__all__ = ["BrokerSpec"]


@dataclass(frozen=True)
class BrokerSpec:
    """What a task needs to pull from a broker.

    Args:
        broker_name: its name.
        addresses: of the master and then its slaves, as `host:port`.
        timeout_s: seconds after which none of them has answered.
        answer_s: seconds that one may take for an answer.
    """

    broker_name: str
    addresses: tuple[str, ...]
    timeout_s: float
    answer_s: float

    @property
    def url(self) -> str:
        """What it is, for messages."""
        return f"{self.broker_name} at {' or '.join(self.addresses)}"

    def client(self) -> BrokerClient:
        """Return a client of the broker, with connections of its own."""
        from rmqstore_spark.client.brokers.broker import BrokerClient

        return BrokerClient(self.broker_name, self.addresses, self.timeout_s, self.answer_s)

    def open(self) -> PulledStore:
        """Return the broker as a store."""
        from rmqstore_spark.datasource.pulled.store import PulledStore

        return PulledStore(self.broker_name, self.client())
