"""What administrators and slaves ask of a broker itself: figures, settings, tables, cleaning.

Upstream: AdminBrokerProcessor, BrokerStats, StoreStatsService, SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.consumers.pulls import Pulls
from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.broker.core.statistics import Statistics, Sum
from rmqstore_spark.engine.config.properties_file import format_properties, parse_properties
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.followed import DELETED_TOPICS, PROMOTIONS
from rmqstore_spark.engine.tables.queue_ends import QUEUE_ENDS
from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.layout.constants import TRACE_TOPIC

_log = logging.getLogger(__name__)

_TIMES: Final = (10.0, 60.0, 600.0)
_MOST: Final = 64


class _Sample(NamedTuple):
    at: float
    put: int
    given: int


class Rates:
    """Rates from counts that are told about every ten seconds.

    Args:
        now: seconds of a clock that only goes forward.
        put, given: the counts now.
    """

    def __init__(self, now: float, put: int, given: int) -> None:
        self._samples = deque([_Sample(now, put, given)], _MOST)

    def sample(self, now: float, put: int, given: int) -> None:
        """Take note of the counts."""
        self._samples.append(_Sample(now, put, given))

    def texts(self, now: float, put: int, given: int) -> tuple[str, str]:
        """Return both rates as a broker tells them: over 10, 60 and 600 seconds.

        Args:
            now: the time.
            put, given: the counts now.
        """
        last = _Sample(now, put, given)
        rates = [self._rate(last, seconds) for seconds in _TIMES]
        puts, gives = zip(*rates, strict=True)
        return " ".join(map(str, puts)), " ".join(map(str, gives))

    def _rate(self, last: _Sample, seconds: float) -> tuple[float, float]:
        before = [sample for sample in self._samples if last.at - sample.at >= seconds]
        first = before[-1] if before else self._samples[0]
        took = last.at - first.at
        if took <= 0:
            return 0.0, 0.0
        return (last.put - first.put) / took, (last.given - first.given) / took


_NOTHING: Final = (0, 0)


class Days:
    """The counts with which this day and the one before began, at the machine's midnight.

    The days before the process count as without messages.

    Args:
        now: milliseconds since the epoch.
    """

    def __init__(self, now: int) -> None:
        self._day = _day(now)
        self._mornings = _NOTHING, _NOTHING  # yesterday's, and today's

    def sample(self, now: int, put: int, given: int) -> None:
        """Take note of the counts. A day begins with the first call after midnight.

        Args:
            now: milliseconds since the epoch.
            put, given: the counts since the start.
        """
        day = _day(now)
        if day > self._day:  # a clock that is set back begins no day
            self._day = day
            self._mornings = self._mornings[1], (put, given)

    def figures(self) -> dict[str, int]:
        """Return the counts, with a broker's names."""
        yesterday, today = self._mornings
        return {
            "msgPutTotalYesterdayMorning": yesterday[0],
            "msgPutTotalTodayMorning": today[0],
            "msgGetTotalYesterdayMorning": yesterday[1],
            "msgGetTotalTodayMorning": today[1],
        }


def _day(now: int) -> tuple[int, int]:
    local = time.localtime(now / 1000)
    return local.tm_year, local.tm_yday


_CHANGEABLE: Final = frozenset(
    {"autoCreateTopicEnable", "autoCreateSubscriptionGroup", "brokerPermission"}
)
"""Keys that can be changed while a broker runs."""
_MAX_CHANGE: Final = 1 << 16
_SAMPLE_SECONDS: Final = 10.0
_USER: Final = re.compile("://.*@", re.DOTALL)
"""Greedy: a password may have any character, `/` and `@` too."""


class WaitingRequests(NamedTuple):
    """How many requests wait to be handled."""

    sends: int
    pulls: int


class SumsAsked(NamedTuple):
    """What was counted, and whose."""

    name: str
    key: str


