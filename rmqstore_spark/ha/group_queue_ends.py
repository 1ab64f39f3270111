"""Asks the other members of a group where queues end, for one that began without queues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from rmqstore_spark.consensus.driver.queue_end_pages import BEFORE_ALL, Route
from rmqstore_spark.engine.group.member_thread import MemberThread
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.queue_ends import MOST_QUEUES, told_ends
from rmqstore_spark.errors import RmqStoreError, ServiceError

_log = logging.getLogger(__name__)


class _Told(NamedTuple):
    """What a member says on all pages; see `QueueEndsTold`."""

    known: bool
    ends: dict[Route, int]
    log_end: int


def learn_queue_ends(store: StoreWriter, is_ending: Callable[[], bool]) -> str:
    """Ask the other members once, one after the other, until one tells all.

    Args:
        store: the store, which lacks them.
        is_ending: whether it is to be given up.

    Returns:
        Why that does not suffice, or "".
    """
    member, ends = store.member, store.queue_ends
    try:
        begin = member.log_begin()
        if begin is None:
            return ""
        if begin == (0, 0):  # nothing was before the log
            ends.learn({})
            return ""
        found: dict[Route, int] = {}
        why_not, others = [], member.others
        for peer in others:
            try:
                told = _told_by(member, peer, is_ending)
            except (ServiceError, ValueError, TypeError) as error:
                why_not.append(f"{peer}: {str(error).removesuffix('.')}")
                continue
            if told.known and told.log_end >= begin[1]:
                ends.learn(told.ends)
                _log.info("%s says where %d queues end.", peer, len(told.ends))
                return ""
            if told.known:
                why_not.append(f"{peer}: it does not have what this one begins with yet")
            _take(found, told.ends)
        if why_not:
            return "; ".join(why_not)
        ends.learn(found)
        if others:
            _log.warning(
                "No other member says where queues end whose messages have expired: they began "
                "without queues, too, or are RocketMQ's, or only vote. If this one leads, such "
                "queues may begin at offset 0 again."
            )
        return ""
    except RmqStoreError as error:
        return str(error).removesuffix(".")


def _told_by(member: MemberThread, peer: str, is_ending: Callable[[], bool]) -> _Told:
    """Return what a member says, from all of its pages.

    Raises:
        ServiceError: it does not say it.
        ValueError, TypeError: what it says is not where queues end.
    """
    ends: dict[Route, int] = {}
    known, log_end, last = True, 1 << 62, BEFORE_ALL
    while True:
        page = member.queue_ends_of(peer, last)
        theirs = told_ends(page.ends)
        _take(ends, theirs)
        # Pages can be of different times: what is in all of them counts.
        known, log_end = known and page.known, min(log_end, page.log_end)
        if page.is_last:
            return _Told(known, ends, log_end)
        furthest = max(theirs, default=BEFORE_ALL)
        if furthest <= last:
            raise ServiceError("a page has no queues behind those of the page before")
        if len(ends) > MOST_QUEUES:
            raise ServiceError(f"it says where more than {MOST_QUEUES} queues end")
        if is_ending():
            raise ServiceError("this member ends")
        last = furthest


def _take(ends: dict[Route, int], more: dict[Route, int]) -> None:
    for route, end in more.items():
        ends[route] = max(end, ends.get(route, 0))
