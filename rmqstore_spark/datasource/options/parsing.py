"""Turn the texts that Spark passes into checked, typed options."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rmqstore_spark.datasource.options.connection import ConnectionOptions, check_remoting
from rmqstore_spark.datasource.options.option import BATCH, BOTH, STREAM, OptionTable
from rmqstore_spark.datasource.options.positions import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Position,
)
from rmqstore_spark.datasource.options.sink_table import SINK_OPTIONS, SPARKS_OWN, WRITING
from rmqstore_spark.datasource.options.table import OPTIONS, READING
from rmqstore_spark.errors import OptionError

__all__ = ["Options", "check_options", "check_table_options", "parse_options"]

_EITHER = OptionTable((*OPTIONS, *SINK_OPTIONS))
_log = logging.getLogger("rmqstore_spark")

_PLACES = ("path", "endpoint", "namesrvAddr")


@dataclass(frozen=True)
class Options:
    """The options of one query, checked against each other.

    Args:
        paths: paths of the stores; empty if they are read through their processes.
        connection: connection to those processes; None if there are paths.
        name_servers: addresses of name servers that know the processes; empty if options do.
        replica_timeout_ms: how long a replica may take, or stay behind, before another is read.
        commitlog_paths: folders of the only store, or by broker; None means the default.
        topics: from `subscribe`; None if not given, as with `pattern` and `assign`.
        tags: None means all.
        max_rows, min_rows, max_bytes: limits of a micro-batch; delays are milliseconds.
        plan_by: auto, queue or commitlog.
        spares_page_cache: whether reading leaves the page cache as it was.
        mode: FAILFAST or DROPMALFORMED.
    """

    paths: tuple[str, ...]
    connection: ConnectionOptions | None
    name_servers: tuple[str, ...]
    broker_names: tuple[str, ...] | None
    replica_timeout_ms: int
    commitlog_paths: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None
    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    assign: Mapping[str, tuple[int, ...]] | None
    include_system: bool
    starting: Position
    starting_option: str
    ending: Position
    ending_option: str
    no_match_is_latest: bool
    fail_on_data_loss: bool
    max_rows: int | None
    min_rows: int | None
    max_delay_ms: int
    max_bytes: int | None
    commit_group: str | None
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    tags: frozenset[str] | None
    keys: frozenset[str] | None
    plan_by: Literal["auto", "queue", "commitlog"]
    decompress: bool
    check_crc: bool
    spares_page_cache: bool
    mode: Literal["FAILFAST", "DROPMALFORMED"]


def check_options(given: Mapping[str, str]) -> None:
    """Check options as far as possible before Spark says whether rows are read or written.

    Raises:
        OptionError: an option is unknown, given twice under two names, or has a wrong value.
    """
    known = {name: text for name, text in given.items() if name.lower() not in SPARKS_OWN}
    for name in known:
        if _EITHER.named(name) is None:
            raise _EITHER.unknown(name)
    # `topic` is a different option for reading and writing, so its value cannot be checked yet.
    READING.read({name: text for name, text in known.items() if _means_one(name, READING)})
    WRITING.read({name: text for name, text in known.items() if _means_one(name, WRITING)})


def check_table_options(given: Mapping[str, str]) -> None:
    """Check the options of a new table, which are those of reading.

    Raises:
        OptionError: an option is for writing, or none names a store.
    """
    _check_direction(given)
    _check_place(READING.read(given))


def _means_one(name: str, table: OptionTable) -> bool:
    """Return whether a name is an option of a table, and no different one of the other table."""
    found = {id(option) for t in (READING, WRITING) if (option := t.named(name)) is not None}
    return table.named(name) is not None and len(found) == 1


def parse_options(given: Mapping[str, str], streaming: bool) -> Options:
    """Parse the options of a query.

    Args:
        given: the options that the user set; names are not case-sensitive.
        streaming: whether a stream is being started.

    Raises:
        OptionError: an option is unknown, given twice, wrong or missing, or two contradict
            each other.
    """
    _check_direction(given)
    values = READING.read(given)
    _check_scope(values, streaming)
    values = READING.with_defaults(values)
    _check_place(values)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(chosen) > 1:
        raise OptionError(f"Options {' and '.join(chosen)} contradict each other: set only one.")
    starting_option, starting = _position(
        values,
        ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
        Latest() if streaming else Earliest(),
    )
    ending_option, ending = _position(
        values, ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"), Latest()
    )
    if not streaming and _says(starting, Latest, LATEST):
        raise OptionError(
            "Option startingOffsets: a batch query cannot start at latest (-1), because it would "
            "read nothing. Use earliest, offsets or a starting time."
        )
    if _says(ending, Earliest, EARLIEST):
        raise OptionError(
            "Option endingOffsets: a batch query cannot end at earliest (-2), because it would "
            "read nothing. Use latest, offsets or an ending time."
        )
    if isinstance(starting, AtTime) and isinstance(ending, AtTime):
        _check_order("startingTimestamp", starting.timestamp, "endingTimestamp", ending.timestamp)
    if "minOffsetsPerTrigger" in values and "maxOffsetsPerTrigger" in values:
        _check_order(
            "minOffsetsPerTrigger",
            values["minOffsetsPerTrigger"],
            "maxOffsetsPerTrigger",
            values["maxOffsetsPerTrigger"],
        )
    if "keys" in values and values["planBy"] != "auto":
        raise OptionError(
            "Options keys and planBy contradict each other: messages with a key are found through "
            "the index. Remove planBy."
        )
    if "maxRecordsPerPartition" in values and values["planBy"] == "commitlog":
        raise OptionError(
            "Options maxRecordsPerPartition and planBy=commitlog contradict each other: the log is "
            "split by bytes. Use maxBytesPerPartition, or planBy=queue."
        )
    return Options(
        paths=values.get("path", ()),
        connection=None if "path" in values else ConnectionOptions.of(values),
        name_servers=values.get("namesrvAddr", ()),
        broker_names=_distinct(values.get("brokerNames")),
        replica_timeout_ms=values["replicaTimeout"],
        commitlog_paths=values.get("storePathCommitLog"),
        topics=values.get("subscribe"),
        pattern=values.get("subscribePattern"),
        assign=values.get("assign"),
        include_system=values["includeSystemTopics"],
        starting=starting,
        starting_option=starting_option,
        ending=ending,
        ending_option=ending_option,
        no_match_is_latest=values["startingOffsetsByTimestampStrategy"] == "latest",
        fail_on_data_loss=values["failOnDataLoss"],
        max_rows=values.get("maxOffsetsPerTrigger"),
        min_rows=values.get("minOffsetsPerTrigger"),
        max_delay_ms=values["maxTriggerDelay"],
        max_bytes=values.get("maxBytesPerTrigger"),
        commit_group=values.get("commitGroup"),
        min_partitions=values.get("minPartitions"),
        max_records_per_partition=values.get("maxRecordsPerPartition"),
        max_bytes_per_partition=values["maxBytesPerPartition"],
        tags=values["tags"],
        keys=values.get("keys"),
        plan_by=values["planBy"],
        decompress=values["decompress"],
        check_crc=values["checkCrc"],
        spares_page_cache=values.get("pageCache") == "spare",
        mode=values["mode"],
    )


def _check_direction(given: Mapping[str, str]) -> None:
    for name in given:
        if READING.named(name) is None and WRITING.named(name) is not None:
            raise OptionError(f"Option {name} is for writing: remove it when you read.")


def _check_place(values: Mapping[str, Any]) -> None:
    """Refuse a query that names no store, or names it in two ways."""
    if not any(name in values for name in _PLACES):
        raise OptionError(
            "Option path is missing: give a store directory, as in load('/data/store'), or set "
            "option endpoint for a store process, or namesrvAddr for a name server. (A table keeps "
            "its options only on Spark 4.3 and newer, and only if it was created by CREATE TABLE "
            "... USING rmqstore OPTIONS (...), without a list of columns and without AS SELECT. "
            "Drop the table and recreate it like that, or use CREATE TEMPORARY VIEW.)"
        )
    if "commitGroup" in values and "path" in values:
        raise OptionError(
            "Option commitGroup needs option endpoint or namesrvAddr in place of path: only a "
            "store process or a broker records the offsets of consumer groups."
        )
    for name in ("path", "endpoint", "brokerNames", "storePathCommitLog", "pageCache"):
        if name in values and "namesrvAddr" in values:
            raise OptionError(
                f"Options {name} and namesrvAddr contradict each other: name servers tell where "
                "the brokers are, and their names."
            )
    check_remoting(values)
    for name in ("path", "storePathCommitLog", "pageCache"):
        if name in values and "endpoint" in values:
            raise OptionError(
                f"Options {name} and endpoint contradict each other: set {name} to read the files "
                "directly, or endpoint to read through the store process."
            )


def _check_scope(values: Mapping[str, Any], streaming: bool) -> None:
    for option in OPTIONS:
        if option.name not in values or option.scope == BOTH:
            continue
        if streaming and option.scope == BATCH:
            raise OptionError(
                f"Option {option.name} is for batch queries only. Remove it, or use spark.read."
            )
        if not streaming and option.scope == STREAM:
            # Like Spark's Kafka source: it changes no row of a batch, so one set of options can
            # serve a stream and its backfill.
            _log.warning("Option %s is for streams only; this batch query ignores it.", option.name)


def _position(
    values: Mapping[str, Any], names: tuple[str, str, str], default: Position
) -> tuple[str, Position]:
    """Return a position by Kafka's precedence: one time, times by queue, offsets."""
    one_time, times, offsets = names
    if one_time in values:
        return one_time, AtTime(values[one_time])
    if times in values:
        return times, values[times]
    return offsets, values.get(offsets, default)


def _says(position: Position, kind: type, number: int) -> bool:
    return isinstance(position, kind) or (
        isinstance(position, AtOffsets) and number in position.offsets.values.values()
    )


def _check_order(low_name: str, low: int, high_name: str, high: int) -> None:
    if low > high:
        raise OptionError(f"Option {low_name} ({low}) is above {high_name} ({high}).")


def _distinct(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for name in names or ():
        if names is not None and names.count(name) > 1:
            raise OptionError(
                f"Option brokerNames contains {name!r} twice: offsets contain the broker name, so "
                "each store needs a different one."
            )
    return names