class BrokerState:
    """Tells figures and configuration. Used by one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        reader: of its records.
        pulls, statistics: have figures.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        reader: QueueReader,
        pulls: Pulls,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._reader = reader
        self._pulls = pulls
        self._statistics = statistics
        self._booted = store.clock()
        self._days = Days(self._booted)
        self._rates = Rates(time.monotonic(), self._put, pulls.given)

    async def sample(self) -> None:
        """Take note of counts from time to time, until this is cancelled."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            now, put, given = time.monotonic(), self._put, self._pulls.given
            self._rates.sample(now, put, given)
            self._days.sample(self._store.clock(), put, given)
            self._statistics.sample(now)

    @property
    def _put(self) -> int:
        return self._store.put_messages

    def figures(self, waiting: WaitingRequests) -> dict[str, object]:
        """Return figures by RocketMQ's names.

        Args:
            waiting: requests that are not handled yet.
        """
        stats = self._store.stats()
        put, given = self._put, self._pulls.given
        puts, gives = self._rates.texts(time.monotonic(), put, given)
        disk = shutil.disk_usage(self._store.log_folder)
        ratio = str(disk.used / disk.total)
        minutes = max(0, self._store.clock() - self._booted) // 60_000
        return {
            "bootTimestamp": self._booted,
            "commitLogDiskRatio": ratio,
            "commitLogDirCapacity": (
                f"Total : {disk.total / 2**30:.1f} GiB, Free : {disk.free / 2**30:.1f} GiB."
            ),
            "commitLogMaxOffset": stats["commitLogMaxOffset"],
            "commitLogMinOffset": stats["commitLogMinOffset"],
            "consumeQueueDiskRatio": ratio,
            "dispatchBehindBytes": stats["dispatchBehindBytes"],
            "earliestMessageTimeStamp": self._reader.first_stored(),
            "getTotalTps": gives,
            "getTransferedTps": gives,
            "getTransferredTps": gives,  # what mqadmin of RocketMQ 5 looks for
            "msgGetTotalTodayNow": given,
            "msgPutTotalTodayNow": put,
            "pageCacheLockTimeMills": 0,
            "pullThreadPoolQueueHeadWaitTimeMills": 0,
            "pullThreadPoolQueueSize": waiting.pulls,
            "putMessageAverageSize": stats["putBytes"] / max(1, stats["putMessages"]),
            "putMessageSizeTotal": stats["putBytes"],
            "putMessageTimesTotal": stats["putMessages"],
            "putTps": puts,
            "remainHowManyDataToFlush": (
                f"{stats['commitLogMaxOffset'] - stats['commitLogFlushedOffset']} B"
            ),
            "runtime": (
                f"[ {minutes // 1440} days, {minutes // 60 % 24} hours, {minutes % 60} minutes ]"
            ),
            "sendThreadPoolQueueHeadWaitTimeMills": 0,
            "sendThreadPoolQueueSize": waiting.sends,
            **self._days.figures(),
        }

    def sums(self, asked: SumsAsked) -> tuple[Sum, Sum, Sum]:
        """Return what was counted in the last minute, hour and day.

        Raises:
            Refusal: nothing was ever counted.
        """
        sums = self._statistics.sums(asked.name, asked.key, time.monotonic())
        if sums is None:
            raise Refusal(
                Reason.WRONG, f"The stats <{shown(asked.name)}> <{shown(asked.key)}> not exist"
            )
        return sums

    def config(self) -> tuple[dict[str, int], str]:
        """Return the number of the topics' last change with its time, and a properties file."""
        config = self._store.config
        # The URL may have a user's name and password.
        archive = _USER.sub("://***@", config.archive_to)
        text = replace(config, archive_to=archive).to_properties() + _also_told(config)
        return self._catalog.version(), text

    def update_config(self, wanted: bytes, peer: str) -> None:
        """Change the configuration.

        Args:
            wanted: the changes, as a properties file.
            peer: address of who wants it.

        Raises:
            Refusal: it is wrong, or cannot be changed while the broker runs.
        """
        if len(wanted) > _MAX_CHANGE:
            raise Refusal(
                Reason.WRONG, f"a change of the configuration has more than {_MAX_CHANGE} bytes"
            )
        try:
            values = parse_properties(str(wanted, "utf-8"))
            changed = self._store.config.with_overrides(
                values, source=f"{escaped(peer)} asked for a change: "
            )
        except OptionError as error:
            raise Refusal(Reason.WRONG, str(error)) from None
        except ValueError as error:
            raise Refusal(Reason.WRONG, f"the body is not a properties file: {error}") from None
        fixed = sorted(values.keys() - _CHANGEABLE)
        if fixed:
            raise Refusal(
                Reason.NOT_PERMITTED,
                f"{', '.join(fixed)} can only be changed in the configuration, before a start; "
                f"while the broker runs: {', '.join(sorted(_CHANGEABLE))}",
            )
        told = ", ".join(f"{name}={values[name]}" for name in sorted(values))
        _log.info("%s changed the configuration: %s.", escaped(peer), escaped(told))
        is_permission = changed.broker_permission != self._store.config.broker_permission
        self._store.reconfigure(changed)
        if is_permission:
            self._catalog.register_again()


