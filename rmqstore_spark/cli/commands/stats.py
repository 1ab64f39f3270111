"""`rmqstore stats`: shows the figures of a store process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from rmqstore_spark.base.printable import duration, escaped
from rmqstore_spark.cli.shared.parameters import AsJson, EndpointOf, connect
from rmqstore_spark.cli.shared.tables import QUEUE_COLUMNS, json_text, print_facts, print_table

_READ_ONLY: Final = "READ_ONLY"


def stats(
    endpoint: EndpointOf,
    queues: Annotated[bool, typer.Option("--queues", help="Print a line for each queue.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a store process."""
    with connect(endpoint) as client:
        figures = client.stats()
    if as_json:
        typer.echo(json_text(figures, indent=2))
    elif queues:
        print_table(QUEUE_COLUMNS, _queue_rows(figures["queues"]))
    else:
        print_facts(_facts(endpoint, figures))


def _facts(endpoint: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    begin, end = figures["commitLogMinOffset"], figures["commitLogMaxOffset"]
    lengths = [last - first for ids in figures["queues"].values() for first, last in ids.values()]
    counted = f"{len(lengths)} in {len(figures['queues'])} topic(s), {sum(lengths)} messages"
    yield "endpoint", endpoint
    yield "state", figures["state"]
    yield "uptime", duration(figures["uptimeSeconds"])
    if figures["state"] == _READ_ONLY:
        yield "log", f"{begin} to {end}"
        yield "queues", counted
        yield "read", f"{figures['readBytes']} bytes"
        return
    behind = end - figures["commitLogFlushedOffset"]
    yield "log", f"{begin} to {end}, {behind} bytes not flushed yet"
    if "replicationState" in figures:
        yield "replication", _replication(figures)
    if "groupRole" in figures:
        yield "group", _group(figures)
    if "slaves" in figures:
        yield "slaves", f"{figures['slaves']}, {figures['slaveLagBytes']} bytes behind at most"
    yield "dispatch", f"{figures['dispatchBehindBytes']} bytes behind"
    yield "queues", counted
    yield "put", f"{figures['putMessages']} messages, {figures['putBytes']} bytes"
    yield "put failures", _failures(figures["putFailures"])
    yield "put latency", _latency(figures["putLatency"])
    yield "flush latency", _latency(figures["flushLatency"])
    yield "commit latency", _latency(figures["commitLatency"])
    yield "staged", f"{figures['stagedBytes']} bytes in {figures['stages']} stages"
    yield "stage failures", _failures(figures["stageFailures"])
    yield "commits", str(figures["commits"])
    yield "commit failures", _failures(figures["commitFailures"])
    yield "expired", f"{figures['expiredSegments']} segments, {figures['expiredBytes']} bytes"
    yield "archived", f"{figures['archivedSegments']} segments, {figures['archivedBytes']} bytes"
    if figures["expiryRemark"]:
        yield "expiry", figures["expiryRemark"]
    done, skipped = figures["delayedDelivered"], figures["delayedSkipped"]
    yield "delayed", f"{done} delivered, {skipped} skipped"
    yield "transactions", _transactions(figures)
    yield "disk", f"{figures['diskUsedRatio']:.1%} used"
    yield "clock", f"{figures['clockBehindSeconds']:.1f} s behind the last storeTimestamp"


def _transactions(figures: Mapping[str, Any]) -> str:
    counted = (
        ("committed", "transactionsCommitted"),
        ("rolled back", "transactionsRolledBack"),
        ("given up", "transactionsGivenUp"),
        ("waiting", "transactionsWaiting"),
    )
    return ", ".join(f"{figures[key]} {word}" for word, key in counted)


def _replication(figures: Mapping[str, Any]) -> str:
    if figures["replicationComplete"]:
        return f"{figures['replicationState']}, nothing missing"
    seconds, missing = figures["replicationLagSeconds"], figures["replicationLagBytes"]
    parts = [] if seconds is None else [f"{seconds:.1f} s"]
    parts += [] if missing is None else [f"{missing} bytes"]
    behind = f"about {' and '.join(parts)} behind" if parts else "it is not known how far behind"
    error = escaped(figures["replicationError"])
    why = f": {error}" if error and figures["replicationState"] != "FOLLOWING" else ""
    return f"{figures['replicationState']}, {behind} its master{why}"


def _group(figures: Mapping[str, Any]) -> str:
    role, leader = figures["groupRole"].lower(), figures["groupLeader"]
    whose = f" of {escaped(leader)}" if leader and role == "follower" else ""
    entries = f"entries to {figures['groupLastIndex']}, committed to {figures['groupCommitIndex']}"
    lag = [
        f"{escaped(peer)} {'an unknown number' if lacks is None else lacks} behind"
        for peer, lacks in figures["groupLagEntries"].items()
    ]
    won = f"elections won: {figures['groupElections']}"
    begun = [] if figures["groupIsVoter"] else ["may not vote yet"]
    begun += [] if figures["groupKnowsQueueEnds"] else ["may not lead yet"]
    term = f"{role}{whose} in term {figures['groupTerm']}"
    return "; ".join([term, *begun, entries, *lag, won, figures["groupProtection"]])


def _failures(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "-"


def _latency(histogram: Mapping[str, Any]) -> str:
    """Return the mean, and the bounds of the buckets with the median and the slowest hundredth."""
    count = histogram["count"]
    if not count:
        return "-"
    mean = histogram["sum"] / count
    middle, slow = (_bound(histogram["buckets"], count * part) for part in (0.5, 0.99))
    return f"mean {mean * 1000:.2f} ms, half {middle}, 99 % {slow}"


def _bound(buckets: Sequence[tuple[float | str, int]], rank: float) -> str:
    bounds = [(float(bound), reached) for bound, reached in buckets]
    upper = next((bound for bound, reached in bounds if reached >= rank), float("inf"))
    if upper == float("inf"):
        return f"over {bounds[-2][0] * 1000:g} ms" if len(bounds) > 1 else "-"
    return f"within {upper * 1000:g} ms"


def _queue_rows(queues: Mapping[str, Mapping[str, Sequence[int]]]) -> Iterator[Sequence[str]]:
    for topic, ids in sorted(queues.items()):
        for queue_id, (first, last) in sorted(ids.items(), key=lambda item: int(item[0])):
            yield topic, queue_id, str(first), str(last), str(last - first)
