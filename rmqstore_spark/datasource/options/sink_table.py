"""Declare the options of writing with `format("rmqstore")`, by what they are used for.

`parsing` checks them against each other, and `docs/options.md` is generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.option import BATCH, OptionTable, option
from rmqstore_spark.datasource.options.values import (
    parse_addresses,
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_integer,
    parse_is,
    parse_names,
)
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import topic_fault

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


@dataclass(frozen=True)
class TargetOptions:
    """Where messages are written.

    Attributes:
        connection: the store processes, or how to connect to name servers.
        name_servers: addresses of name servers that know where to write; empty if options do.
        broker_names: the brokers to use of those that name servers know; None for all.
        to_brokers: whether messages are sent to brokers, over RocketMQ's protocol.
    """

    connection: ConnectionOptions
    name_servers: tuple[str, ...] = option(
        "namesrvAddr", "addresses", parse_addresses,
        "Name servers, as `host:port` with `;` between: the sink finds the brokers of a topic "
        "there ([writing.md](writing.md#through-name-servers)). In place of `endpoint`.",
        unset=(),
    )  # fmt: skip
    broker_names: tuple[str, ...] | None = option(
        "brokerNames", "names", parse_names,
        "With `namesrvAddr`: the brokers to write to. An exactly-once stream needs it, and so does "
        "`txnAppId`: a batch that is repeated must find the same brokers.",
        default_doc="all brokers of the topic",
    )  # fmt: skip
    to_brokers: bool = False


@dataclass(frozen=True)
class MessageOptions:
    """How rows become messages.

    Attributes:
        topic: topic of all rows; None if a column holds it.
    """

    topic: str | None = option(
        "topic", "name", _topic,
        "The topic of all rows. Overrides the column `topic`, which is then not needed.",
    )  # fmt: skip
    queue_selector: Literal["hash", "roundrobin", "column"] = option(
        "queueSelector", "`hash`, `roundrobin` or `column`",
        parse_choice("hash", "roundrobin", "column"),
        "How to choose a row's queue. `hash`: by `shardingKey`, or else `keys`; round-robin for "
        "rows with neither. `roundrobin`: all rows in turn. `column`: the queue in column "
        "`queueId`.",
        default="hash",
    )  # fmt: skip
    preserve: bool = option(
        "preserve", "boolean", parse_boolean,
        'For rows that were read with `format("rmqstore")`: also keep `bornHost`, '
        "`reconsumeTimes` and UNIQ_KEY instead of setting new ones. (`bornTimestamp` and `flag` "
        "are always kept if the columns exist.)",
        default="false",
    )  # fmt: skip


@dataclass(frozen=True)
class BatchVersion:
    """The identity of a batch write that may be run again.

    Args:
        app_id: name of the series.
        version: number of this write.
    """

    app_id: str
    version: int


@dataclass(frozen=True)
class DeliveryOptions:
    """How messages are sent and committed.

    Attributes:
        is_default: whether the user left open which guarantee there is.
        exactly_once: False means at least once.
        max_in_flight, max_write: bytes.
        atomic: whether a batch write is committed as a whole.
    """

    is_default: bool
    exactly_once: bool = option(
        "deliveryGuarantee", "`exactly-once` or `at-least-once`",
        parse_is("exactly-once", "exactly-once", "at-least-once"),
        "`exactly-once`: all rows of a micro-batch or batch write appear together when Spark "
        "commits it. `at-least-once`: rows appear as they arrive, and again if a task is retried. "
        "RocketMQ's own brokers can only do the latter, and it is their default.",
        default="exactly-once",
    )  # fmt: skip
    max_in_flight: int = option(
        "maxInFlightBytes", "size", parse_bytes,
        "Maximum bytes that a task has sent to a store process or broker and that are not "
        "acknowledged yet.",
        default="16m", minimum=1,
    )  # fmt: skip
    max_write: int = option(
        "maxTransactionBytes", "size", parse_bytes,
        "Maximum size of the records in one exactly-once commit. For a larger micro-batch, limit "
        "the source; a larger batch write needs `atomic=false`.",
        default="1g", minimum=1,
    )  # fmt: skip
    atomic: bool = option(
        "atomic", "boolean", parse_boolean,
        "`false`: each task of a batch write commits separately, once. If the write fails, the "
        "rows of its finished tasks stay.",
        default="true", scope=BATCH,
    )  # fmt: skip
    txn_app_id: str | None = option(
        "txnAppId", "text", _id,
        "With `txnVersion`: the name of this series of writes. Running a write again with the "
        "same version and rows changes nothing; with other rows it is an error.",
        scope=BATCH,
    )  # fmt: skip
    txn_version: int | None = option(
        "txnVersion", "number", parse_integer,
        "The number of this write in the series `txnAppId`. Each new write needs a higher number.",
        scope=BATCH, minimum=0,
    )  # fmt: skip

    @property
    def batch_version(self) -> BatchVersion | None:
        """The identity of the write, if the user gave it one."""
        if self.txn_app_id is None or self.txn_version is None:
            return None
        return BatchVersion(self.txn_app_id, self.txn_version)


SINK_OWN: Final = OptionTable.of(TargetOptions, MessageOptions, DeliveryOptions)
"""Without those of the connection."""

WRITING: Final = OptionTable((*settings_of(ConnectionOptions), *SINK_OWN.options))
