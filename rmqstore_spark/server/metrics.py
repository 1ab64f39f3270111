"""The metrics of a store process for Prometheus (docs/operate.md, "Monitor").

Nothing is counted here. Each scrape calls the store's `stats()`, and shows the figures under
Prometheus' names and units (seconds, bytes, ratios).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

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
from rmqstore_spark.base.printable import in_words
from rmqstore_spark.consensus.actions import MemberRole
from rmqstore_spark.engine.status import STATES
from rmqstore_spark.ha.follower_progress import STATES as REPLICATION_STATES

Stats = Callable[[], Mapping[str, Any]]
"""Returns the store's figures, named as in `StoreWriter.stats`."""


# fmt: off
_COUNTERS: Final = {
    "putMessages": "Messages put or committed.",
    "putBytes": "Bytes of these messages.",
    "commits": "Staged batches of Spark that were committed.",
    "readBytes": "Bytes that a read-only process was asked to read from its stores.",
    "replicationReceivedBytes": "Bytes of the master's log that were received and stored.",
    "replicationConnects": "Connections made to the master.",
    "expiredSegments": "Segments that were deleted.",
    "expiredBytes": "Bytes of these segments.",
    "delayedDelivered": "Delayed messages delivered.",
    "delayedSkipped": "Delayed messages that could not be delivered.",
    "transactionsCommitted": "Transactions committed.",
    "transactionsRolledBack": "Transactions rolled back.",
    "transactionsGivenUp":
        "Transactions whose outcome nobody told, moved to TRANS_CHECK_MAX_TIME_TOPIC.",
    "groupElections": "Elections of the DLedger group that this member has won.",
    "archivedSegments": "Segments copied to the archive.",
    "archivedBytes": "Bytes of these segments.",
    "expiryFailures": "Rounds of expiry that failed, as when the archive cannot be written.",
}
_BY_STATUS: Final = {
    "putFailures": "Puts that were not answered PUT_OK.",
    "stageFailures": "Blocks for Spark that were not staged.",
    "commitFailures": "Commits of Spark that were refused.",
    "callFailures": "Calls that were refused or failed outside the store.",
}
_GAUGES: Final = {
    "connections": "Connections of clients.",
    "calls": "Calls of clients in progress.",
    "receivedBytes": "Bytes of messages that were received and not handled yet.",
    "commitLogMinOffset": "First physical offset of the CommitLog.",
    "commitLogMaxOffset": "Physical offset at which the CommitLog ends.",
    "commitLogFlushedOffset": "Physical offset up to which the CommitLog is on disk.",
    "transactionsWaiting": "Half messages that wait.",
    "dispatchBehindBytes":
        "Bytes of the CommitLog that are not dispatched to queues and index yet.",
    "stagedBytes": "Bytes staged and not yet committed.",
    "stagedMemoryBytes": "Bytes of memory that stages take.",
    "stages": "Stages that are neither committed nor aborted.",
    "diskUsedRatio": "Used part of the store's disk, 0 to 1.",
    "clockBehindSeconds": "How far the clock is behind the last storeTimestamp.",
    "replicationComplete": "1 while nothing of the master's log is missing, else 0.",
    "replicationLagBytes":
        "Bytes of the master's log that are missing, or an estimate; absent while unknown.",
    "replicationLagSeconds": "How long ago the store had all that its master has.",
    "slaves": "Slaves that are connected.",
    "slaveLagBytes":
        "Bytes of the log that were not sent yet to the slave that is furthest behind.",
    "groupTerm": "The term of the DLedger group that this member knows.",
    "groupHasLeader":
        "1 while this member of a DLedger group knows who leads, itself included, else 0.",
    "groupIsVoter":
        "1 if this member may vote, so that the group can lose another one; 0 while a member that "
        "began without files has not heard the others.",
    "groupKnowsQueueEnds":
        "1 if this member may lead; 0 while one that began without files does not know where "
        "queues end whose messages have expired.",
    "groupCommitIndex": "Index of the last entry of the group's log that is known to be committed.",
    "groupLastIndex": "Index of the last entry of the group's log that this member has.",
    "uptimeSeconds": "Seconds since the store was opened.",
}
_HISTOGRAMS: Final = {
    "putLatency": "From a put's arrival to its result.",
    "commitLatency": "From a commit's arrival to its batch being on disk.",
    "flushLatency": "Time of a flush of the CommitLog.",
}
"""Figures of `stats()`, and their help texts; `_name` makes their names of Prometheus."""
# fmt: on

