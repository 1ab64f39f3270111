"""Write one partition in a task: rows in, records staged or stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.options import SinkOptions
from rmqstore_spark.datasource.sink.outcome import Place, TaskDone
from rmqstore_spark.datasource.tasks import short_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.produce.uniq_key import RowKeys

IDLE_SECONDS: Final = 20.0
"""How long a stream may have nothing to send before it is ended; a store process ends streams that
are idle for longer (streamIdleTimeout, a minute)."""


@short_collections()
def run_task(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    place: Place,
    first_turn: int,
    write_name: str,
    idle_seconds: float = IDLE_SECONDS,
) -> TaskDone:
    """Write the rows of one partition.

    Args:
        options: the write's options.
        columns: the positions of the columns in the batches.
        batches: Spark's batches.
        place: the task.
        first_turn: see `Router`.
        write_name: of the write among all, the same when it is run again.
        idle_seconds: how long a stream to a store may have nothing to send.

    Raises:
        RowError: a row cannot become a message.
        TopicNotFoundError: a topic does not exist, or cannot be written.
        RefusedError: a store refuses records.
        ServiceError: a store process cannot be reached.
    """
    if options.target.to_brokers:
        from rmqstore_spark.produce.uniq_key import RowKeys

        keys = RowKeys(f"{write_name}/{place.partition}")
        return TaskDone(place, {}, _send(options, columns, batches, first_turn, keys))
    from rmqstore_spark.datasource.sink.encode import RowEncoder, StoreBlocks
    from rmqstore_spark.datasource.sink.sending import PutSending, Sending, StageSending
    from rmqstore_spark.datasource.sink.target_stores import TargetStores

    with ExitStack() as closing:
        connection = options.target.connection
        clients = [
            closing.enter_context(connection.client(endpoint)) for endpoint in connection.endpoints
        ]
        stores = TargetStores(clients, options.messages.topic)
        blocks = StoreBlocks(stores.opened, stores.queues)
        encoder = RowEncoder(options.messages, columns, blocks, first_turn)
        kind: type[Sending[Any]] = StageSending if options.delivery.exactly_once else PutSending
        sending = closing.enter_context(kind(options.delivery, clients, idle_seconds))
        rows = 0
        for batch in batches:
            rows += len(batch)
            for block in encoder.encode(batch):
                sending.send(block)
        return TaskDone(place, sending.finish(), rows)


def _send(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    first_turn: int,
    row_keys: RowKeys,
) -> int:
    """Send the rows of one partition to brokers; return how many there are."""
    from rmqstore_spark.client.brokers.routes import PublishRoutes
    from rmqstore_spark.client.brokers.sending import MessageSender
    from rmqstore_spark.datasource.sink.encode import RowEncoder
    from rmqstore_spark.datasource.sink.requests import BrokerRequests
    from rmqstore_spark.remoting.access.identity import ClientIdentity

    target = options.target
    connection = target.connection
    answer_s = connection.timeout_ms / 1000
    identity = ClientIdentity.of(connection.identity)
    routes = PublishRoutes(
        target.name_servers,
        answer_s,
        identity,
        target.broker_names,
        connect_s=connection.connect_s,
        retries=connection.retries,
    )
    requests = BrokerRequests(routes)
    encoder = RowEncoder(options.messages, columns, requests, first_turn, row_keys=row_keys)
    most = options.delivery.max_in_flight
    sender = MessageSender(routes, most, answer_s, connection.retries, identity)
    rows = 0
    with closing(sender):
        for batch in batches:
            rows += len(batch)
            for out in encoder.encode(batch):
                sender.send(out)
        sender.finish()
    return rows
