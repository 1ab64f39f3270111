"""Read a partition in a task: a few splits of one store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqstore_spark.datasource.failures import host_name, plain_errors_of
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.scanned import chosen_rows, with_needed
from rmqstore_spark.datasource.schema import Projection
from rmqstore_spark.datasource.stores import StoreSpec
from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.rows.splits import Split
    from rmqstore_spark.reader.store import Store

__all__ = ["StorePartition", "partitions_of", "read_options", "read_partition"]


class StorePartition(InputPartition):
    """Splits of one store that one task reads in order.

    Args:
        plan: id of the planning that created it.
        store: the store.
        splits: the splits to read.
    """

    def __init__(self, plan: str, store: StoreSpec, splits: Sequence[Split]) -> None:
        super().__init__(plan)
        self.store = store
        self.splits = tuple(splits)


def partitions_of(
    planned: Iterable[tuple[StoreSpec, Sequence[Sequence[Split]]]],
) -> list[StorePartition]:
    """Create the partitions of one planning: groups of splits for each store."""
    plan = uuid4().hex
    return [StorePartition(plan, spec, group) for spec, groups in planned for group in groups]


def read_options(options: Options, projection: Projection) -> ReadOptions:
    """Convert a query's options to the reader's form."""
    from rmqstore_spark.reader.options import ReadOptions

    return ReadOptions(
        columns=projection.columns,
        body_as_text=projection.body_as_text,
        decompress=options.decompress,
        check_crc=options.check_crc,
        mode=options.mode,
        fail_on_data_loss=options.fail_on_data_loss,
        tags=options.tags,
        keys=options.keys,
    )


# The store that the last task of this worker read. Workers are reused, and listing a store for each
# of thousands of tasks would cost more than reading. It serves only tasks of the same planning: it
# was opened after that, so it contains everything that was planned.
_opened: dict[tuple[str, StoreSpec], Store] = {}


def _open(partition: StorePartition) -> Store:
    key = (partition.value, partition.store)
    store = _opened.get(key)
    if store is None:
        for other in _opened.values():
            other.close()
        _opened.clear()
        store = _opened[key] = partition.store.open()
    return store


def read_partition(
    partition: InputPartition, options: Options, projection: Projection
) -> Iterator[pa.RecordBatch]:
    """Read a partition; return nothing for the one that Spark creates for an empty plan."""
    if not isinstance(partition, StorePartition):
        return iter(())
    return plain_errors_of(_read(partition, options, projection))


def _read(
    partition: StorePartition, options: Options, projection: Projection
) -> Iterator[pa.RecordBatch]:
    from rmqstore_spark.reader.reading import read_split
    from rmqstore_spark.reader.rows.splits import ScanSplit

    wanted = read_options(options, projection)
    scanned = replace(wanted, columns=with_needed(wanted.columns))
    schema = projection.arrow_schema()
    try:
        store = _open(partition)
        for split in partition.splits:
            if isinstance(split, ScanSplit):
                for batch in read_split(store, split, scanned):
                    yield _as_spark_wants(chosen_rows(batch, options, wanted.columns), schema)
            else:
                for batch in read_split(store, split, wanted):
                    yield _as_spark_wants(batch, schema)
    except RmqStoreError as error:
        _explain_invisible(partition.store, error)
        raise


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
