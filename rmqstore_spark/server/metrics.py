"""The metrics of a store process for Prometheus (docs/operate.md, "Monitor").

Nothing is counted here. Each scrape calls the store's `stats()`, and shows the figures under
Prometheus' names and units (seconds, bytes, ratios).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from rmqstore_spark import __version__
from rmqstore_spark.engine.status import STATES
from rmqstore_spark.ha.follower_progress import STATES as REPLICATION_STATES

Stats = Callable[[], Mapping[str, Any]]
"""Returns the store's figures, named as in `StoreWriter.stats`."""


class _Figure(NamedTuple):
    """A figure of `stats()`, with its Prometheus name and help text."""

    key: str
    name: str
    doc: str


_COUNTERS: Final = (
    _Figure("putMessages", "rmqstore_put_messages", "Messages put or committed."),
    _Figure("putBytes", "rmqstore_put_bytes", "Bytes of these messages."),
    _Figure("commits", "rmqstore_commits", "Staged batches of Spark that were committed."),
    _Figure(
        "readBytes",
        "rmqstore_read_bytes",
        "Bytes that a read-only process was asked to read from its stores.",
    ),
    _Figure(
        "replicationReceivedBytes",
        "rmqstore_replication_received_bytes",
        "Bytes of the master's log that were received and stored.",
    ),
    _Figure(
        "replicationConnects", "rmqstore_replication_connects", "Connections made to the master."
    ),
    _Figure("expiredSegments", "rmqstore_expired_segments", "Segments that were deleted."),
    _Figure("expiredBytes", "rmqstore_expired_bytes", "Bytes of these segments."),
    _Figure("delayedDelivered", "rmqstore_delayed_delivered", "Delayed messages delivered."),
    _Figure(
        "delayedSkipped",
        "rmqstore_delayed_skipped",
        "Delayed messages that could not be delivered.",
    ),
    _Figure("transactionsCommitted", "rmqstore_transactions_committed", "Transactions committed."),
    _Figure(
        "transactionsRolledBack", "rmqstore_transactions_rolled_back", "Transactions rolled back."
    ),
    _Figure(
        "transactionsGivenUp",
        "rmqstore_transactions_given_up",
        "Transactions whose outcome nobody told, moved to TRANS_CHECK_MAX_TIME_TOPIC.",
    ),
    _Figure("archivedSegments", "rmqstore_archived_segments", "Segments copied to the archive."),
    _Figure("archivedBytes", "rmqstore_archived_bytes", "Bytes of these segments."),
    _Figure(
        "expiryFailures",
        "rmqstore_expiry_failures",
        "Rounds of expiry that failed, as when the archive cannot be written.",
    ),
)
_BY_STATUS: Final = (
    _Figure("putFailures", "rmqstore_put_failures", "Puts that were not answered PUT_OK."),
    _Figure("stageFailures", "rmqstore_stage_failures", "Blocks for Spark that were not staged."),
    _Figure("commitFailures", "rmqstore_commit_failures", "Commits of Spark that were refused."),
    _Figure(
        "callFailures",
        "rmqstore_call_failures",
        "Calls that were refused or failed outside the store.",
    ),
)
_GAUGES: Final = (
    _Figure("connections", "rmqstore_connections", "Connections of clients."),
    _Figure("calls", "rmqstore_calls", "Calls of clients in progress."),
    _Figure(
        "receivedBytes",
        "rmqstore_received_bytes",
        "Bytes of messages that were received and not handled yet.",
    ),
    _Figure(
        "commitLogMinOffset",
        "rmqstore_commitlog_min_offset",
        "First physical offset of the CommitLog.",
    ),
    _Figure(
        "commitLogMaxOffset",
        "rmqstore_commitlog_max_offset",
        "Physical offset at which the CommitLog ends.",
    ),
    _Figure(
        "commitLogFlushedOffset",
        "rmqstore_commitlog_flushed_offset",
        "Physical offset up to which the CommitLog is on disk.",
    ),
    _Figure("transactionsWaiting", "rmqstore_transactions_waiting", "Half messages that wait."),
    _Figure(
        "dispatchBehindBytes",
        "rmqstore_dispatch_behind_bytes",
        "Bytes of the CommitLog that are not dispatched to queues and index yet.",
    ),
    _Figure("stagedBytes", "rmqstore_staged_bytes", "Bytes staged and not yet committed."),
    _Figure(
        "stagedMemoryBytes", "rmqstore_staged_memory_bytes", "Bytes of memory that stages take."
    ),
    _Figure("stages", "rmqstore_stages", "Stages that are neither committed nor aborted."),
    _Figure("diskUsedRatio", "rmqstore_disk_used_ratio", "Used part of the store's disk, 0 to 1."),
    _Figure(
        "clockBehindSeconds",
        "rmqstore_clock_behind_seconds",
        "How far the clock is behind the last storeTimestamp.",
    ),
    _Figure(
        "replicationComplete",
        "rmqstore_replication_complete",
        "1 while nothing of the master's log is missing, else 0.",
    ),
    _Figure(
        "replicationLagBytes",
        "rmqstore_replication_lag_bytes",
        "Bytes of the master's log that are missing, or an estimate; absent while unknown.",
    ),
    _Figure(
        "replicationLagSeconds",
        "rmqstore_replication_lag_seconds",
        "How long ago the store had all that its master has.",
    ),
    _Figure("slaves", "rmqstore_slaves", "Slaves that are connected."),
    _Figure(
        "slaveLagBytes",
        "rmqstore_slave_lag_bytes",
        "Bytes of the log that were not sent yet to the slave that is furthest behind.",
    ),
    _Figure("uptimeSeconds", "rmqstore_uptime_seconds", "Seconds since the store was opened."),
)
_HISTOGRAMS: Final = (
    _Figure("putLatency", "rmqstore_put_latency_seconds", "From a put's arrival to its result."),
    _Figure(
        "commitLatency",
        "rmqstore_commit_latency_seconds",
        "From a commit's arrival to its batch being on disk.",
    ),
    _Figure("flushLatency", "rmqstore_flush_latency_seconds", "Time of a flush of the CommitLog."),
)


