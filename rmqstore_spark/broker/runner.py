"""Runs a broker beside the rest of a store process: its event loop has a thread of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvloop

from rmqstore_spark.broker.acl.files import AccountFiles
from rmqstore_spark.broker.acl.gate import AccountGate, OpenGate
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.faces.remoting.registering import Registering
from rmqstore_spark.broker.faces.remoting.row import rights_of
from rmqstore_spark.broker.faces.remoting.service import Broker
from rmqstore_spark.broker.faces.remoting.table import ROWS
from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.limits import Limits
from rmqstore_spark.remoting.server import RemotingServer
from rmqstore_spark.remoting.tls import TlsMode

__all__ = ["BrokerRunner"]

_log = logging.getLogger(__name__)

_LIMITS: Final = Limits(in_flight=20_000)
_RELOAD_SECONDS: Final = 1.0
_VIP: Final = 2
"""How far below `listenPort` clients expect the port for those that matter more."""


class BrokerRunner:
    """Lets RocketMQ's clients use a store, from its construction until `close`.

    Args:
        store: the store; it is not closed here.
        ha_address: returns where slaves connect, as `host:port`; "" if none are taken.
        endpoint: where Spark's clients of other machines are served; "" if it is not.

    Attributes:
        address: where clients connect, as `host:port`.

    Raises:
        OptionError: `brokerId` does not fit the store's role, or accounts, keys or certificates
            cannot be used.
        ServiceError: nothing can listen there.
    """

    def __init__(
        self, store: StoreWriter, ha_address: Callable[[], str] = str, endpoint: str = ""
    ) -> None:
        config = store.config
        if config.vip_listen_port < 0 and config.listen_port <= _VIP:
            raise OptionError(
                f"listenPort is {config.listen_port}, and the VIP port would be {_VIP} below it: "
                "give vipListenPort, or another listenPort."
            )
        broker_id = store.role.broker_id
        if store.role.follows != (broker_id > 0):
            raise OptionError(
                f"brokerId is {broker_id}: a SLAVE that is a broker (listenPort) needs a "
                "number above 0, and a master has 0."
            )
        self._store = store
        self._protection = Protection.of(config)
        self._ha_address = lambda: ha_address() or _next_port(config.host[0])
        self._endpoint = endpoint
        self.address = ""
        self._ended: Callable[[], object] = lambda: None
        self._server: RemotingServer | None = None
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
        gate = OpenGate() if accounts is None else AccountGate(accounts, rights_of(ROWS))
        broker = Broker(self._store, catalog, gate)
        server = self._server = RemotingServer(broker, _LIMITS, protection.tls)
        try:
            await self._listen(server)
            reloading = None if accounts is None else asyncio.create_task(_reload(accounts))
            registering = Registering(
                self._store, catalog, self._ha_address, self._endpoint, protection.identity
            )
            self._store.topics.watch(registering)
            self._store.role.watch(registering)
            self._ended = lambda: loop.call_soon_threadsafe(ended.set)
            self._is_ready.set()
            try:
                await ended.wait()
            finally:
                self._store.topics.unwatch(registering)
                self._store.role.unwatch(registering)
            await registering.close()
            if reloading is not None:
                reloading.cancel()
                await asyncio.gather(reloading, return_exceptions=True)
        finally:
            await broker.close()
            await server.close()

    async def _listen(self, server: RemotingServer) -> None:
        config = self._store.config
        host = config.remoting_bind_address
        self.address = await server.start(host, config.listen_port)
        vip = config.vip_listen_port
        if vip:
            try:
                await server.start(host, vip if vip > 0 else config.listen_port - _VIP)
            except ServiceError as error:
                raise ServiceError(
                    f"{error} This is the VIP port: listenPort - {_VIP}, or vipListenPort; "
                    "set vipListenPort=0 to disable it."
                ) from error
        has_accounts = self._protection.accounts is not None
        if has_accounts and not (config.token_path or config.tls_trust_cert_path):
            _log.warning(
                "Accounts (aclEnable) guard RocketMQ's protocol only: anyone who reaches the "
                "endpoint for Spark can read and write all topics. Set tokenPath."
            )
        if ipaddress.ip_address(host).is_loopback:
            return
        if not has_accounts:
            _log.warning(
                "The broker listens on %s. It requires no authentication: anyone who reaches this "
                "address can send and consume messages.", self.address,
            )  # fmt: skip
        elif self._protection.tls.mode is not TlsMode.ENFORCING:
            _log.warning(
                "The broker listens on %s, also without TLS: anyone who can read the connections "
                "of clients can send again what they sent. See tlsServerMode.", self.address,
            )  # fmt: skip


async def _reload(accounts: AccountFiles) -> None:
    """Look at the files with accounts from time to time."""
    while True:
        await asyncio.sleep(_RELOAD_SECONDS)
        try:
            await asyncio.to_thread(accounts.reload)
        except Exception:  # noqa: BLE001 - they would never be read again
            _log.exception("The accounts could not be read again; they stay as they were.")


def _next_port(address: str) -> str:
    """Return where a broker at an address serves slaves, unless it is configured."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