_GROUP_ROLES: Final = tuple(role.name for role in MemberRole)

_OF_A_STORE: Final = ("commitLogMinOffset", "commitLogMaxOffset")
"""The gauges of each store that is served read-only."""


def _group_lag(lag: Mapping[str, int | None]) -> Iterable[Metric]:
    """Yield how far behind a leader the other members of its group are, if there are any."""
    if lag:
        family = GaugeMetricFamily(
            "rmqstore_group_lag_entries",
            "Entries that a member lacks of its leader's log; absent while unknown.",
            labels=["member"],
        )
        known = GaugeMetricFamily(
            "rmqstore_group_lag_known",
            "Whether that is known: 0 if the member has not answered this leader.",
            labels=["member"],
        )
        for member, entries in lag.items():
            known.add_metric([member], entries is not None)
            if entries is not None:
                family.add_metric([member], entries)
        yield family
        yield known


def _name(key: str) -> str:
    """Return the name of a figure: `rmqstore_put_messages` for `putMessages`."""
    words = in_words(key).replace(" ", "_").replace("commit_log", "commitlog")
    return f"rmqstore_{words}"


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
        for key, doc in _COUNTERS.items():
            if key in stats:
                yield CounterMetricFamily(_name(key), doc, value=stats[key])
        for key, doc in _BY_STATUS.items():
            if key in stats:
                yield _by_status(_name(key), doc, stats[key])
        for key, doc in _GAUGES.items():
            if stats.get(key) is not None:  # None: not known yet
                yield GaugeMetricFamily(_name(key), doc, value=stats[key])
        for key, doc in _HISTOGRAMS.items():
            if key in stats:
                yield _histogram(f"{_name(key)}_seconds", doc, stats[key])
        for key, doc, states in (
            ("state", "1 for the state that the store is in, else 0.", STATES),
            (
                "replicationState",
                "1 for the state that the follower of a master is in, else 0.",
                REPLICATION_STATES,
            ),
            ("groupRole", "1 for the member's role in its DLedger group, else 0.", _GROUP_ROLES),
        ):
            if key in stats:
                yield _state(_name(key), doc, str(stats[key]), states)
        yield from _group_lag(stats.get("groupLagEntries", {}))
        if "stores" in stats:
            yield from _stores(stats["stores"])
        else:
            yield from _queues({(): stats.get("queues", {})}, [])


def _by_status(name: str, doc: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, doc, labels=["status"])
    for status, count in counts.items():
        family.add_metric([status], count)
    return family


def _state(name: str, doc: str, now: str, states: Iterable[str]) -> Metric:
    """Return a gauge with every state: an alert that compares one of them needs it to exist."""
    family = GaugeMetricFamily(name, doc, labels=["state"])
    for state in dict.fromkeys((*states, now)):
        family.add_metric([state], int(state == now))
    return family


def _histogram(name: str, doc: str, latency: Mapping[str, Any]) -> Metric:
    """Return a histogram.

    `buckets` holds pairs of an upper bound in seconds and the count up to it; the last bound is
    +Inf.
    """
    buckets = [(_bound(bound), count) for bound, count in latency["buckets"]]
    return HistogramMetricFamily(name, doc, buckets=buckets, sum_value=latency["sum"])


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
    for key in _OF_A_STORE:
        family = GaugeMetricFamily(_name(key), _GAUGES[key], labels=["store"])
        for name, stats in stores.items():
            if key in stats:
                family.add_metric([name], stats[key])
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
