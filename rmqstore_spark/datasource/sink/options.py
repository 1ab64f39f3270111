"""Turn the texts that Spark passes into the checked, typed options of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rmqstore_spark.datasource.options.connection import (
    REPLICA,
    ConnectionOptions,
    replica_endpoints,
)
from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.datasource.options.sink_table import SINK_OPTIONS, SPARKS_OWN, WRITING
from rmqstore_spark.datasource.options.table import READING
from rmqstore_spark.errors import OptionError

__all__ = ["BatchVersion", "SinkOptions", "check_write_size", "parse_sink_options"]


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
class SinkOptions:
    """The options of one write, checked against each other.

    Args:
        topic: topic of all rows; None if a column holds it.
        exactly_once: False means at least once.
        is_default: whether the user left that open.
        name_servers: addresses of name servers that know where to write; empty if options do.
        broker_names: the brokers to use of those that name servers know; None for all.
        to_brokers: whether messages are sent to brokers, over RocketMQ's protocol.
        max_in_flight, max_write: bytes.
    """

    connection: ConnectionOptions
    topic: str | None
    exactly_once: bool
    is_default: bool
    name_servers: tuple[str, ...]
    broker_names: tuple[str, ...] | None
    to_brokers: bool
    queue_selector: Literal["hash", "roundrobin", "column"]
    preserve: bool
    max_in_flight: int
    max_write: int
    atomic: bool
    batch_version: BatchVersion | None


def parse_sink_options(given: Mapping[str, str], streaming: bool) -> SinkOptions:
    """Parse the options of a write.

    Args:
        given: the options that the user set; names are not case-sensitive.
        streaming: whether a stream is written.

    Raises:
        OptionError: an option is unknown, wrong or missing, or two contradict each other.
    """
    given = {name: text for name, text in given.items() if name.lower() not in SPARKS_OWN}
    _check_direction(given)
    values = WRITING.read(given)
    _check_names(values)
    if "endpoint" not in values and "namesrvAddr" not in values:
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
    if any(len(replica_endpoints(store)) > 1 for store in values.get("endpoint", ())):
        raise OptionError(
            f"Option endpoint names replicas ({REPLICA}), which are for reading. A store is "
            "written at its master: name only the master's endpoint."
        )
    if streaming:
        _check_stream(given)
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise OptionError("Options txnAppId and txnVersion must be set together.")
    is_default = "deliveryGuarantee" not in values
    values = WRITING.with_defaults(values)
    exactly_once = values["deliveryGuarantee"] == "exactly-once"
    batch_version = None
    if "txnAppId" in values:
        batch_version = BatchVersion(values["txnAppId"], values["txnVersion"])
        if not exactly_once:
            raise OptionError(
                "Options txnAppId and deliveryGuarantee=at-least-once contradict each other: only "
                "an exactly-once write detects that it was run before."
            )
    return SinkOptions(
        connection=ConnectionOptions.of(values),
        topic=values.get("topic"),
        exactly_once=exactly_once,
        is_default=is_default,
        name_servers=values.get("namesrvAddr", ()),
        broker_names=values.get("brokerNames"),
        to_brokers=False,
        queue_selector=values["queueSelector"],
        preserve=values["preserve"],
        max_in_flight=values["maxInFlightBytes"],
        max_write=values["maxTransactionBytes"],
        atomic=values["atomic"],
        batch_version=batch_version,
    )


def _check_names(values: Mapping[str, Any]) -> None:
    if "endpoint" in values and "namesrvAddr" in values:
        raise OptionError(
            "Options endpoint and namesrvAddr contradict each other: name servers tell where the "
            "brokers are."
        )
    if "brokerNames" in values and "namesrvAddr" not in values:
        raise OptionError(
            "Option brokerNames needs namesrvAddr when you write: it chooses among the brokers "
            "that name servers know."
        )


def _check_direction(given: Mapping[str, str]) -> None:
    for name in given:
        if WRITING.named(name) is not None:
            continue
        option = READING.named(name)
        if option is None:
            continue
        if option.name == "path":
            raise OptionError(
                "A store is written through its store process: set option('endpoint', ...) "
                "instead of a path, and call save() or start() without a path."
            )
        raise OptionError(f"Option {option.name} is for reading: remove it when you write.")


def _check_stream(given: Mapping[str, str]) -> None:
    named = {option.name for name in given if (option := WRITING.named(name)) is not None}
    for option in SINK_OPTIONS:
        if option.scope == BATCH and option.name in named:
            raise OptionError(
                f"Option {option.name} is for batch writes only. Remove it: a stream identifies "
                "its micro-batches by its checkpoint, and commits each one as a whole."
            )


def check_write_size(size: int, options: SinkOptions, what: str) -> None:
    """Refuse a commit of too many bytes.

    Raises:
        OptionError: it has more than maxTransactionBytes.
    """
    if size <= options.max_write:
        return
    fault = (
        f"{what} has more than maxTransactionBytes ({options.max_write:,} bytes): at least {size:,}"
    )
    if not options.atomic:
        raise OptionError(
            f"{fault}. With atomic=false, the limit applies to each task. Use more partitions "
            "(repartition), or increase maxTransactionBytes."
        )
    raise OptionError(
        f"{fault}. In a stream, make micro-batches smaller (maxOffsetsPerTrigger, "
        "maxFilesPerTrigger or a similar option of the source). In a batch write, set "
        "atomic=false, so that each task commits separately, and use more partitions. Or increase "
        "maxTransactionBytes."
    )
