"""`rmqstore member`: runs a member from start to shutdown.

SIGTERM or SIGINT ends it in order. After an error of its disk or its log, it ends with that error:
it must not acknowledge anything until a start has read the disk again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext

import uvloop

from rmqstore_spark.broker.protection import account_files, protection_of_member
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.consensus.driver.running import RunningMember
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.engine.group.member_port import bound_member_port
from rmqstore_spark.engine.lock import OpenMark, StoreLock
from rmqstore_spark.errors import UnsupportedStoreError
from rmqstore_spark.files.directory import SERVED
from rmqstore_spark.files.durable import make_folder
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.server.member.config import MemberConfig

_log = logging.getLogger(__name__)


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
    accounts = None
    if config.d_leger_acl_enable:
        accounts = account_files(config.acl_path, "dLegerAclEnable")
    protection = protection_of_member(config, accounts)
    with nullcontext() if accounts is None else accounts.watched():
        uvloop.run(_serve(config, protection, announce))


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


async def _serve(
    config: MemberConfig, protection: MemberProtection, announce: Callable[[str], None]
) -> None:
    group = config.group()
    store = config.store_path_root_dir
    make_folder(store)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if any(segment_start(name) is not None for name in _names(os.path.join(store, "commitlog"))):
        raise UnsupportedStoreError(
            f"{store} has messages of before the group in its folder commitlog, and a member that "
            "serves no clients would keep them for ever. Run it with `rmqstore serve`, or begin "
            "with an empty store."
        )
    served = [name for name in SERVED if os.path.lexists(os.path.join(store, name))]
    if served:
        raise UnsupportedStoreError(
            f"{store} has {', '.join(served)}, since it has served clients, and a member that "
            "serves none would let them fall behind. Run it with `rmqstore serve`; or move "
            f"{', '.join(SERVED)} out of it: they are built again when it serves clients."
        )
    with StoreLock(store):
        bound = bound_member_port(group, config.d_leger_bind_address, protection)
        member = RunningMember(
            group,
            store,
            config.mapped_file_size_commit_log,
            config.file_reserved_time * 3600,
            timing=Timing.of(config.d_leger_heartbeat_interval),
            protection=protection,
        )

        OpenMark(store).place()  # it stays: a broker that opens this must build queues

        def ready(address: str) -> None:
            announce(f"rmqstore: member {group.me} of {group.name} on {address}")

        await member.serve(bound, config.preferred_leaders, ended, ready)
        _log.info("The member ends.")
