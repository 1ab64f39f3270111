"""Define the options of writing with `format("rmqstore")`.

`parsing.py` and `sink/options.py` parse values with this table, and `docs/options.md` is generated
from it.
"""

from __future__ import annotations

from typing import Final

from rmqstore_spark.datasource.options.connection import CONNECTION_OPTIONS
from rmqstore_spark.datasource.options.option import BATCH, BOTH, Option, OptionTable
from rmqstore_spark.datasource.options.values import (
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_integer,
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
        "topic",
        "name",
        _topic,
        None,
        BOTH,
        "The topic of all rows. It goes before the column `topic`, which is not needed then.",
    ),
    Option(
        "deliveryGuarantee",
        "`exactly-once` or `at-least-once`",
        parse_choice("exactly-once", "at-least-once"),
        "exactly-once",
        BOTH,
        "`exactly-once`: rows are staged, and all rows of a micro-batch or of a batch write appear "
        "at once when Spark commits it; one that is committed again changes nothing. "
        "`at-least-once`: rows are stored as they come, with less delay; what a failed task has "
        "stored stays, and its repetition stores it again.",
    ),
    Option(
        "queueSelector",
        "`hash`, `roundrobin` or `column`",
        parse_choice("hash", "roundrobin", "column"),
        "hash",
        BOTH,
        "Which queue of its topic a row goes to. `hash`: by the column `shardingKey`, else by "
        "`keys`, as RocketMQ's SelectMessageQueueByHash has it; rows with neither take turns. "
        "`roundrobin`: all rows take turns. `column`: the column `queueId` says it. With several "
        "stores the queues of all of them are numbered on, in the order of `endpoint`; for "
        "`column` the key, or the turn, decides among the stores.",
    ),
    Option(
        "preserve",
        "boolean",
        parse_boolean,
        "false",
        BOTH,
        'For rows that were read with `format("rmqstore")`: keep `bornHost`, `reconsumeTimes` '
        "and UNIQ_KEY too, in place of this client's own. (`bornTimestamp` and `flag` are kept "
        "wherever there are such columns.)",
    ),
    Option(
        "maxInFlightBytes",
        "size",
        parse_bytes,
        "16m",
        BOTH,
        "How much of what a task has sent to a store process may await its acknowledgement.",
        minimum=1,
    ),
    Option(
        "maxTransactionBytes",
        "size",
        parse_bytes,
        "1g",
        BOTH,
        "The most that one exactly-once commit may hold, by the size of the records. A micro-batch "
        "that is larger fails: limit what the source gives for one. A batch write that is larger "
        "needs `atomic=false`: then this is the limit of each task, and more partitions make them "
        "smaller. (The store has such a limit too, by the same name.)",
        minimum=1,
    ),
    Option(
        "atomic",
        "boolean",
        parse_boolean,
        "true",
        BATCH,
        "`false`: each task of a batch write commits alone, once. Where the write fails, what its "
        "finished tasks wrote stays.",
    ),
    Option(
        "txnAppId",
        "text",
        _id,
        None,
        BATCH,
        "With `txnVersion`: names this series of writes. A write that is run again with its "
        "version and the same rows changes nothing, as inside `foreachBatch` (give the batch id as "
        "version, and each write of the function a series of its own). With other rows it is an "
        "error.",
    ),
    Option(
        "txnVersion",
        "number",
        parse_integer,
        None,
        BATCH,
        "The number of this write in the series `txnAppId`. Each is above the one before.",
        minimum=0,
    ),
)

WRITING = OptionTable(SINK_OPTIONS)
