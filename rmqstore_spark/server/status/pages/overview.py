"""The overview of a store: its state, what it does, its role, its disk, what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.base.printable import duration, size
from rmqstore_spark.server.status import plots
from rmqstore_spark.server.status.markup import Content, Markup, element
from rmqstore_spark.server.status.pages.frame import (
    NOT_KNOWN,
    Frame,
    Head,
    card,
    cards,
    count,
    counted,
    facts,
    known_rate,
    plotted,
    section,
    table,
)
from rmqstore_spark.server.status.pages.log import problem_table
from rmqstore_spark.server.status.pages.topics import topic_table
from rmqstore_spark.server.status.problems import LoggedLine
from rmqstore_spark.server.status.views import TopicLine, failures

_WELL: Final = ("RUNNING", "READ_ONLY", "SLAVE")
MOST_PROBLEMS: Final = 5
MOST_TOPICS: Final = 10


@dataclass(frozen=True)
class Series:
    """How many there were a second, in the last minutes.

    Attributes:
        messages: that came into queues.
        log: bytes that the log grew.
        commits: of Spark.
        read: bytes that were read, of a store that is served read-only.
        seconds: how long that is.
    """

    messages: Sequence[float]
    log: Sequence[float]
    commits: Sequence[float]
    read: Sequence[float]
    seconds: float


@dataclass(frozen=True)
class Settings:
    """What the configuration of a written store says that the overview shows.

    Attributes:
        role: the role of now.
        master: whom it follows; empty if nobody.
        kept_hours: how long messages are kept; 0 for ever.
        archive: where they go then; empty if nowhere.
    """

    role: str
    master: str
    kept_hours: int
    archive: str


def overview(
    frame: Frame,
    stats: Mapping[str, Any],
    process: Mapping[str, Any],
    settings: Settings | None,
    series: Series,
    topics: Sequence[TopicLine],
    problems: Sequence[LoggedLine] | None,
) -> bytes:
    """Return the page.

    Args:
        frame: around it.
        stats: the figures of the store.
        process: those of the connections of all stores of the process.
        settings: None for a store that is served read-only.
        series: its past.
        topics: all topics.
        problems: the last lines of the log; None for a reader who may not see them.
    """
    state = str(stats["state"])
    if "queues" not in stats:
        return frame.document("Overview", _state(state), element("p", stats.get("failure", "")))
    busiest = sorted(topics, key=lambda line: (-(line.rate or 0.0), line.name))[:MOST_TOPICS]
    return frame.document(
        "Overview",
        _state(state),
        _figures(stats, settings, series, topics),
        section("Busiest topics", topic_table(frame, busiest), frame.link("All topics", "topics")),
        _replication(stats, settings) if settings is not None else None,
        _disk(stats, settings) if settings is not None else None,
        section("Work", facts(_work(stats, process))),
        section("Failures", _failures({**stats, **process})),
        section("Last warnings and errors", problem_table(problems), frame.link("Log", "log"))
        if problems is not None
        else None,
    )


def _state(state: str) -> Markup:
    return element("p", state, class_="state well" if state in _WELL else "state bad")


def _figures(
    stats: Mapping[str, Any],
    settings: Settings | None,
    series: Series,
    topics: Sequence[TopicLine],
) -> Markup:
    kept = sum(topic.messages for topic in topics)
    queues = sum(topic.queues for topic in topics)
    places = f"messages in {counted(queues, 'queue')} of {counted(len(topics), 'topic')}"
    begin, end = stats["commitLogMinOffset"], stats["commitLogMaxOffset"]
    shown = [
        plotted("Messages", known_rate, series.messages, series.seconds),
        plotted("Growth of the log", _bytes_a_second, series.log, series.seconds),
        plotted("Commits of Spark", known_rate, series.commits, series.seconds)
        if settings is not None
        else plotted("Read", _bytes_a_second, series.read, series.seconds),
        card("In the store", count(kept), element("p", places)),
        card("Log", size(end - begin), element("p", f"from {begin:,} to {end:,}")),
    ]  # fmt: skip
    if "diskUsedRatio" in stats:
        used = stats["diskUsedRatio"]
        shown.append(card("Disk", f"{used:.1%}", plots.share(used, f"{used:.1%} used")))
    return cards(*shown)


def _bytes_a_second(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{size(value)}/s"


def _replication(stats: Mapping[str, Any], settings: Settings) -> Markup:
    told: dict[str, Content] = {"Role": settings.role}
    if settings.master:
        told["Master"] = settings.master
    if "replicationState" in stats:
        seconds, missing = stats["replicationLagSeconds"], stats["replicationLagBytes"]
        told["Following"] = stats["replicationState"]
        told["Behind"] = (
            "nothing is missing"
            if stats["replicationComplete"]
            else f"{NOT_KNOWN if missing is None else size(missing)}, "
            f"{NOT_KNOWN if seconds is None else duration(seconds)}"
        )
        if stats.get("replicationError"):
            told["Last error"] = stats["replicationError"]
    if "slaves" in stats:
        told["Slaves"] = count(stats["slaves"])
        told["Slowest slave"] = f"{size(stats['slaveLagBytes'])} behind"
    return section("Replication", facts(told))


def _disk(stats: Mapping[str, Any], settings: Settings) -> Markup:
    kept = f"{settings.kept_hours} h" if settings.kept_hours else "for ever"
    told: dict[str, Content] = {
        "Kept": kept,
        "Expired": f"{stats['expiredSegments']:,} segments, {size(stats['expiredBytes'])}",
    }
    if settings.archive:
        told["Archived"] = f"{stats['archivedSegments']:,} segments, {size(stats['archivedBytes'])}"
    if stats["expiryFailures"]:
        told["Failed rounds"] = count(stats["expiryFailures"])
    if stats["expiryRemark"]:
        told["Waits"] = stats["expiryRemark"]
    return section("Disk and expiry", facts(told))


def _work(stats: Mapping[str, Any], process: Mapping[str, Any]) -> dict[str, Content]:
    told: dict[str, Content] = {
        "Up for": duration(stats["uptimeSeconds"]),
        "Connections": count(process.get("connections", 0)),
        "Calls in progress": count(process.get("calls", 0)),
    }
    if "stages" in stats:
        told["Staged by Spark"] = f"{size(stats['stagedBytes'])} in {stats['stages']:,} stages"
        told["Delayed messages"] = (
            f"{stats['delayedDelivered']:,} delivered, {stats['delayedSkipped']:,} skipped"
        )
        told["Transactions"] = (
            f"{stats['transactionsWaiting']:,} waiting, {stats['transactionsCommitted']:,} "
            f"committed, {stats['transactionsRolledBack']:,} rolled back, "
            f"{stats['transactionsGivenUp']:,} given up"
        )
        told["Not in queues yet"] = size(stats["dispatchBehindBytes"])
        told["Not on disk yet"] = size(
            stats["commitLogMaxOffset"] - stats["commitLogFlushedOffset"]
        )
        told["Clock"] = f"{stats['clockBehindSeconds']:.1f} s behind the last storeTimestamp"
    return told


def _failures(stats: Mapping[str, Any]) -> Markup:
    rows = [(what, status, count(number)) for what, status, number in failures(stats)]
    heads = (Head("What"), Head("Status"), Head("Times", is_number=True))
    return table(heads, rows, "Failures since the start")
