"""`rmqstore create-topic`, `delete-topic`, `flush`, `stop`: administer a store process."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.connection import EndpointOf, connect
from rmqstore_spark.errors import ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.wire.endpoint import Endpoint

_LOOK_SECONDS: Final = 0.05
_CONNECT_SECONDS: Final = 5.0

_Topic = typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)
_Queues = typer.Option(
    "--queues",
    min=1,
    metavar="N",
    help="Number of queues to read and to write.  [default: the store's defaultTopicQueueNums]",
    show_default=False,
)
_ReadQueues = typer.Option(
    "--read-queues", min=1, metavar="N", help="Number of queues to read. Overrides --queues."
)
_WriteQueues = typer.Option(
    "--write-queues", min=1, metavar="N", help="Number of queues to write. Overrides --queues."
)
_Perm = typer.Option("--perm", min=0, max=7, metavar="N", help="4: readable, 2: writable, 6: both.")


def create_topic(
    endpoint: EndpointOf,
    topic: Annotated[str, _Topic],
    queues: Annotated[int | None, _Queues] = None,
    read_queues: Annotated[int | None, _ReadQueues] = None,
    write_queues: Annotated[int | None, _WriteQueues] = None,
    perm: Annotated[int, _Perm] = 6,
) -> None:
    """Create a topic, or change its numbers of queues."""
    with connect(endpoint) as client:
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


def delete_topic(endpoint: EndpointOf, topic: Annotated[str, _Topic]) -> None:
    """Delete a topic: its settings and its queues.

    Its messages stay in the CommitLog until they expire, but can no longer be consumed.
    """
    with connect(endpoint) as client:
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
