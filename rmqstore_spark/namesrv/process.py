"""`rmqstore namesrv`: runs a name server from start to shutdown.

SIGTERM, SIGINT or SIGHUP ends it. It has nothing to save then: the key-value configuration is
written at each change, and brokers register again with the next name server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import uvloop

from rmqstore_spark.namesrv.administration import Administration, KvConfig
from rmqstore_spark.namesrv.config import NamesrvConfig
from rmqstore_spark.namesrv.processor import NameServer
from rmqstore_spark.namesrv.tables import RouteTables
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.server import RemotingServer
from rmqstore_spark.remoting.tls import ServerTls

_log = logging.getLogger(__name__)

_IN_FLIGHT: Final = 1024
"""Requests of a connection without an answer: only changes that are being saved have to wait."""


def serve(config: NamesrvConfig, *, announce: Callable[[str], None] = print) -> None:
    """Run a name server until the process is stopped. Call this from the main thread.

    Args:
        config: its configuration.
        announce: called with one line when it listens.

    Raises:
        OptionError: its certificates cannot be used.
        ServiceError: nothing can listen at its address.
        CorruptStoreError, StoreAccessError: its key-value configuration cannot be read.
    """
    uvloop.run(_serve(config, announce))


async def _serve(config: NamesrvConfig, announce: Callable[[str], None]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, ended.set)
    async with running(config) as address:
        if not ipaddress.ip_address(config.bind_address).is_loopback:
            _log.warning(
                "The name server listens on %s. RocketMQ's protocol has no passwords for name "
                "servers: anyone who reaches this address can register brokers and change topics.",
                address,
            )
        announce(f"rmqstore: name server on {address}")
        await ended.wait()
        _log.info("The name server ends.")


@asynccontextmanager
async def running(config: NamesrvConfig) -> AsyncIterator[str]:
    """Run a name server in the event loop of the caller, within the context.

    Args:
        config: its configuration.

    Returns:
        A context manager that gives the address, as `host:port`.

    Raises:
        OptionError: its certificates cannot be used.
        ServiceError: nothing can listen at its address.
        CorruptStoreError, StoreAccessError: its key-value configuration cannot be read.
    """
    tls = ServerTls.of(config)
    kv = KvConfig(config.kv_config_file)
    administration = Administration(config, kv)
    tables = RouteTables(config.max_brokers, config.max_topic_entries)
    service = NameServer(tables, kv, administration)
    limits = Limits(
        connections=config.max_connections,
        held=config.max_held_bytes,
        in_flight=_IN_FLIGHT,
        idle_seconds=config.server_channel_max_idle_time_seconds,
    )
    server = RemotingServer(service, limits, tls)
    address = await server.start(bound_port(config.bind_address, config.listen_port))
    expiring = asyncio.create_task(service.expire())
    try:
        yield address
    finally:
        expiring.cancel()
        with suppress(asyncio.CancelledError):
            await expiring
        await service.drain()
        await server.close()
