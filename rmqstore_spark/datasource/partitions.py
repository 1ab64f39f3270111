"""Read a partition in a task: a few splits of one store."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqstore_spark.datasource.failures import host_name, plain_errors_of
from rmqstore_spark.datasource.opening import patience_s
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.datasource.pulled.spec import BrokerSpec
from rmqstore_spark.datasource.replicas import Evidence, ranges_of
from rmqstore_spark.datasource.scanned import chosen_rows, with_needed
from rmqstore_spark.datasource.schema import Projection
from rmqstore_spark.datasource.spec import AnySource, SourceBroker, StoreSpec
from rmqstore_spark.datasource.tasks import one_ahead, short_collections
from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError
from rmqstore_spark.files.open import local_path

if TYPE_CHECKING:
    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.rows.splits import Split
    from rmqstore_spark.reader.store import Store

__all__ = [
    "AnyPartition",
    "PulledPartition",
    "StorePartition",
    "partitions_of",
    "read_options",
    "read_partition",
]


class StorePartition(InputPartition):
    """Splits of one store that one task reads in order.

    Args:
        plan: id of the planning that created it.
        store: the store.
        splits: the splits to read.
        replicas: the store and its replicas; empty if it has none.
        evidence: what a replica must hold, if there are any.
    """

    def __init__(
        self,
        plan: str,
        store: StoreSpec,
        splits: Sequence[Split],
        replicas: Sequence[StoreSpec] = (),
        evidence: Evidence | None = None,
    ) -> None:
        super().__init__(plan)
        self.store = store
        self.splits = tuple(splits)
        self.replicas = tuple(replicas)
        self.evidence = evidence


class PulledPartition(InputPartition):
    """Ranges of queues of one broker that one task pulls in order.

    Args:
        plan: id of the planning that created it.
        broker: the broker.
        splits: the splits to read.
    """

    def __init__(self, plan: str, broker: BrokerSpec, splits: Sequence[Split]) -> None:
        super().__init__(plan)
        self.broker = broker
        self.splits = tuple(splits)


AnyPartition: TypeAlias = StorePartition | PulledPartition


def partitions_of(
    planned: Iterable[tuple[AnySource, Sequence[Sequence[Split]]]],
) -> list[AnyPartition]:
    """Create the partitions of one planning: groups of splits for each store."""
    plan = uuid4().hex
    return [part for of, groups in planned for part in _partitions(plan, of, groups)]


def _partitions(
    plan: str, of: AnySource, groups: Sequence[Sequence[Split]]
) -> Iterator[AnyPartition]:
    if isinstance(of, SourceBroker):
        broker = of.spec.led_by(of.store.servers.addresses)
        for group in groups:
            yield PulledPartition(plan, broker, group)
        return
    evidence = None
    if of.replicas:
        wanted = {one for group in groups for split in group for one in ranges_of(split)}
        evidence = Evidence.of(of.store, wanted)
    spec, replicas = of.spec.reached, [one.reached for one in of.replicas]
    for group in groups:
        own = None if evidence is None else evidence.about(group)
        yield StorePartition(plan, spec, group, replicas, own)


def read_options(options: Options, projection: Projection) -> ReadOptions:
    """Convert a query's options to the reader's form."""
    from rmqstore_spark.reader.options import ReadOptions

    rows = options.rows
    return ReadOptions(
        columns=projection.columns,
        body_as_text=projection.body_as_text,
        decompress=rows.decompress,
        check_crc=rows.check_crc,
        mode=rows.mode,
        fail_on_data_loss=options.positions.fail_on_data_loss,
        tags=rows.tags,
        keys=rows.keys,
    )


# The store that the last task of this worker read. Workers are reused, and listing a store for each
# of thousands of tasks would cost more than reading. It serves only tasks of the same planning: it
# was opened after that, so it contains everything that was planned.
_opened: dict[tuple[str, StoreSpec], Store] = {}


def _open(plan: str, spec: StoreSpec, *, is_replica: bool = False) -> Store:
    store = _opened.get((plan, spec))
    if store is None:
        for other in list(_opened):
            _close(*other)
        store = _opened[plan, spec] = spec.open_replica() if is_replica else spec.open()
    return store


def _close(plan: str, spec: StoreSpec) -> None:
    store = _opened.pop((plan, spec), None)
    if store is not None:
        store.close()


def read_partition(
    partition: InputPartition, options: Options, projection: Projection
) -> Iterator[pa.RecordBatch]:
    """Read a partition; return nothing for the one that Spark creates for an empty plan."""
    if not isinstance(partition, PulledPartition | StorePartition):
        return iter(())
    wanted = read_options(options, projection)
    schema = projection.arrow_schema()
    if isinstance(partition, PulledPartition):
        return _run(one_ahead(_pull(partition, wanted, schema)))
    if partition.evidence is not None:
        patience = patience_s(options.places.connection)
        batches = _read_replicated(partition, partition.evidence, wanted, schema, patience)
    else:
        batches = _read(partition, options.queues, wanted, schema)
    # A remote store is waited for. A local one only costs CPU, which other tasks can use.
    return _run(batches if local_path(partition.store.url) else one_ahead(batches))


def _run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with short_collections():
        yield from plain_errors_of(batches)


def _pull(
    partition: PulledPartition, wanted: ReadOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    store = partition.broker.open()
    try:
        for split in partition.splits:
            for batch in store.read(split, wanted):
                yield _as_spark_wants(batch, schema)
    finally:
        store.close()


def _read(
    partition: StorePartition, queues: QueueOptions, wanted: ReadOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    from rmqstore_spark.reader.reading import read_split
    from rmqstore_spark.reader.rows.splits import ScanSplit

    scanned = replace(wanted, columns=with_needed(wanted.columns))
    try:
        store = _open(partition.value, partition.store)
        for split in partition.splits:
            if isinstance(split, ScanSplit):
                for batch in read_split(store, split, scanned):
                    yield _as_spark_wants(chosen_rows(batch, queues, wanted.columns), schema)
            else:
                for batch in read_split(store, split, wanted):
                    yield _as_spark_wants(batch, schema)
    except RmqStoreError as error:
        _explain_invisible(partition.store, error)
        raise


def _read_replicated(
    partition: StorePartition,
    evidence: Evidence,
    wanted: ReadOptions,
    schema: pa.Schema,
    patience: float,
) -> Generator[pa.RecordBatch]:
    from rmqstore_spark.datasource.failover import ReplicatedSplits

    first = partition.store
    specs = [first, *(spec for spec in partition.replicas if spec != first)]
    splits = ReplicatedSplits(
        specs,
        evidence,
        partition.splits,
        opened=lambda spec: _open(partition.value, spec, is_replica=True),
        drop=lambda spec: _close(partition.value, spec),
        patience_s=patience,
    )
    for batch in splits.read(wanted):
        yield _as_spark_wants(batch, schema)


def _as_spark_wants(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Set names as the user spelled them, and NOT NULL, in a batch's schema."""
    if batch.schema.equals(schema) or not len(schema):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _explain_invisible(spec: StoreSpec, error: RmqStoreError) -> None:
    """Raise a different error if the cause is that this machine does not see the store."""
    from rmqstore_spark.files.open import is_endpoint, open_files

    if is_endpoint(spec.url):
        return
    try:
        files, path = open_files(spec.url)
        if files.exists(path):
            return
    except RmqStoreError:
        if not isinstance(error, StoreNotFoundError):
            return
    raise StoreNotFoundError(
        f"A task on host {host_name()} cannot find {spec.url}, which the driver found when it "
        "planned the query. Stores must be accessible to all executors under the same path. "
        f"({error})"
    ) from None
