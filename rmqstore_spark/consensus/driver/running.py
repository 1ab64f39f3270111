"""A member that runs, with its port, until it is ended or fails."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from rmqstore_spark.consensus.driver.driver import Driver, MemberWatcher
from rmqstore_spark.consensus.driver.group import MemberGroup, MemberStore
from rmqstore_spark.consensus.driver.introduction import GroupIntroduction
from rmqstore_spark.consensus.driver.peers import FRAME
from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.consensus.driver.service import MemberService
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.server import RemotingServer

_log = logging.getLogger(__name__)

_LIMITS: Final = Limits(
    frame=FRAME, connections=256, held=128 << 20, connection_held=32 << 20, in_flight=4096
)


class RunningMember:
    """A member in the thread of a running event loop.

    Args:
        group: the group, and who of it this is.
        store, segment_size, reserved_seconds, timing, watcher: see `Driver`.
        takes_records, broker: see `MemberService`.
        protection: TLS and accounts.
        served: the store, if it serves clients.

    Attributes:
        driver: carries out what the member decides.

    Raises:
        CorruptStoreError, UnsupportedStoreError: see `Driver`.
    """

    def __init__(
        self,
        group: MemberGroup,
        store: str,
        segment_size: int,
        reserved_seconds: float,
        *,
        timing: Timing,
        takes_records: bool = True,
        broker: str = "",
        protection: MemberProtection | None = None,
        served: MemberStore | None = None,
        watcher: MemberWatcher | None = None,
    ) -> None:
        protection = protection or MemberProtection()
        self._contact = GroupIntroduction(served)
        self._service = MemberService(
            group, takes_records=takes_records, broker=broker, gate=protection.gate,
            contact=self._contact,
        )  # fmt: skip
        self._server = RemotingServer(self._service, _LIMITS, protection.tls)
        self.driver = Driver(
            group, store, segment_size, reserved_seconds,
            answer=self._service.answer, timing=timing, watcher=watcher, protection=protection,
            begins_at=served.old.end if served else 0,
        )  # fmt: skip
        self._service.driver = self.driver
        if not self.driver.member.is_voter:
            _log.warning(
                "%s began without files in %s: it is new, or has lost them. It asks the others "
                "for their terms, and acknowledges nothing until all, or enough that may vote, "
                "have told them. If the group is new, it votes then; otherwise when it has all "
                "that the leader has committed.",
                group.me, self.driver.log.data.folder,
            )  # fmt: skip

    async def serve(
        self,
        bound: socket.socket,
        preferred: Sequence[str],
        ended: asyncio.Event,
        ready: Callable[[str], object],
    ) -> None:
        """Run until it is ended, and close all.

        Args:
            bound: a socket of `addresses.bound_port`.
            preferred: the ids of those that should lead.
            ended: is set to end it.
            ready: is called with the address when it listens.

        Raises:
            RmqStoreError: what makes it fail.
        """
        failed = self.driver.failed
        beside = [asyncio.ensure_future(self._service.prefer(tuple(preferred)))]
        stop = asyncio.ensure_future(ended.wait())
        try:
            address = await self._server.start(bound)
            beside.append(asyncio.ensure_future(self._contact.meet(self.driver)))
            ready(address)
            await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            for task in (*beside, stop):
                task.cancel()
            await asyncio.gather(*beside, stop, return_exceptions=True)
            await self._server.close()
            await self._service.close()
            await self.driver.close()
