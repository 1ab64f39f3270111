"""A store whose files are read, where they are or through its process.

`StoreSpec` names a store and opens it, also in a task: a `StoreSpec` is of files on a file system,
an `EndpointSpec` of a store process, which option `endpoint` names, or name servers know.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.datasource.failures import host_name, some
from rmqstore_spark.datasource.options.values import Earliest, Latest
from rmqstore_spark.datasource.sources.source import Clock, QueueName, Source, SourcePartition
from rmqstore_spark.datasource.sources.store_watch import StoreWatch
from rmqstore_spark.errors import OptionError, RmqStoreError, StoreNotFoundError
from rmqstore_spark.files.systems.schemes import is_endpoint, local_path
from rmqstore_spark.layout.constants import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_NOT_TYPE,
)
from rmqstore_spark.wire.endpoint import replica_endpoints

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.datasource.options.connection import ConnectionOptions
    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.options.table import QueueOptions
    from rmqstore_spark.reader.before import Before
    from rmqstore_spark.reader.options import QueueRange, ReadOptions, ScanSplit, Split
    from rmqstore_spark.reader.plan import PlanLimits
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store
    from rmqstore_spark.reader.topics import Topic


_FOR_CHOICE: Final = ("topic", "queueId", "sysFlag")
_LONGEST_SECONDS: Final = 10.0
"""How long a store process may take to record the offsets of a group: the query waits for it."""
_RETRIES: Final = 6
"""How often it is tried again: for about 6 s, as long as one takes to restart."""


@dataclass(frozen=True)
class StoreSpec:
    """What a task needs to open a store again.

    Args:
        url: as in `Store.open`; absolute.
        broker_name: the store's broker name; None for its default.
        commitlog_paths: folders of its log, if not in the store; absolute.
        options: names and values for its file system; contains no secrets.
        spares_page_cache: whether reading leaves the page cache as it was.
        archives: its archives, read with it as one store; absolute.
    """

    url: str
    broker_name: str | None
    commitlog_paths: tuple[str, ...] | None = None
    options: tuple[tuple[str, str | float | None], ...] = ()
    spares_page_cache: bool = False
    archives: tuple[str, ...] = ()

    def with_limits(self, timeout_s: float, retries: int = 0, *, replicas: int = 1) -> StoreSpec:
        """Return the spec of a store that is soon given up, as if there is a replica of it.

        Args:
            timeout_s: most seconds that an answer may take.
            retries: how often a request is tried again.
            replicas: how many there are, which share the time for a first contact.
        """
        del timeout_s, retries, replicas
        return self

    @property
    def reached(self) -> StoreSpec:
        """The same for tasks: the driver has made the first contact with the store process."""
        return self

    def check_answers(self) -> None:
        """Check that the store process answers. Reading would find that out in many requests.

        Raises:
            ServiceError: it does not.
        """

    def client(self) -> StoreClient:
        """Return a client of the store process at `url`.

        Raises:
            OptionError: the store is not read through one.
        """
        raise OptionError(f"{self.url} is not the endpoint of a store process.")

    def open(self) -> Store:
        """Open the store."""
        from rmqstore_spark.files.systems.reads import PLAIN, SparingReads
        from rmqstore_spark.reader.store import Store

        return Store.open(
            self.url,
            broker_name=self.broker_name,
            commitlog_paths=self.commitlog_paths,
            archives=self.archives,
            storage_options=dict(self.options),
            reads=SparingReads() if self.spares_page_cache else PLAIN,
        )

    def open_replica(self) -> Store:
        """Open the store if it answers at once, since another one can be read in its place."""
        self.check_answers()
        return self.open()

    def explain(self, error: RmqStoreError) -> None:
        """Raise a different error if the cause is that this machine does not see the store."""
        from rmqstore_spark.files.systems.open import open_files

        try:
            files, path = open_files(self.url)
            if files.exists(path):
                return
        except RmqStoreError:
            if not isinstance(error, StoreNotFoundError):
                return
        raise StoreNotFoundError(
            f"A task on host {host_name()} cannot find {self.url}, which the driver found when it "
            "planned the query. Stores must be accessible to all executors under the same path. "
            f"({error})"
        ) from None


def check_names(paths: Sequence[str], names: Sequence[str]) -> None:
    """Refuse names that do not match the stores."""
    if len(names) != len(paths):
        raise OptionError(
            f"Option brokerNames has {len(names)} names for {len(paths)} stores: {some(paths)}. "
            "List one name for each, in this order."
        )
    by_name: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        if name in by_name:
            raise OptionError(
                f"The stores {by_name[name]} and {path} are both called {name!r}: set option "
                "brokerNames."
            )
        by_name[name] = path


def different_names(names: Mapping[str, str]) -> OptionError:
    """Return the error for replicas of one store that report several broker names."""
    listed = ", ".join(f"{place} is called {name!r}" for place, name in names.items())
    return OptionError(
        f"The replicas of a store have different broker names: {listed}. Set option brokerNames to "
        "the one name under which the query reads them."
    )


class StorePartition(SourcePartition):
    """Splits of one store."""

    def __init__(self, plan: str, store: StoreSpec, splits: Sequence[Split]) -> None:
        is_remote = local_path(store.url) is None
        super().__init__(plan, store.broker_name, splits, is_waited_for=is_remote)
        self.store = store

    def to_json(self) -> dict[str, Any]:
        return {"store": asdict(self.store)}

    def read(self, wanted: ReadOptions, options: Options) -> Generator[pa.RecordBatch]:
        from rmqstore_spark.reader.options import ScanSplit
        from rmqstore_spark.reader.plan import read_split

        names = wanted.columns
        try:
            store = open_kept(self.value, self.store)
            for split in self.splits:
                if isinstance(split, ScanSplit):
                    missing = tuple(name for name in _FOR_CHOICE if name not in names)
                    scanned = replace(wanted, columns=names + missing)
                    for batch in read_split(store, split, scanned):
                        yield _chosen_rows(batch, options.queues).select(range(len(names)))
                else:
                    yield from read_split(store, split, wanted)
        except RmqStoreError as error:
            self.store.explain(error)
            raise


def _chosen_rows(batch: pa.RecordBatch, queues: QueueOptions) -> pa.RecordBatch:
    """Return the rows of a scan that a query requests, of those that queues would hold.

    A prepared or rolled-back record belongs to no queue.
    """
    import pyarrow as pa

    kinds = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
    wanted = np.isin(kinds, (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE))
    wanted &= _in_chosen_queue(batch, queues)
    return batch.filter(pa.array(wanted))


def _in_chosen_queue(batch: pa.RecordBatch, queues: QueueOptions) -> npt.NDArray[np.bool_]:
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.to_numpy()
    names = topics.dictionary.to_pylist()
    if queues.assign is None:
        chosen = np.array([queues.wants_topic(name) for name in names], np.bool_)
        return chosen[codes]
    queue_ids = batch.column("queueId").to_numpy()
    found = np.zeros(len(codes), np.bool_)
    for code, name in enumerate(names):
        if name in queues.assign:
            found |= (codes == code) & np.isin(queue_ids, queues.assign[name])
    return found


# The store that the last task of this worker read. Workers are reused, and listing a store for each
# of thousands of tasks would cost more than reading. It serves only tasks of the same planning: it
# was opened after that, so it contains everything that was planned.
_kept: dict[tuple[str, StoreSpec], Store] = {}


def open_kept(plan: str, spec: StoreSpec, *, is_replica: bool = False) -> Store:
    """Open a store for the tasks of a planning, or return it if it is open."""
    store = _kept.get((plan, spec))
    if store is None:
        for other in list(_kept):
            close_kept(*other)
        store = _kept[plan, spec] = spec.open_replica() if is_replica else spec.open()
    return store


def close_kept(plan: str, spec: StoreSpec) -> None:
    """Close a store of the tasks of a planning, so that it is opened again."""
    store = _kept.pop((plan, spec), None)
    if store is not None:
        store.close()


class StoreSource(Source):
    """An open store: a directory, or what a store process serves."""

    def __init__(self, spec: StoreSpec, store: Store) -> None:
        self.broker_name = store.broker_name
        self._use(replace(spec, broker_name=store.broker_name), store)

    def _use(self, spec: StoreSpec, store: Store) -> None:
        self.spec = spec
        self.store = store
        self.url = spec.url
        self.path = str(store.path)

    @property
    def has_queues(self) -> bool:
        return self.store.has_queues

    @property
    def store_id(self) -> str | None:
        return self.store.store_id

    def close(self) -> None:
        self.store.close()

    def require_stream(self) -> None:
        self.store.require_queues("A stream")

    def known_topics(self) -> list[Topic]:
        return self.store.known_topics()

    def topics_in_log(self, wanted: set[str]) -> set[str]:
        from rmqstore_spark.reader.options import ReadOptions

        found: set[str] = set()
        options = ReadOptions(columns=("topic",), check_crc=False, mode="DROPMALFORMED")
        for batch in self.store.scan(options=options):
            found.update(batch.column("topic").unique().to_pylist())
            if wanted <= found:
                break
        return found

    def queue(self, topic: str, queue_id: int) -> Queue:
        return self.store.queue(topic, queue_id)

    def queues(self, names: Sequence[QueueName]) -> Iterator[tuple[QueueName, Queue]]:
        return zip(names, self.store.named_queues(names), strict=True)

    def before(self, asked: Sequence[tuple[Queue, int]]) -> list[Before]:
        from rmqstore_spark.reader.before import look_before

        return look_before(self.store.log, asked)

    def sizes(self, queue: Queue, start: int, end: int) -> npt.NDArray[np.int32]:
        return queue.entries(start, end)["size"]

    def average_size(self, wanted: QueueRange) -> float:
        from rmqstore_spark.reader.plan import average_size

        return average_size(self.store, wanted)

    def group_progress(
        self, group: str, names: Sequence[QueueName], *, is_own: bool
    ) -> tuple[dict[QueueName, int], frozenset[str]]:
        from rmqstore_spark.reader.groups import group_offsets

        del names, is_own
        entries = group_offsets(self.store)
        offsets = {(e.topic, e.queue_id): e.offset for e in entries if e.group == group}
        return offsets, frozenset(entry.group for entry in entries)

    def commits(self) -> StoreClient:
        return self.spec.with_limits(_LONGEST_SECONDS, retries=_RETRIES).client()

    def plan(
        self, ranges: Sequence[QueueRange], limits: PlanLimits, options: Options
    ) -> Sequence[Split]:
        from rmqstore_spark.reader.plan import plan, plan_by_keys

        if not (ranges or self.has_queues):
            return self._plan_log(options)
        if options.rows.keys is not None:
            return plan_by_keys(self.store, ranges, limits)
        return plan(self.store, ranges, limits, by=options.partitions.plan_by)

    def _plan_log(self, options: Options) -> Sequence[ScanSplit]:
        """Plan the reading of a store that has only its log.

        If an option needs queues that will come with the first message, there is nothing to read.
        """
        from rmqstore_spark.reader.plan import plan_scan

        if options.partitions.plan_by == "queue":
            self.store.require_queues("planBy=queue")
            return ()
        positions = options.positions
        refused = []
        if not isinstance(positions.starting, Earliest):
            refused.append(positions.starting_option)
        if not isinstance(positions.ending, Latest):
            refused.append(positions.ending_option)
        if options.partitions.max_records is not None:
            refused.append("maxRecordsPerPartition")
        for option in refused:
            self.store.require_queues(option, f"Remove {option} to read the whole store")
        if refused:
            return ()
        topics = options.queues.named
        return plan_scan(self.store, None if topics is None else frozenset(topics))

    def partitions(self, plan: str, groups: Sequence[Sequence[Split]]) -> Iterator[SourcePartition]:
        spec = self.spec.reached
        return (StorePartition(plan, spec, group) for group in groups)

    def follow(self, chosen: QueueOptions, hurry_s: float, clock: Clock) -> None:
        del hurry_s  # it is never silent
        self.watched = StoreWatch(chosen, self, self.store, clock)


def at_endpoints(
    connection: ConnectionOptions, broker_names: Sequence[str] | None
) -> list[tuple[EndpointSpec, ...]]:
    """Return the stores of option `endpoint`, each with its replicas.

    Args:
        connection: has the endpoints.
        broker_names: the names of the stores; without these, they report their names.
    """
    groups = [replica_endpoints(store) for store in connection.endpoints]
    names: Sequence[str | None] = broker_names or (None,) * len(groups)
    if broker_names is not None:
        check_names(connection.endpoints, broker_names)
    return [
        tuple(EndpointSpec(one, name, options=connection.storage_options) for one in group)
        for group, name in zip(groups, names, strict=True)
    ]


@dataclass(frozen=True)
class EndpointSpec(StoreSpec):
    """What a task needs to open a store through its process again: `url` is the endpoint."""

    def with_limits(self, timeout_s: float, retries: int = 0, *, replicas: int = 1) -> EndpointSpec:
        if not self.options:
            return self
        limits = dict(self.options)
        connect_s = limits.get("connect_s")
        if isinstance(connect_s, int | float):
            limits.update(connect_s=connect_s / replicas)
        given = limits.get("timeout_s")
        least = timeout_s if not isinstance(given, int | float) else min(timeout_s, given)
        limits.update(timeout_s=least, retries=retries)
        return replace(self, options=tuple(limits.items()))

    @property
    def reached(self) -> EndpointSpec:
        options = {**dict(self.options), "connect_s": None} if self.options else {}
        return replace(self, options=tuple(options.items()))

    def check_answers(self) -> None:
        with self.client() as client:
            client.open(())

    def client(self) -> StoreClient:
        from rmqstore_spark.client import StoreClient

        return StoreClient(self.url, **dict(self.options))  # type: ignore[arg-type]

    def explain(self, error: RmqStoreError) -> None:
        del error  # it is not that of a file which only others see


def spec_at(url: str, *fields: Any, **more: Any) -> StoreSpec:
    """Return the spec of the store at a URL, with these fields."""
    return (EndpointSpec if is_endpoint(url) else StoreSpec)(url, *fields, **more)
