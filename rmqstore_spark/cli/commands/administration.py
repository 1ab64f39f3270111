"""Commands that administer a store process: its topics, its segments, its role, its end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.cli.shared.parameters import (
    EndpointOf,
    MasterOf,
    connect,
    master_of,
    parse_time,
)
from rmqstore_spark.cli.shared.tables import Column, print_table, show_time
from rmqstore_spark.errors import OptionError, ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.client.store_client import StoreClient
    from rmqstore_spark.wire.endpoint import Endpoint
    from rmqstore_spark.wire.messages import ExpireReply

_LOOK_SECONDS: Final = 0.05
_CONNECT_SECONDS: Final = 5.0

_Topic = typer.Argument(metavar="TOPIC", help="Name of the topic.")
_Queues = typer.Option(
    "--queues",
    min=1,
    metavar="N",
    help="Number of queues to read and to write.  [default: the store's defaultTopicQueueNums]",
)
_ReadQueues = typer.Option(
    "--read-queues", min=1, metavar="N", help="Number of queues to read. Overrides --queues."
)
_WriteQueues = typer.Option(
    "--write-queues", min=1, metavar="N", help="Number of queues to write. Overrides --queues."
)
_Perm = typer.Option("--perm", min=0, max=7, metavar="N", help="4: readable, 2: writable, 6: both.")


def create_topic(
    endpoint: MasterOf,
    topic: Annotated[str, _Topic],
    queues: Annotated[int | None, _Queues] = None,
    read_queues: Annotated[int | None, _ReadQueues] = None,
    write_queues: Annotated[int | None, _WriteQueues] = None,
    perm: Annotated[int, _Perm] = 6,
) -> None:
    """Create a topic, or change its numbers of queues."""
    with connect(master_of(endpoint)) as client:
        client.create_topic(
            topic,
            read_queue_nums=read_queues or queues,
            write_queue_nums=write_queues or queues,
            perm=perm,
        )
        made = client.topics()[topic]
    typer.echo(
        f"topic {topic}: {made.read_queue_nums} queues to read, {made.write_queue_nums} to write, "
        f"perm {made.perm}"
    )


def delete_topic(endpoint: MasterOf, topic: Annotated[str, _Topic]) -> None:
    """Delete a topic: its settings and its queues.

    Its messages stay in the CommitLog until they expire, but can no longer be consumed.
    """
    with connect(master_of(endpoint)) as client:
        client.delete_topic(topic)
    typer.echo(f"topic {topic} is deleted")


def flush(endpoint: EndpointOf) -> None:
    """Flush everything to disk, and wait until it is there."""
    with connect(endpoint) as client:
        flushed = client.flush()
    typer.echo(f"flushed up to {flushed.flushed_offset}")


_Timeout = typer.Option(
    "--timeout", metavar="SECONDS", min=0, help="How long to wait; 0 returns at once."
)


def stop(endpoint: EndpointOf, timeout: Annotated[float, _Timeout] = 60) -> None:
    """Stop a store process: drain, flush, close the store.

    Waits until the store is closed.
    """
    with connect(endpoint) as client:
        client.stop()
        address = client.endpoint
    if not timeout:
        typer.echo(f"{endpoint} is stopping")
        return
    wait_until_closed(address, timeout)
    typer.echo(f"{endpoint} has stopped")


def wait_until_closed(endpoint: Endpoint, timeout: float) -> None:
    """Wait until a stopping process has closed its store.

    Raises:
        ServiceError: it takes longer than the timeout, in seconds.
    """
    deadline = time.monotonic() + timeout
    while _listens(endpoint):
        if time.monotonic() > deadline:
            raise ServiceError(
                f"{endpoint} is still stopping after {timeout:g} s: it finishes its calls and "
                "closes the store. Wait for its process to end, or give a longer --timeout."
            )
        time.sleep(_LOOK_SECONDS)


def _listens(endpoint: Endpoint) -> bool:
    """Return whether a process accepts connections; it closes its store before it ceases to."""
    try:
        if endpoint.path:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(endpoint.path)
        else:
            socket.create_connection((endpoint.host, endpoint.port), _CONNECT_SECONDS).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # it is too busy to accept one more
        return True
    return True


_Sync = typer.Option(
    "--sync", help="Answer puts when a slave has them (brokerRole=SYNC_MASTER, not ASYNC_MASTER)."
)
_Force = typer.Option(
    "--force", help="Also if its master answers, or has sent a log that the store cannot follow."
)
_Master = typer.Argument(
    metavar="MASTER", help="Where the new master serves slaves, HOST:PORT: what `promote` prints."
)
_Broker = typer.Option(
    "--broker",
    metavar="HOST:PORT",
    help="Where the broker of MASTER answers clients (haMasterRemotingAddress).",
)


def promote(
    endpoint: EndpointOf,
    sync: Annotated[bool, _Sync] = False,
    force: Annotated[bool, _Force] = False,
) -> None:
    """Make a slave the master while its process runs.

    For when the former master has stopped, and will not start again as a master. The store follows
    nobody from then on, and accepts messages. It stays a master when it is started again, whatever
    its configuration says.
    """
    with connect(endpoint) as client:
        done = client.promote(waits_for_slaves=sync, force=force)
    typer.echo(f"{endpoint} is the master now: its log continues at physical offset {done.begin}")
    if done.slaves:
        typer.echo(f"slaves can follow {escaped(done.slaves)}")


def demote(
    endpoint: EndpointOf,
    master: Annotated[str, _Master],
    broker: Annotated[str, _Broker] = "",
) -> None:
    """Make a master a slave of another while its process runs.

    It accepts nothing from then on, and stays a slave when it is started again. Its own slaves get
    what they lack first, so that one of them can be promoted. If its log is not the beginning of
    that master's, it does not follow, and says so (`rmqstore stats`).
    """
    with connect(endpoint) as client:
        done = client.demote(master, broker)
    typer.echo(f"{endpoint} is a slave now, and follows {master}; its log ends at {done.end}")
    if not done.slaves:
        typer.echo("No slave was connected, which would have got what it lacks.", err=True)
    if done.lacking:
        typer.echo(
            f"{done.lacking} of the slaves that were connected did not get all of it within "
            "slaveTimeout, or left before. If one of them becomes the master, messages are lost.",
            err=True,
        )
    if done.unknown:
        typer.echo(
            f"{done.unknown} of the slaves that were connected were sent all of it, and do not say "
            f"what they have (haAcknowledge). A new master has it if its log ends at {done.end}.",
            err=True,
        )


_PROGRESS_SECONDS: Final = 0.2
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
            typer.echo("No segment is old enough; the last one always stays.")
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
        time.sleep(_PROGRESS_SECONDS)
        left = client.expire(before)
    if left.count and left.remark:
        raise ServiceError(
            f"{left.count} segments are kept for now. {left.remark} Run the command again then."
        )
