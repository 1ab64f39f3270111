"""Asks at each address of the group who is there, until each has answered once.

What does not fit is told when the members meet, rather than when the first entry is refused. And a
member that is not the one at its own address ends: another process has its id, and both could
collect votes as the same member. Members of RocketMQ say less of themselves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import OldLog
from rmqstore_spark.consensus.driver.wire import (
    DLedgerRequest,
    Status,
    WireMessage,
    WireMetadataAnswer,
    decode,
    encode,
)
from rmqstore_spark.errors import FrameError, OptionError, ServiceError, UnsupportedStoreError

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0


class GroupIntroduction:
    """Meets the members of a group, this one included.

    Args:
        old: what its store had before.

    Attributes:
        process: tells this process from others; a member says it of itself.
        old: as given.
    """

    def __init__(self, old: OldLog) -> None:
        self.process = secrets.token_hex(8)
        self.old = old
        self._is_warned = False

    async def meet(self, driver: Driver) -> None:
        """Ask those who have not answered, each second.

        The driver ends if its id is another's, or if one that leads had other messages before.
        """
        group = driver.group
        waiting = [group.me, *(peer for peer in group.ids if peer != group.me)]
        others: dict[str, str] = {}
        while waiting or others:
            for member in list(waiting):
                asked = WireMessage(group=group.name, local_id=group.me, remote_id=member)
                try:
                    body = await driver.send(member, DLedgerRequest.METADATA, encode(asked))
                    found = decode(WireMetadataAnswer, body)
                except (ServiceError, FrameError) as error:
                    if member == group.me:
                        self._warn(driver, error)
                    continue
                waiting.remove(member)
                if member == group.me:
                    if found.process != self.process:
                        driver.fail(_another(driver))
                        return
                elif wrong := _wrong(driver, found) or self._differs(found):
                    wrong = f"{member} at {group.addresses[member]} {wrong}"
                    _log.error("%s", wrong)
                    if self._differs(found):
                        others[member] = wrong
            leader = driver.member.leader or ""
            if leader in others:
                text = f"This member cannot follow its leader: {others[leader]}"
                driver.fail(UnsupportedStoreError(text))
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    def _differs(self, found: WireMetadataAnswer) -> str:
        """Return how the messages of before the group differ, as the end of a sentence."""
        old = self.old
        if not old.end or not found.begins_at:
            return ""
        if found.begins_at == old.end and (not old.mark or found.old_log in ("", old.mark)):
            return ""
        is_longer = found.begins_at != old.end
        what = (
            f"up to {found.begins_at}, and this member up to {old.end}"
            if is_longer
            else ("that are not those of this member")
        )
        return (
            f"has messages of before the group {what}. Members need the same in commitlog/, or "
            "none: copy the store of one to the others, and start the group again."
        )

    def _warn(self, driver: Driver, error: Exception) -> None:
        if not self._is_warned:
            group = driver.group
            _log.warning(
                "This member does not reach itself at %s, where dLegerPeers has it: %s It cannot "
                "see whether another process has its dLegerSelfId, %s.",
                group.addresses[group.me], error, group.me,
            )  # fmt: skip
        self._is_warned = True


def _another(driver: Driver) -> OptionError:
    me = driver.group.me
    return OptionError(
        f"Another process answers at {driver.group.addresses[me]}, where dLegerPeers has {me}, "
        f"and dLegerSelfId of this one is {me} too. Give each member an id of its own, and run it "
        "where dLegerPeers says."
    )


def _wrong(driver: Driver, found: WireMetadataAnswer) -> str:
    """Return why a member cannot be in the group of this one, as the end of a sentence."""
    group, size = driver.group, driver.log.segment_size
    if found.code == Status.UNKNOWN_GROUP:
        return f"is not in the group {group.name}. All members need the same dLegerGroup."
    if found.code == Status.UNKNOWN_MEMBER:
        return "is another member there. All members need the same dLegerPeers."
    if found.segment_size not in (0, size):
        return (
            f"has mappedFileSizeCommitLog={found.segment_size}, and this member {size}. All "
            "members need the same: one refuses what the other appends."
        )
    if found.peers and found.peers != group.addresses:
        return "has another dLegerPeers. All members need the same."
    return ""
