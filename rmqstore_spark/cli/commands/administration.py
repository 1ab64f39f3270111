"""`rmqstore create-topic`, `delete-topic`, `flush`, `stop`: administer a store process."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqstore_spark.cli.shared.connection import EndpointOf, connect

__all__ = ["create_topic", "delete_topic", "flush", "stop"]

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


def stop(endpoint: EndpointOf) -> None:
    """Stop a store process: drain, flush, close the store."""
    with connect(endpoint) as client:
        client.stop()
    typer.echo(f"{endpoint} is stopping")
