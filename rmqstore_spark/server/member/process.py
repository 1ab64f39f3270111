"""`rmqstore member`: runs a member from start to shutdown.

SIGTERM or SIGINT ends it in order. After an error of its disk or its log, it ends with that error:
it must not acknowledge anything until a start has read the disk again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import uvloop

from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.peers import FRAME
from rmqstore_spark.consensus.driver.service import MemberService
from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.files.durable import make_folder
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.server import RemotingServer
from rmqstore_spark.server.member.config import MemberConfig

_log = logging.getLogger(__name__)

_CONNECTIONS: Final = 256
_HELD: Final = 128 << 20
_CONNECTION_HELD: Final = 32 << 20
_IN_FLIGHT: Final = 4096


def serve(config: MemberConfig, *, announce: Callable[[str], None] = print) -> None:
    """Run a member until the process is stopped. Call this from the main thread.

    Args:
        config: its configuration.
        announce: called with one line when it listens.

    Raises:
        OptionError: its configuration is wrong.
        ServiceError: nothing can listen at its address.
        StoreLockedError: another process has the store open for writing.
        CorruptStoreError: its files are damaged, or its group contradicts what is committed here.
        StoreWriteError: a file could not be written or flushed.
    """
    uvloop.run(_serve(config, announce))


async def _serve(config: MemberConfig, announce: Callable[[str], None]) -> None:
    group = config.group()
    store = config.store_path_root_dir
    make_folder(store)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    with StoreLock(store):
        service = MemberService(group)
        limits = Limits(
            frame=FRAME,
            connections=_CONNECTIONS,
            held=_HELD,
            connection_held=_CONNECTION_HELD,
            in_flight=_IN_FLIGHT,
        )
        server = RemotingServer(service, limits)
        bound = bound_port(config.bind_address, group.port)
        driver = Driver(
            group,
            store,
            config.mapped_file_size_commit_log,
            config.file_reserved_time * 3600,
            answer=service.answer,
            timing=config.timing,
        )
        service.driver = driver
        try:
            address = await server.start(bound)
            announce(f"rmqstore: member {group.me} of {group.name} on {address}")
            await _until(ended, driver.failed, service.prefer(config.preferred_leaders))
        finally:
            await server.close()
            await service.close()
            await driver.close()


async def _until(
    ended: asyncio.Event, failed: asyncio.Future[None], beside: Coroutine[Any, Any, None]
) -> None:
    """Wait until the process is stopped; raise what makes the member fail."""
    work = asyncio.ensure_future(beside)
    stop = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        _log.info("The member ends.")
    finally:
        for task in (work, stop):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
