"""Figures of a broker, and its configuration (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from dataclasses import replace
from typing import Final

from rmqstore_spark.broker.administration.days import Days
from rmqstore_spark.broker.administration.rates import Rates
from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.consumers.consuming import Consuming
from rmqstore_spark.broker.producing import Producing
from rmqstore_spark.broker.statistics import Statistics
from rmqstore_spark.engine.config.properties_file import format_properties, parse_properties
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import OptionError, RemotingError
from rmqstore_spark.layout.constants import TRACE_TOPIC
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import VERSION, Command
from rmqstore_spark.remoting.codec.fields import Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["BrokerState"]

_log = logging.getLogger(__name__)

_CHANGEABLE: Final = frozenset(
    {"autoCreateTopicEnable", "autoCreateSubscriptionGroup", "brokerPermission"}
)
"""Keys that can be changed while a broker runs."""
_MAX_CHANGE: Final = 1 << 16
_SAMPLE_SECONDS: Final = 10.0
_SHOWN: Final = 255
_USER: Final = re.compile("://.*@", re.DOTALL)
"""Greedy: a password may have any character, `/` and `@` too."""
_NAME: Final = "V4_9_8"
"""The version of RocketMQ whose behaviour this broker has."""


class BrokerState:
    """Tells figures and configuration. Its handlers belong to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        reader: of its records.
        producing, consuming, statistics: have figures.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        reader: QueueReader,
        producing: Producing,
        consuming: Consuming,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._reader = reader
        self._producing = producing
        self._consuming = consuming
        self._statistics = statistics
        self._booted = store.clock()
        self._days = Days(self._booted)
        self._rates = Rates(time.monotonic(), self._put, consuming.given)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._figures,
            RequestCode.VIEW_BROKER_STATS_DATA: self._sums,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.UPDATE_BROKER_CONFIG: self._update_config,
        }

    async def sample(self) -> None:
        """Take note of counts from time to time, until this is cancelled."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            now, put, given = time.monotonic(), self._put, self._consuming.given
            self._rates.sample(now, put, given)
            self._days.sample(self._store.clock(), put, given)
            self._statistics.sample(now)

    @property
    def _put(self) -> int:
        return self._store.put_messages

    def _figures(self, _: RemotingConnection, request: Command) -> Command:
        stats = self._store.stats()
        put, given = self._put, self._consuming.given
        puts, gives = self._rates.texts(time.monotonic(), put, given)
        disk = shutil.disk_usage(self._store.log_folder)
        ratio = str(disk.used / disk.total)
        minutes = max(0, self._store.clock() - self._booted) // 60_000
        table = {
            "bootTimestamp": self._booted,
            "brokerVersion": VERSION,
            "brokerVersionDesc": _NAME,
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
            "pullThreadPoolQueueSize": len(self._consuming),
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
            "sendThreadPoolQueueSize": len(self._producing),
            **self._days.figures(),
        }
        return request.answer(
            body=dump_body({"table": {name: str(value) for name, value in table.items()}})
        )

    def _sums(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        name, key = fields.text("statsName"), fields.text("statsKey")
        sums = self._statistics.sums(name, key, time.monotonic())
        if sums is None:
            shown = [escaped(each[:_SHOWN]) for each in (name, key)]
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{shown[0]}> <{shown[1]}> not exist"
            )
        times = ("statsMinute", "statsHour", "statsDay")
        body = {each: found._asdict() for each, found in zip(times, sums, strict=True)}
        return request.answer(body=dump_body(body))

    def _config(self, _: RemotingConnection, request: Command) -> Command:
        version = dump_body(self._catalog.version()).decode()
        config = self._store.config
        # The URL may have a user's name and password.
        archive = _USER.sub("://***@", config.archive_to)
        body = replace(config, archive_to=archive).to_properties() + _also_told(config)
        return request.answer(ext={"version": version}, body=body.encode())

    def _update_config(self, connection: RemotingConnection, request: Command) -> Command:
        if len(request.body) > _MAX_CHANGE:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"a change of the configuration has more than {_MAX_CHANGE} bytes",
            )
        try:
            values = parse_properties(str(request.body, "utf-8"))
            changed = self._store.config.with_overrides(
                values, source=f"{escaped(connection.peer)} asked for a change: "
            )
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except ValueError as error:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the body is not a properties file: {error}"
            ) from None
        fixed = sorted(values.keys() - _CHANGEABLE)
        if fixed:
            raise RemotingError(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(fixed)} can only be changed in the configuration, before a start; "
                f"while the broker runs: {', '.join(sorted(_CHANGEABLE))}",
            )
        told = ", ".join(f"{name}={values[name]}" for name in sorted(values))
        _log.info("%s changed the configuration: %s.", escaped(connection.peer), escaped(told))
        is_permission = changed.broker_permission != self._store.config.broker_permission
        self._store.reconfigure(changed)
        if is_permission:
            self._catalog.register_again()
        return request.answer()


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