def _also_told(config: StoreConfig) -> str:
    """Return keys of a broker that have no effect here, without which mqadmin exports nothing."""
    keys = {
        "filterServerNums": "0",
        "msgTraceTopicName": TRACE_TOPIC,
        "traceOn": "true",  # clients may send traces, as to any topic
        "traceTopicEnable": "false",  # the topic is not created at the start
        "useTLS": str(config.tls_enable).lower(),
    }
    return format_properties(keys)


_MS_PER_HOUR: Final = 3_600_000


def expire(store: StoreWriter, peer: str) -> None:
    """Begin to remove what is older than `fileReservedTime`, whatever the hour.

    Args:
        store: the store.
        peer: address of who wants it.

    Raises:
        Refusal: the store does not do it now.
    """
    hours = store.config.file_reserved_time
    if hours:
        try:
            store.expire(store.clock() - hours * _MS_PER_HOUR)
        except RefusedError as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error
        _log.info(
            "%s had segments removed that are older than %d hours (fileReservedTime).",
            escaped(peer), hours,
        )  # fmt: skip


class SlaveTables:
    """Tells slaves the tables, each as its file has it. Used by one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog

    def topics(self, *, with_queue_ends: bool = False) -> dict[str, Any]:
        """Return all topics; and for slaves of ours, those that were deleted, and promotions.

        Args:
            with_queue_ends: return where their queues end, too, if the store knows that.
        """
        found: dict[str, Any] = {
            "dataVersion": self._catalog.version(),
            "topicConfigTable": self._catalog.topics(),
            # After the topics: what these lack is then among the deletions, unless it is deleted
            # right now.
            DELETED_TOPICS: dict(self._store.deleted_topics),
        }
        if promotions := self._store.role.promotions:
            found[PROMOTIONS] = [list(promotion) for promotion in promotions]
        if with_queue_ends and (told := self._store.told_queue_ends()).known:
            found[QUEUE_ENDS] = told.ends
        return found

    def consumer_offsets(self) -> dict[str, Any]:
        """Return the offsets of all groups."""
        # Slaves of RocketMQ 5 write no offsets without a version; those of 4.9 pass over it.
        offsets = self._store.consumer_offsets
        return {"dataVersion": offsets.version(), "offsetTable": offsets.table()}

    def delay_offsets(self) -> dict[str, Any]:
        """Return how far delayed messages are delivered."""
        # The file covers only copies that are on disk, unlike what the process has in memory.
        # A slave of ours needs to know which, too; RocketMQ's passes over that.
        return {"offsetTable": {}, **ConfigFile(self._store.path, "delayOffset").value}

    def groups(self) -> dict[str, Any]:
        """Return all groups."""
        return self._store.groups.to_json()
