"""Turn the texts that Spark passes into checked, typed options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rmqstore_spark.datasource.options.connection import ConnectionOptions, check_remoting
from rmqstore_spark.datasource.options.option import BATCH, BOTH, STREAM, Given, OptionTable
from rmqstore_spark.datasource.options.positions import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Position,
)
from rmqstore_spark.datasource.options.sink_table import SPARKS_OWN, WRITING
from rmqstore_spark.datasource.options.table import (
    OWN,
    READING,
    PartitionOptions,
    PlaceOptions,
    PositionOptions,
    QueueOptions,
    RowOptions,
    TriggerOptions,
)
from rmqstore_spark.errors import OptionError

_EITHER = OptionTable((*OWN.options, *WRITING.options))
_log = logging.getLogger("rmqstore_spark")

_PLACES = ("path", "endpoint", "namesrvAddr")


@dataclass(frozen=True)
class Options:
    """The options of one query, checked against each other."""

    places: PlaceOptions
    queues: QueueOptions
    trigger: TriggerOptions
    positions: PositionOptions
    partitions: PartitionOptions
    rows: RowOptions

    @property
    def strict(self) -> Options:
        """The same, but no loss is allowed."""
        return replace(self, positions=self.positions.strict)


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
    alike = {n: t for n, t in known.items() if WRITING.named(n) in (None, READING.named(n))}
    READING.read(alike)
    WRITING.read({name: text for name, text in known.items() if READING.named(name) is None})


def check_table_options(given: Mapping[str, str]) -> None:
    """Check the options of a new table, which are those of reading.

    Raises:
        OptionError: an option is for writing, or none names a store.
    """
    _check_direction(given)
    _check_place(READING.read(given))


def parse_options(texts: Mapping[str, str], streaming: bool) -> Options:
    """Parse the options of a query.

    Args:
        texts: the options that the user set; names are not case-sensitive.
        streaming: whether a stream is being started.

    Raises:
        OptionError: an option is unknown, given twice, wrong or missing, or two contradict
            each other.
    """
    _check_direction(texts)
    given = READING.read(texts)
    _check_scope(given, streaming)
    _check_place(given)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) > 1:
        raise OptionError(f"Options {' and '.join(chosen)} contradict each other: set only one.")
    positions = given.make(PositionOptions, streaming=streaming)
    trigger = given.make(TriggerOptions)
    partitions = given.make(PartitionOptions)
    rows = given.make(RowOptions)
    _check_positions(positions)
    _check_limits(trigger, partitions, rows)
    connection = None if "path" in given else ConnectionOptions.of(given)
    places = given.make(PlaceOptions, connection=connection)
    _check_names(places.broker_names)
    return Options(places, given.make(QueueOptions), trigger, positions, partitions, rows)


def _check_positions(positions: PositionOptions) -> None:
    starting, ending = positions.starting, positions.ending
    if not positions.streaming and _says(starting, Latest, LATEST):
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


def _check_limits(trigger: TriggerOptions, partitions: PartitionOptions, rows: RowOptions) -> None:
    if trigger.min_rows is not None and trigger.max_rows is not None:
        _check_order(
            "minOffsetsPerTrigger", trigger.min_rows, "maxOffsetsPerTrigger", trigger.max_rows
        )
    if rows.keys is not None and partitions.plan_by != "auto":
        raise OptionError(
            "Options keys and planBy contradict each other: messages with a key are found through "
            "the index. Remove planBy."
        )
    if partitions.max_records is not None and partitions.plan_by == "commitlog":
        raise OptionError(
            "Options maxRecordsPerPartition and planBy=commitlog contradict each other: the log is "
            "split by bytes. Use maxBytesPerPartition, or planBy=queue."
        )


def _check_direction(given: Mapping[str, str]) -> None:
    for name in given:
        if READING.named(name) is None and WRITING.named(name) is not None:
            raise OptionError(f"Option {name} is for writing: remove it when you read.")


def _check_place(given: Given) -> None:
    """Refuse a query that names no store, or names it in two ways."""
    if not any(name in given for name in _PLACES):
        raise OptionError(
            "Option path is missing: give a store directory, as in load('/data/store'), or set "
            "option endpoint for a store process, or namesrvAddr for a name server. (A table keeps "
            "its options only on Spark 4.3 and newer, and only if it was created by CREATE TABLE "
            "... USING rmqstore OPTIONS (...), without a list of columns and without AS SELECT. "
            "Drop the table and recreate it like that, or use CREATE TEMPORARY VIEW.)"
        )
    if "commitGroup" in given and "path" in given:
        raise OptionError(
            "Option commitGroup needs option endpoint or namesrvAddr in place of path: only a "
            "store process or a broker records the offsets of consumer groups."
        )
    for name in ("path", "endpoint", "brokerNames", "storePathCommitLog", "pageCache"):
        if name in given and "namesrvAddr" in given:
            raise OptionError(
                f"Options {name} and namesrvAddr contradict each other: name servers tell where "
                "the brokers are, and their names."
            )
    check_remoting(given)
    for name in ("path", "storePathCommitLog", "pageCache"):
        if name in given and "endpoint" in given:
            raise OptionError(
                f"Options {name} and endpoint contradict each other: set {name} to read the files "
                "directly, or endpoint to read through the store process."
            )


def _check_scope(given: Given, streaming: bool) -> None:
    for option in OWN.options:
        if option.name not in given or option.group == BOTH:
            continue
        if streaming and option.group == BATCH:
            raise OptionError(
                f"Option {option.name} is for batch queries only. Remove it, or use spark.read."
            )
        if not streaming and option.group == STREAM:
            # Like Spark's Kafka source: it changes no row of a batch, so one set of options can
            # serve a stream and its backfill.
            _log.warning("Option %s is for streams only; this batch query ignores it.", option.name)


def _says(position: Position, kind: type, number: int) -> bool:
    return isinstance(position, kind) or (
        isinstance(position, AtOffsets) and number in position.offsets.values.values()
    )


def _check_order(low_name: str, low: int, high_name: str, high: int) -> None:
    if low > high:
        raise OptionError(f"Option {low_name} ({low}) is above {high_name} ({high}).")


def _check_names(names: tuple[str, ...] | None) -> None:
    for name in names or ():
        if names is not None and names.count(name) > 1:
            raise OptionError(
                f"Option brokerNames contains {name!r} twice: offsets contain the broker name, so "
                "each store needs a different one."
            )
