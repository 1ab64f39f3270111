"""Define the options of writing with `format("rmqstore")`.

`parsing.py` and `sink/options.py` parse values with this table, and `docs/options.md` is generated
from it.
"""

from __future__ import annotations

from typing import Final

from rmqstore_spark.datasource.options.connection import CONNECTION_OPTIONS
from rmqstore_spark.datasource.options.option import BATCH, BOTH, Option, OptionTable
from rmqstore_spark.datasource.options.values import (
    parse_addresses,
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_integer,
    parse_names,
)
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import topic_fault

__all__ = ["SINK_OPTIONS", "SPARKS_OWN", "WRITING"]

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark adds to those of a stream's sink; this sink does not use them."""

_LONGEST_ID: Final = 200


def _topic(text: str) -> str:
    name = text.strip()
    fault = topic_fault(name)
    if fault is not None:
        raise OptionError(fault)
    return name


def _id(text: str) -> str:
    name = text.strip()
    if not 0 < len(name) <= _LONGEST_ID or not name.isprintable():
        raise ValueError(f"must be 1 to {_LONGEST_ID} printable characters")
    return name


SINK_OPTIONS: tuple[Option, ...] = (
    *CONNECTION_OPTIONS,
    Option(
        "namesrvAddr",
        "addresses",
        parse_addresses,
        None,
        BOTH,
        "Name servers, as `host:port` with `;` between: the sink finds the brokers of a topic "
        "there ([writing.md](writing.md#through-name-servers)). In place of `endpoint`.",
    ),
    Option(
        "brokerNames",
        "names",
        parse_names,
        None,
        BOTH,
        "With `namesrvAddr`: the brokers to write to. An exactly-once stream needs it, and so does "
        "`txnAppId`: a batch that is repeated must find the same brokers.",
        default_doc="all brokers of the topic",
    ),
    Option(
        "topic",
        "name",
        _topic,
        None,
        BOTH,
        "The topic of all rows. Overrides the column `topic`, which is then not needed.",
    ),
    Option(
        "deliveryGuarantee",
        "`exactly-once` or `at-least-once`",
        parse_choice("exactly-once", "at-least-once"),
        "exactly-once",
        BOTH,
        "`exactly-once`: all rows of a micro-batch or batch write appear together when Spark "
        "commits it. `at-least-once`: rows appear as they arrive, and again if a task is retried. "
        "RocketMQ's own brokers can only do the latter, and it is their default.",
    ),
    Option(
        "queueSelector",
        "`hash`, `roundrobin` or `column`",
        parse_choice("hash", "roundrobin", "column"),
        "hash",
        BOTH,
        "How to choose a row's queue. `hash`: by `shardingKey`, or else `keys`; round-robin for "
        "rows with neither. `roundrobin`: all rows in turn. `column`: the queue in column "
        "`queueId`.",
    ),
    Option(
        "preserve",
        "boolean",
        parse_boolean,
        "false",
        BOTH,
        'For rows that were read with `format("rmqstore")`: also keep `bornHost`, '
        "`reconsumeTimes` and UNIQ_KEY instead of setting new ones. (`bornTimestamp` and `flag` "
        "are always kept if the columns exist.)",
    ),
    Option(
        "maxInFlightBytes",
        "size",
        parse_bytes,
        "16m",
        BOTH,
        "Maximum bytes that a task has sent to a store process or broker and that are not "
        "acknowledged yet.",
        minimum=1,
    ),
    Option(
        "maxTransactionBytes",
        "size",
        parse_bytes,
        "1g",
        BOTH,
        "Maximum size of the records in one exactly-once commit. For a larger micro-batch, limit "
        "the source; a larger batch write needs `atomic=false`.",
        minimum=1,
    ),
    Option(
        "atomic",
        "boolean",
        parse_boolean,
        "true",
        BATCH,
        "`false`: each task of a batch write commits separately, once. If the write fails, the "
        "rows of its finished tasks stay.",
    ),
    Option(
        "txnAppId",
        "text",
        _id,
        None,
        BATCH,
        "With `txnVersion`: the name of this series of writes. Running a write again with the "
        "same version and rows changes nothing; with other rows it is an error.",
    ),
    Option(
        "txnVersion",
        "number",
        parse_integer,
        None,
        BATCH,
        "The number of this write in the series `txnAppId`. Each new write needs a higher number.",
        minimum=0,
    ),
)

WRITING = OptionTable(SINK_OPTIONS)
