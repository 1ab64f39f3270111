"""`rmqstore top`: watches a store process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqstore_spark.base.printable import duration, escaped, rate, size
from rmqstore_spark.cli.shared.parameters import EndpointOf, connect, given_credentials

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rmqstore_spark.server.status.history import History, Queues
    from rmqstore_spark.server.status.views import GroupLine, TopicLine

_MOST_GROUPS: Final = 10
_HEADS: Final = 7
"""Lines of a picture beside those of topics and groups."""
_LEAST_TOPICS: Final = 3
_RECENT: Final = 5.5
"""Intervals over which the rate of a topic is taken."""
_WIDE: Final = 10_000
"""Columns where nothing needs to be cut, because nobody looks at a screen."""

_Interval = typer.Option(
    "--interval", min=0.1, max=3600.0, metavar="SECONDS", help="Time between two pictures."
)
_Count = typer.Option("--count", min=1, metavar="N", help="End after N pictures.")


def top(
    endpoint: EndpointOf,
    interval: Annotated[float, _Interval] = 2.0,
    count: Annotated[int | None, _Count] = None,
) -> None:
    """Watch a store process: rates, lag, commits.

    It shows the busiest topics and the groups with the largest lag until Ctrl-C. Rates of topics
    are those of the last five intervals.
    """
    from rich.console import Console
    from rich.live import Live

    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else _WIDE
    console = Console(markup=False, highlight=False, emoji=False, width=width)
    pictures = _pictures(endpoint, interval, count, console.height)
    if not is_terminal:
        for picture in pictures:
            console.print(picture)
        return
    with Live(console=console, screen=count is None, auto_refresh=False) as live:
        for picture in pictures:
            live.update(picture, refresh=True)


def _pictures(
    endpoint: str, interval: float, count: int | None, height: int
) -> Iterator[RenderableType]:
    """Yield what there is to see, at intervals."""
    from rmqstore_spark.reader.store import Store
    from rmqstore_spark.server.status.history import History

    past = History(_RECENT * interval)
    credentials = given_credentials().options()
    with connect(endpoint) as client, Store.open(endpoint, storage_options=credentials) as store:
        number = 0
        while count is None or number < count:
            if number:
                time.sleep(interval)
            number += 1
            stats = client.stats()
            past.add(time.monotonic(), stats)
            groups = _groups(store, stats["queues"])
            yield _picture(endpoint, stats, past, groups, height)


def _groups(store: Any, queues: Queues) -> list[GroupLine]:
    from rmqstore_spark.server.status.views import group_lines, progress_lines

    lines = group_lines(progress_lines(store, queues), {})
    return sorted(lines, key=lambda line: -line.lag)[:_MOST_GROUPS]


def _picture(
    endpoint: str,
    stats: Mapping[str, Any],
    past: History,
    groups: Sequence[GroupLine],
    height: int,
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from rmqstore_spark.server.status.views import topic_lines

    topics = topic_lines(stats["queues"], past.rates())
    topics.sort(key=lambda line: (-(line.rate or 0.0), line.name))
    room = max(_LEAST_TOPICS, height - _HEADS - len(groups) - 1)
    head = f"{endpoint}  {stats['state']}  up {duration(stats['uptimeSeconds'])}"
    return Group(
        Text(head, style="bold"),
        Text("  ".join(_figures(stats, past))),
        Text(""),
        _topic_table(topics[:room]),
        Text(""),
        _group_table(groups),
        Text(""),
    )


def _figures(stats: Mapping[str, Any], past: History) -> Iterator[str]:
    messages, log = past.messages()[-1:], past.total("commitLogMaxOffset")[-1:]
    yield f"messages {rate(messages[0]) if messages else '-'}"
    yield f"log {size(log[0]) + '/s' if log else '-'}"
    if "commits" in stats:
        commits = past.total("commits")[-1:]
        yield f"commits {rate(commits[0]) if commits else '-'}"
        yield f"disk {stats['diskUsedRatio'] * 100:.1f} %"
    if "replicationState" in stats:
        yield f"replication {stats['replicationState']}"
    if "slaves" in stats:
        yield f"slaves {stats['slaves']}, {size(stats['slaveLagBytes'])} behind"


def _topic_table(lines: Sequence[TopicLine]) -> RenderableType:
    table = _table("topic", "queues", "messages", "rate", numbers=3)
    for line in lines:
        shown = "-" if line.rate is None else rate(line.rate)
        table.add_row(escaped(line.name), f"{line.queues:,}", f"{line.messages:,}", shown)
    return table


def _group_table(lines: Sequence[GroupLine]) -> RenderableType:
    table = _table("group", "topics", "lag", numbers=1)
    for line in lines:
        table.add_row(escaped(line.name), escaped(", ".join(line.topics)), f"{line.lag:,}")
    return table


def _table(*heads: str, numbers: int) -> Any:
    """Return an empty table; its last columns are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, head in enumerate(heads):
        is_number = place >= len(heads) - numbers
        table.add_column(head, justify="right" if is_number else "left", no_wrap=True)
    return table