_OF_A_STORE: Final = tuple(figure for figure in _GAUGES if figure.key.startswith("commitLogM"))
"""The gauges of each store that is served read-only."""


class StoreCollector(Collector):
    """Converts the store's figures into metrics at each scrape."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not ask for figures when it is built."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all figures that the store reports."""
        stats = self._stats()
        yield InfoMetricFamily(
            "rmqstore_build", "The running version.", value={"version": __version__}
        )
        for figure in _COUNTERS:
            if figure.key in stats:
                yield CounterMetricFamily(figure.name, figure.doc, value=stats[figure.key])
        for figure in _BY_STATUS:
            if figure.key in stats:
                yield _by_status(figure, stats[figure.key])
        for figure in _GAUGES:
            if stats.get(figure.key) is not None:  # None: not known yet
                yield GaugeMetricFamily(figure.name, figure.doc, value=stats[figure.key])
        for figure in _HISTOGRAMS:
            if figure.key in stats:
                yield _histogram(figure, stats[figure.key])
        if "state" in stats:
            yield _state(
                _Figure("state", "rmqstore_state", "1 for the state that the store is in, else 0."),
                str(stats["state"]),
                STATES,
            )
        if "replicationState" in stats:
            yield _state(
                _Figure(
                    "replicationState",
                    "rmqstore_replication_state",
                    "1 for the state that the follower of a master is in, else 0.",
                ),
                str(stats["replicationState"]),
                REPLICATION_STATES,
            )
        if "stores" in stats:
            yield from _stores(stats["stores"])
        else:
            yield from _queues({(): stats.get("queues", {})}, [])


def _by_status(figure: _Figure, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(figure.name, figure.doc, labels=["status"])
    for status, count in counts.items():
        family.add_metric([status], count)
    return family


def _state(figure: _Figure, now: str, states: Iterable[str]) -> Metric:
    """Return a gauge with every state: an alert that compares one of them needs it to exist."""
    family = GaugeMetricFamily(figure.name, figure.doc, labels=["state"])
    for state in dict.fromkeys((*states, now)):
        family.add_metric([state], int(state == now))
    return family


def _histogram(figure: _Figure, latency: Mapping[str, Any]) -> Metric:
    """Return a histogram.

    `buckets` holds pairs of an upper bound in seconds and the count up to it; the last bound is
    +Inf.
    """
    buckets = [(_bound(bound), count) for bound, count in latency["buckets"]]
    return HistogramMetricFamily(figure.name, figure.doc, buckets=buckets, sum_value=latency["sum"])


def _bound(seconds: float | str) -> str:
    text: str = floatToGoString(seconds)  # type: ignore[no-untyped-call]
    return text


def _stores(stores: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Yield the metrics of stores that are served read-only, with the label `store`."""
    readable = GaugeMetricFamily(
        "rmqstore_store_readable", "1 if the store can be read, else 0.", labels=["store"]
    )
    for name, stats in stores.items():
        readable.add_metric([name], int("queues" in stats))
    yield readable
    for figure in _OF_A_STORE:
        family = GaugeMetricFamily(figure.name, figure.doc, labels=["store"])
        for name, stats in stores.items():
            if figure.key in stats:
                family.add_metric([name], stats[figure.key])
        yield family
    yield from _queues(
        {(name,): stats.get("queues", {}) for name, stats in stores.items()}, ["store"]
    )


def _queues(
    stores: Mapping[tuple[str, ...], Mapping[str, Mapping[Any, tuple[int, int]]]],
    store_labels: list[str],
) -> Iterable[Metric]:
    """Return the metrics of queues.

    Args:
        stores: the queues of each store, by the values of its labels.
        store_labels: the names of these labels.
    """
    labels = [*store_labels, "topic", "queue"]
    ends = GaugeMetricFamily("rmqstore_queue_max_offset", "The queue's next offset.", labels=labels)
    depths = GaugeMetricFamily(
        "rmqstore_queue_messages", "Messages that the queue holds.", labels=labels
    )
    for store, queues in stores.items():
        for topic, by_id in queues.items():
            for queue_id, (first, end) in by_id.items():
                ends.add_metric([*store, topic, str(queue_id)], end)
                depths.add_metric([*store, topic, str(queue_id)], end - first)
    return ends, depths


def new_registry(stats: Stats) -> CollectorRegistry:
    """Return a registry with the store's figures and the memory, time and files of this process."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(StoreCollector(stats))
    return registry
