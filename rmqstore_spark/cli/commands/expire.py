"""`rmqstore expire`: removes old segments of a store by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.connection import EndpointOf, connect
from rmqstore_spark.cli.shared.parameters import parse_time
from rmqstore_spark.cli.shared.tables import Column, print_table
from rmqstore_spark.cli.shared.text import escaped, show_time
from rmqstore_spark.errors import OptionError, ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.client.store_client import StoreClient
    from rmqstore_spark.wire.messages import ExpireReply

_LOOK_SECONDS: Final = 0.2
_COLUMNS: Final = (
    Column("segment"),
    Column("bytes", right=True),
    Column("stored from"),
    Column("to before"),
)

_Before = typer.Option(
    "--before",
    metavar="TIME",
    help="Only segments all of whose messages were stored before this time (milliseconds or "
    "ISO-8601).",
    show_default=False,
)
_Yes = typer.Option("--yes", help="Remove the segments. Without it, they are only listed.")


def expire(
    endpoint: EndpointOf,
    before: Annotated[str, _Before],
    yes: Annotated[bool, _Yes] = False,
) -> None:
    """Remove old segments of the CommitLog.

    Files of queues and index that hold nothing else go with them. The last segment stays. A segment
    is as old as the first message of the segment after it. With archiveTo, each segment is copied
    before it is removed. Waits until all are removed, or those that are left must stay: with
    delayed messages or half messages of transactions that wait.
    """
    time_ms = parse_time("--before", before)
    if time_ms is None or time_ms < 1:
        raise OptionError("--before must be a time after 1970.")
    with connect(endpoint) as client:
        found = client.expire(time_ms)
        if not found.count:
            typer.echo("No segment is old enough.")
            return
        print_table(_COLUMNS, _rows(found))
        total = f"{found.count} segment{'s' * (found.count > 1)}, {found.total_bytes} bytes"
        if not yes:
            typer.echo(f"{total}. Nothing was removed: add --yes to remove them.")
            if found.remark:
                typer.echo(f"Some would be kept for now. {escaped(found.remark)}")
            return
        try:
            _remove(client, time_ms)
        except KeyboardInterrupt:
            raise ServiceError(
                "This does not wait any longer. The store process still removes the segments: "
                "`rmqstore stats` has the line `expiry` if it cannot."
            ) from None
        typer.echo(f"{total} were removed.")


def _rows(found: ExpireReply) -> Iterator[tuple[str, ...]]:
    for segment in found.segments:
        yield (
            f"{segment.start:020}",
            str(segment.end - segment.start),
            _moment(segment.stored_from),
            _moment(segment.stored_until),
        )
    if found.count > len(found.segments):
        yield f"and {found.count - len(found.segments)} more", "", "", ""


def _moment(millis: int) -> str:
    """Format a storeTimestamp. A damaged record can hold any number."""
    try:
        return (
            show_time(datetime.fromtimestamp(millis / 1000, timezone.utc)) if millis >= 0 else "-"
        )
    except (OverflowError, ValueError, OSError):
        return str(millis)


def _remove(client: StoreClient, before: int) -> None:
    """Order the removal, and wait until it is done.

    Raises:
        ServiceError: the store keeps segments.
    """
    left = client.expire(before, remove=True)
    told = ""
    while left.is_working:
        if left.remark and left.remark != told:
            typer.echo(escaped(left.remark), err=True)
            told = left.remark
        time.sleep(_LOOK_SECONDS)
        left = client.expire(before)
    if left.count and left.remark:
        raise ServiceError(
            f"{left.count} segments are kept for now. {left.remark} Run the command again then."
        )
