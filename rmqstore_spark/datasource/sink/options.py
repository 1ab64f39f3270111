"""Turn the texts that Spark passes into the checked, typed options of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmqstore_spark.datasource.options.connection import (
    REPLICA,
    ConnectionOptions,
    check_remoting,
    replica_endpoints,
)
from rmqstore_spark.datasource.options.option import BATCH, Given
from rmqstore_spark.datasource.options.sink_table import (
    SPARKS_OWN,
    WRITING,
    DeliveryOptions,
    MessageOptions,
    TargetOptions,
)
from rmqstore_spark.datasource.options.table import READING
from rmqstore_spark.errors import OptionError


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
    _check_direction(texts)
    given = WRITING.read(texts)
    _check_names(given)
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
    if any(len(replica_endpoints(store)) > 1 for store in given.values.get("endpoint", ())):
        raise OptionError(
            f"Option endpoint names replicas ({REPLICA}), which are for reading. A store is "
            "written at its master: name only the master's endpoint."
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


def _check_names(given: Given) -> None:
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


def _check_direction(texts: Mapping[str, str]) -> None:
    for name in texts:
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


def _check_stream(given: Given) -> None:
    for option in WRITING.options:
        if option.group == BATCH and option.name in given:
            raise OptionError(
                f"Option {option.name} is for batch writes only. Remove it: a stream identifies "
                "its micro-batches by its checkpoint, and commits each one as a whole."
            )


def check_write_size(size: int, delivery: DeliveryOptions, what: str) -> None:
    """Refuse a commit of too many bytes.

    Raises:
        OptionError: it has more than maxTransactionBytes.
    """
    most = delivery.max_write
    if size <= most:
        return
    fault = f"{what} has more than maxTransactionBytes ({most:,} bytes): at least {size:,}"
    if not delivery.atomic:
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
