"""`rmqstore create-topic`, `delete-topic`, `flush`, `stop`: administer a store process."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqstore_spark.cli.shared.connection import EndpointOf, connect

__all__ = ["create_topic", "delete_topic", "flush", "stop"]

_Topic = typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)
_Queues = typer.Option(
    "--queues",
    min=1,
    metavar="N",
    help="So many queues, to read and to write.  [default: the store's defaultTopicQueueNums]",
    show_default=False,
)
_ReadQueues = typer.Option(
    "--read-queues", min=1, metavar="N", help="Queues to read, where not --queues."
)
_WriteQueues = typer.Option(
    "--write-queues", min=1, metavar="N", help="Queues to write, where not --queues."
)
_Perm = typer.Option(
    "--perm", min=0, max=7, metavar="N", help="4 to be read, 2 to be written, and their sum."
)


def create_topic(
    endpoint: EndpointOf,
    topic: Annotated[str, _Topic],
    queues: Annotated[int | None, _Queues] = None,
    read_queues: Annotated[int | None, _ReadQueues] = None,
    write_queues: Annotated[int | None, _WriteQueues] = None,
    perm: Annotated[int, _Perm] = 6,
) -> None:
    """Make a topic, or change its numbers of queues."""
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
    """Remove a topic: its settings, and its queues.

    Its messages stay in the CommitLog until they expire, and cannot be consumed any more.
    """
    with connect(endpoint) as client:
        client.delete_topic(topic)
    typer.echo(f"topic {topic} is deleted")


def flush(endpoint: EndpointOf) -> None:
    """Bring everything to disk, and wait for it."""
    with connect(endpoint) as client:
        flushed = client.flush()
    typer.echo(f"flushed up to {flushed.flushed_offset}")


def stop(endpoint: EndpointOf) -> None:
    """Stop a store process: drain, flush, close the store."""
    with connect(endpoint) as client:
        client.stop()
    typer.echo(f"{endpoint} is stopping")
