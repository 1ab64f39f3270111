"""Say which broker to pull from, and how: what a task needs to ask it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmqstore_spark.errors import ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.server_group import Addresses
    from rmqstore_spark.datasource.pulled.store import PulledStore
    from rmqstore_spark.remoting.access.identity_files import IdentityFiles

__all__ = ["BrokerSpec"]


@dataclass(frozen=True)
class BrokerSpec:
    """What a task needs to pull from a broker.

    Args:
        broker_name: its name.
        addresses: the master and then its slaves.
        name_servers: where to look for them when they have moved.
        timeout_s: seconds after which none of them has answered.
        answer_s: seconds that one may take for an answer.
        identity: names of the files with which to talk to them; contains no secrets.
        only_master: whether slaves are not asked.
        connect_s, retries: see `ServerGroup`.
    """

    broker_name: str
    addresses: Addresses
    name_servers: tuple[str, ...]
    timeout_s: float
    answer_s: float
    identity: IdentityFiles
    only_master: bool = False
    connect_s: float | None = None
    retries: int | None = None

    @property
    def url(self) -> str:
        """What it is, for messages."""
        return f"{self.broker_name} at {' or '.join(self.addresses.listed)}"

    @property
    def master(self) -> BrokerSpec:
        """The master alone: its offsets count. A slave may be behind, and takes no progress.

        Raises:
            ServiceError: no master is registered.
        """
        if not self.addresses.has_master:
            raise ServiceError(
                f"The broker {self.url} has no master now, only slaves. A stream asks the master "
                "for new messages. Start it; the stream then continues from its checkpoint.",
                can_pass=True,
            )
        first = self.addresses._replace(listed=self.addresses.listed[:1])
        return replace(self, addresses=first, answer_s=self.timeout_s, only_master=True)

    def led_by(self, found: Addresses) -> BrokerSpec:
        """Return the same broker for tasks: it was reached, where its processes are now."""
        if found.listed[0] == self.addresses.listed[0]:
            return replace(self, connect_s=None)
        others = [one for one in self.addresses.listed if one not in found.listed]
        addresses = found._replace(listed=(*found.listed, *others))
        return replace(self, addresses=addresses, connect_s=None)

    def open(self, *, patience_s: float = 0.0) -> PulledStore:
        """Return the broker as a store, with connections of its own.

        Args:
            patience_s: for how many seconds to try the master before its slaves are asked.

        Raises:
            OptionError: a file with keys or certificates is missing or wrong.
        """
        from rmqstore_spark.client.brokers.broker import BrokerClient
        from rmqstore_spark.client.brokers.routes import RegisteredBroker
        from rmqstore_spark.datasource.pulled.store import PulledStore
        from rmqstore_spark.remoting.access.identity import ClientIdentity

        identity = ClientIdentity.of(self.identity)
        registered = RegisteredBroker(
            self.name_servers, self.broker_name, identity, only_master=self.only_master
        )
        client = BrokerClient(
            self.broker_name,
            self.addresses,
            self.timeout_s,
            self.answer_s,
            identity,
            patience_s=patience_s,
            finder=registered,
            connect_s=self.connect_s,
            retries=self.retries,
        )
        return PulledStore(self.broker_name, client)
