"""Tells the name servers which topics the broker has: from time to time, and when they change.

The registration also names the store process's endpoint, in the list of filter servers. RocketMQ's
name servers keep that list by the broker's address, and put it into routes. Nothing else of 4.9
fills it, and its clients read it only for subscriptions in class filter mode, which its brokers do
not serve. So Spark finds the endpoint in a route, from any name server.

Upstream: BrokerController.registerBrokerAll, BrokerOuterAPI.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.addresses import means_this_machine
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""How soon a lost connection is noticed: the name server has dropped the broker with it."""
_AGAIN_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 1.0


class Registering:
    """Registers a broker with name servers until it is closed. Use it in an event loop.

    Args:
        store: its configuration says with whom, and under which name; its role, as what.
        catalog: the topics.
        ha_address: returns where slaves connect.
        endpoint: where Spark's clients of other machines are served, as text; "" if it is not.
        identity: with which it talks to them.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        ha_address: Callable[[], str],
        endpoint: str,
        identity: ClientIdentity,
    ) -> None:
        config = store.config
        self._role = store.role
        self._catalog = catalog
        self._period = config.register_name_server_period / 1000
        self._loop = asyncio.get_running_loop()
        self._who = {
            "brokerAddr": config.host[0],
            "brokerName": config.broker_name,
            "clusterName": config.broker_cluster_name,
        }
        self._ha_address = ha_address
        self._endpoints = [endpoint] if endpoint else []
        self._name_servers = [
            _NameServer(self, address, identity)
            for address in config.namesrv_addr.split(";")
            if address
        ]
        remote = next(filter(_is_remote, config.namesrv_addr.split(";")), None)
        if remote is not None and means_this_machine(config.broker_ip1):
            _log.warning(
                "The broker registers as %s with the name server %s: clients on other machines "
                "find that address there, and cannot reach it. Set brokerIP1 and bindAddress.",
                config.host[0], remote,
            )  # fmt: skip

    def topics_changed(self) -> None:
        """Register again at once; see `TopicWatcher`."""
        self._loop.call_soon_threadsafe(self._wake)

    def role_changed(self) -> None:
        """Register again at once, as a master or a slave; see `RoleWatcher`."""
        self.topics_changed()

    async def close(self) -> None:
        """Register no more, and unregister."""
        await asyncio.gather(*(each.close() for each in self._name_servers))

    # ---- for its name servers

    @property
    def period(self) -> float:
        """Seconds from one registration to the next."""
        return self._period

    def registration(self) -> Command:
        """Return the request that registers all topics."""
        version, topics = self._catalog.version(), self._catalog.registered()
        body = {
            "filterServerList": self._endpoints,
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": topics},
        }
        ext = {**self._broker(), "haServerAddr": self._ha_address(), "compressed": "false"}
        return Command(RequestCode.REGISTER_BROKER, ext, dump_body(body))

    def unregistration(self) -> Command:
        """Return the request that ends a registration."""
        return Command(RequestCode.UNREGISTER_BROKER, self._broker())

    def _broker(self) -> dict[str, str]:
        return {**self._who, "brokerId": str(self._role.broker_id)}

    def _wake(self) -> None:
        for each in self._name_servers:
            each.is_due.set()


class _NameServer:
    """One of the name servers.

    Attributes:
        is_due: set when the broker must register at once.
    """

    def __init__(self, registering: Registering, address: str, identity: ClientIdentity) -> None:
        self._registering = registering
        self._address = address
        self._client = RemotingClient(address, tls=identity.tls, credentials=identity.credentials)
        self.is_due = asyncio.Event()
        self._is_registered = False
        self._has_failed = False
        self._is_closed = False
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._is_closed = True  # what it waits for may come at this moment, and hide that it ends
        self.is_due.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._is_registered and self._client.is_open:
            try:
                await self._client.ask_for(self._registering.unregistration(), _LAST_SECONDS)
            except RmqStoreError as error:
                _log.warning("The broker could not unregister: %s", error)
        await self._client.end()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            self.is_due.clear()
            await self._register()
            pause = self._registering.period if self._is_registered else _AGAIN_SECONDS
            until = loop.time() + pause
            while loop.time() < until and not (self._is_registered and not self._client.is_open):
                left = min(_LOOK_SECONDS, max(until - loop.time(), 0))
                try:
                    await asyncio.wait_for(self.is_due.wait(), left)
                    break
                except asyncio.TimeoutError:
                    pass

    async def _register(self) -> None:
        try:
            await self._client.ask_for(self._registering.registration())
        except RmqStoreError as error:
            self._is_registered = False
            if not self._has_failed:
                _log.warning(
                    "The broker could not register with the name server %s, and tries again: %s",
                    self._address, error,
                )  # fmt: skip
            self._has_failed = True
            return
        if not self._is_registered:
            _log.info("The broker is registered with the name server %s.", self._address)
        self._is_registered, self._has_failed = True, False


def _is_remote(address: str) -> bool:
    host = address.strip().rpartition(":")[0]
    return bool(host) and not means_this_machine(host.strip("[]"))
