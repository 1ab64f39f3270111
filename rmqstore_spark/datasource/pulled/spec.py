"""Say which broker to pull from, and how: what a task needs to ask it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmqstore_spark.errors import ServiceError

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
        has_master: whether the first one is a master.
        timeout_s: seconds after which none of them has answered.
        answer_s: seconds that one may take for an answer.
    """

    broker_name: str
    addresses: tuple[str, ...]
    has_master: bool
    timeout_s: float
    answer_s: float

    @property
    def url(self) -> str:
        """What it is, for messages."""
        return f"{self.broker_name} at {' or '.join(self.addresses)}"

    @property
    def master(self) -> BrokerSpec:
        """The master alone: its offsets count. A slave may be behind, and takes no progress.

        Raises:
            ServiceError: no master is registered.
        """
        if not self.has_master:
            raise ServiceError(
                f"The broker {self.url} has no master now, only slaves. A stream asks the master "
                "for new messages. Start it; the stream then continues from its checkpoint.",
                can_pass=True,
            )
        return replace(self, addresses=self.addresses[:1], answer_s=self.timeout_s)

    def client(self) -> BrokerClient:
        """Return a client of the broker, with connections of its own."""
        from rmqstore_spark.client.brokers.broker import BrokerClient

        return BrokerClient(
            self.broker_name,
            self.addresses,
            self.timeout_s,
            self.answer_s,
            has_master=self.has_master,
        )

    def open(self) -> PulledStore:
        """Return the broker as a store."""
        from rmqstore_spark.datasource.pulled.store import PulledStore

        return PulledStore(self.broker_name, self.client())
