"""Runs a broker beside the rest of a store process: its event loop has a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import uvloop

from rmqstore_spark.broker.acl.gate import AccountGate, Gate, OpenGate, SlavesGate
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Group
from rmqstore_spark.broker.faces.remoting.registering import Registering
from rmqstore_spark.broker.faces.remoting.row import rights_of
from rmqstore_spark.broker.faces.remoting.service import BrokerService
from rmqstore_spark.broker.faces.remoting.table import ROWS
from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.listener import OtherProtocol
from rmqstore_spark.remoting.server import RemotingServer

_log = logging.getLogger(__name__)

_LIMITS: Final = Limits(in_flight=20_000)
_VIP: Final = 2
"""How far below `listenPort` clients expect the port for those that matter more."""


class BrokerRunner:
    """Lets RocketMQ's clients use a store, from its construction until `close`.

    If these are not served, the store is a member of a group, and only followers copy from it what
    is not in the log: no name server hears of it, and there is no VIP port.

    Args:
        store: the store; it is not closed here.
        bound: the socket of its port, which is closed here.
        protection: accounts and TLS.
        ha_address: returns where slaves connect, as `host:port`; "" if none are taken.
        endpoint: where Spark's clients of other machines are served; "" if they are not.
        other: the protocol of Spark's clients, if they are served on the same port.

    Attributes:
        address: where clients connect, as `host:port`.

    Raises:
        OptionError: `brokerId` does not fit the store's role.
        ServiceError: nothing can listen there.
    """

    def __init__(
        self,
        store: StoreWriter,
        bound: socket.socket,
        protection: Protection,
        ha_address: Callable[[], str] = str,
        endpoint: str = "",
        other: OtherProtocol | None = None,
    ) -> None:
        config = store.config
        self._serves_all = config.serves_rocketmq or not config.enable_d_leger_commit_log
        if self._serves_all and config.vip_listen_port < 0 and config.listen_port <= _VIP:
            raise OptionError(
                f"listenPort is {config.listen_port}, and the VIP port would be {_VIP} below it: "
                "give vipListenPort, or another listenPort."
            )
        broker_id = store.role.broker_id
        if store.role.follows != (broker_id > 0):
            raise OptionError(
                f"brokerId is {broker_id}: a SLAVE that is a broker needs a "
                "number above 0, and a master has 0."
            )
        self._store = store
        self._bound = bound
        self._protection = protection
        self._other = other
        self._ha_address = lambda: ha_address() or _next_port(config.host[0])
        self._endpoint = endpoint
        self.address = ""
        self._ended: Callable[[], object] = lambda: None
        self._server: RemotingServer | None = None
        self._service: BrokerService | None = None
        self._failure: BaseException | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-broker", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        self._check()

    @property
    def held(self) -> int:
        """Bytes of requests and answers of clients in memory."""
        return 0 if self._server is None else self._server.held

    def consumer_groups(self) -> Mapping[str, Group]:
        """Return the consumer groups of which a member is connected, by name."""
        return {} if self._service is None else self._service.clients.consumer_groups()

    def close(self) -> None:
        """Unregister, finish what is being handled, and close all connections."""
        with suppress(RuntimeError):  # the event loop has ended with an error
            self._ended()
        self._thread.join()

    def _check(self) -> None:
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self) -> None:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - the constructor raises it, or the log has it
            self._failure = error
            if self._is_ready.is_set():
                _log.exception("The broker has ended.")
        finally:
            self._is_ready.set()
            loop.close()

    async def _serve(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        catalog = Catalog(self._store)
        protection = self._protection
        accounts = protection.accounts
        gate: Gate = OpenGate() if accounts is None else AccountGate(accounts, rights_of(ROWS))
        if not self._serves_all:
            gate = SlavesGate(gate)
        broker = self._service = BrokerService(self._store, catalog, gate)
        server = self._server = RemotingServer(broker, _LIMITS, protection.tls)
        try:
            await self._listen(server)
            async with self._registered(catalog):
                self._ended = lambda: loop.call_soon_threadsafe(ended.set)
                self._is_ready.set()
                await ended.wait()
        finally:
            await broker.close()
            await server.close()

    @asynccontextmanager
    async def _registered(self, catalog: Catalog) -> AsyncIterator[None]:
        """Register with name servers, within the context, if clients are served."""
        if not self._serves_all:
            yield
            return
        registering = Registering(
            self._store, catalog, self._ha_address, self._endpoint, self._protection.identity
        )
        self._store.topics.watch(registering)
        self._store.role.watch(registering)
        try:
            yield
        finally:
            self._store.topics.unwatch(registering)
            self._store.role.unwatch(registering)
        await registering.close()

    async def _listen(self, server: RemotingServer) -> None:
        config = self._store.config
        self.address = await server.start(self._bound, self._other)
        vip = config.vip_listen_port
        if vip and self._serves_all:
            port = vip if vip > 0 else config.listen_port - _VIP
            try:
                await server.start(bound_port(config.bind_address, port), self._other)
            except ServiceError as error:
                raise ServiceError(
                    f"{error} This is the VIP port: listenPort - {_VIP}, or vipListenPort; "
                    "set vipListenPort=0 to disable it."
                ) from error


def _next_port(address: str) -> str:
    """Return where a broker at an address serves slaves, unless it is configured."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
