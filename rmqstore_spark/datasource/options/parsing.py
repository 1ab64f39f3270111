"""Turn the texts that Spark passes into checked, typed options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rmqstore_spark.datasource.options.connection import (
    ConnectionOptions,
    check_remoting,
)
from rmqstore_spark.datasource.options.option import BATCH, STREAM, Given, OptionTable
from rmqstore_spark.datasource.options.sink_table import (
    SPARKS_OWN,
    WRITING,
    DeliveryOptions,
    MessageOptions,
    TargetOptions,
)
from rmqstore_spark.datasource.options.table import (
    OWN,
    PLACES,
    READING,
    PartitionOptions,
    PlaceOptions,
    PositionOptions,
    QueueOptions,
    RowOptions,
    TriggerOptions,
)
from rmqstore_spark.datasource.options.values import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Position,
)
from rmqstore_spark.errors import OptionError

_EITHER = OptionTable((*OWN.options, *WRITING.options))
_log = logging.getLogger("rmqstore_spark")


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
    to_read: dict[str, str] = {}
    to_write: dict[str, str] = {}
    for name, text in given.items():
        key = name.lower()
        read, write = READING.by_name.get(key), WRITING.by_name.get(key)
        if read is not None:
            # `topic` is a different option for reading and writing: its value is checked later.
            if write is None or write is read:
                to_read[name] = text
        elif write is not None:
            to_write[name] = text
        elif key not in SPARKS_OWN:
            raise _EITHER.unknown(name)
    READING.read(to_read)
    WRITING.read(to_write)


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
        if name.lower() in WRITING.by_name and name.lower() not in READING.by_name:
            raise OptionError(f"Option {name} is for writing: remove it when you read.")


def _check_place(given: Given) -> None:
    """Refuse a query that names no store, or names it in two ways."""
    if given.keys().isdisjoint(PLACES):
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
    for name in given:
        scope = READING.by_name[name.lower()].group
        if streaming and scope == BATCH:
            raise OptionError(
                f"Option {name} is for batch queries only. Remove it, or use spark.read."
            )
        if not streaming and scope == STREAM:
            # Like Spark's Kafka source: it changes no row of a batch, so one set of options can
            # serve a stream and its backfill.
            _log.warning("Option %s is for streams only; this batch query ignores it.", name)


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


@dataclass(frozen=True)
class SinkOptions:
    """The options of one write, checked against each other."""

    target: TargetOptions
    messages: MessageOptions
    delivery: DeliveryOptions


def parse_sink_options(texts: Mapping[str, str], streaming: bool) -> SinkOptions:
    """Parse the options of a write.

    Args:
        texts: the options that the user set; names are not case-sensitive.
        streaming: whether a stream is written.

    Raises:
        OptionError: an option is unknown, wrong or missing, or two contradict each other.
    """
    texts = {name: text for name, text in texts.items() if name.lower() not in SPARKS_OWN}
    _check_writing(texts)
    given = WRITING.read(texts)
    _check_targets(given)
    if "endpoint" not in given and "namesrvAddr" not in given:
        raise OptionError(
            "Option endpoint is missing: set the endpoint of the store process, as in "
            "df.write.format('rmqstore').option('endpoint', "
            "'rmq://127.0.0.1:10921').mode('append').save(). Spark does not pass a table's "
            "options to its writer, so SQL needs it too: INSERT INTO t WITH (endpoint = '...') "
            "SELECT ..., or insert into a temporary view created USING rmqstore OPTIONS (endpoint "
            "'...'). `rmqstore serve` starts a store process and prints its endpoint; "
            "rmqstore_spark.embedded(path) starts one for the life of a script. Option namesrvAddr "
            "finds brokers through name servers."
        )
    if streaming:
        _check_stream(given)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("Options txnAppId and txnVersion must be set together.")
    delivery = given.make(DeliveryOptions, is_default="deliveryGuarantee" not in given)
    if delivery.batch_version is not None and not delivery.exactly_once:
        raise OptionError(
            "Options txnAppId and deliveryGuarantee=at-least-once contradict each other: only "
            "an exactly-once write detects that it was run before."
        )
    check_remoting(given)
    target = given.make(TargetOptions, connection=ConnectionOptions.of(given))
    return SinkOptions(target, given.make(MessageOptions), delivery)


def _check_targets(given: Given) -> None:
    if "endpoint" in given and "namesrvAddr" in given:
        raise OptionError(
            "Options endpoint and namesrvAddr contradict each other: name servers tell where the "
            "brokers are."
        )
    if "brokerNames" in given and "namesrvAddr" not in given:
        raise OptionError(
            "Option brokerNames needs namesrvAddr when you write: it chooses among the brokers "
            "that name servers know."
        )


def _check_writing(texts: Mapping[str, str]) -> None:
    for name in texts:
        option = READING.by_name.get(name.lower())
        if option is None or name.lower() in WRITING.by_name:
            continue
        if option.name == "path":
            raise OptionError(
                "A store is written through its store process: set option('endpoint', ...) "
                "instead of a path, and call save() or start() without a path."
            )
        raise OptionError(f"Option {option.name} is for reading: remove it when you write.")


def _check_stream(given: Given) -> None:
    for name in given:
        if WRITING.by_name[name.lower()].group == BATCH:
            raise OptionError(
                f"Option {name} is for batch writes only. Remove it: a stream identifies "
                "its micro-batches by its checkpoint, and commits each one as a whole."
            )
