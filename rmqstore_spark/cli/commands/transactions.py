"""`rmqstore transactions`: shows the transactions that wait for their end."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqstore_spark.cli.shared.parameters import AsJson, StoreAt
from rmqstore_spark.cli.shared.tables import Column, json_text, print_table, show_time
from rmqstore_spark.cli.shared.terminal import say

if TYPE_CHECKING:
    from rmqstore_spark.reader.transactions import Transaction

_COLUMNS = (
    Column("offset", right=True),
    Column("group", least=12),
    Column("topic", least=12),
    Column("queue", right=True),
    Column("uniqKey", least=32),
    Column("stored"),
    Column("checks", right=True),
)
_Group = typer.Option(
    "--group", "-g", metavar="GROUP", help="Only this producer group. Repeat it for several."
)


def transactions(
    names: Annotated[list[str] | None, _Group] = None,
    as_json: AsJson = False,
    *,
    where: StoreAt,
) -> None:
    """List the transactions that wait for their end.

    Each line is a half message: its offset in RMQ_SYS_TRANS_HALF_TOPIC, its producer group, the
    topic and queue where a commit puts it, its UNIQ_KEY, when it was stored, and how often its
    producer was asked. The progress of checks is saved every few seconds.
    """
    from rmqstore_spark.reader.transactions import find_transactions

    with where.open() as store:
        found = [
            one for one in find_transactions(store).waiting if names is None or one.group in names
        ]
        if as_json:
            document = {
                "path": store.path,
                "brokerName": store.broker_name,
                "transactions": [_described(one) for one in found],
            }
            typer.echo(json_text(document, indent=2))
        elif not found:
            say(f"No transaction waits in {store.path}.")
        else:
            print_table(_COLUMNS, [_row(one) for one in found])


def _described(one: Transaction) -> dict[str, Any]:
    return {
        "queueOffset": one.place.queue_offset,
        "physicalOffset": one.place.physical_offset,
        "producerGroup": one.group,
        "topic": one.topic,
        "queueId": one.queue_id,
        "uniqKey": one.key,
        "bornTimestamp": one.born,
        "storeTimestamp": one.stored,
        "checks": one.checks,
        "earlierQueueOffsets": [place.queue_offset for place in one.earlier],
    }


def _row(one: Transaction) -> tuple[str, ...]:
    return (
        str(one.place.queue_offset),
        one.group,
        one.topic,
        one.queue_id,
        one.key,
        _moment(one.stored),
        str(one.checks),
    )


def _moment(millis: int) -> str:
    """Format a storeTimestamp. A damaged record can hold any number."""
    try:
        return show_time(datetime.fromtimestamp(millis / 1000, timezone.utc))
    except (OverflowError, ValueError, OSError):
        return str(millis)
