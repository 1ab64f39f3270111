"""`rmqstore tail`: prints the newest messages, and follows new ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.choosing import Choice, read_options, read_ranges
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    Keys,
    QueueIds,
    SkipDamaged,
    StoreAt,
    Tags,
    Topics,
)
from rmqstore_spark.cli.shared.printing import MessageOutput, print_batches
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import StoreNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import QueueRange, ReadOptions
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

_LOOK_SECONDS: Final = 0.1
_TOPOLOGY_SECONDS: Final = 1.0
# Looking at thousands of queues takes time: at most this share of the total.
_LOOKING_SHARE: Final = 0.1


class Tail:
    """Reads the end of some queues, and then the messages that are dispatched to them.

    Queues that appear later are read from their first message. Every message that is dispatched
    after this object was created is new.

    Args:
        store: an open store; its topology is refreshed.
        choice: the queues to read.
        options: how to read. Without `fail_on_data_loss`, a reader that is slower than expiry
            continues after the gap.
    """

    def __init__(self, store: Store, choice: Choice, options: ReadOptions) -> None:
        self._store = store
        self._choice = choice
        self._options = options
        self._queues = choice.queues(store)
        self._next = {(q.topic, q.queue_id): q.max_offset for q in self._queues}

    def last(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the newest messages that existed at the start, `count` at most, oldest first."""
        reach = count
        counted = replace(self._options, columns=("physicalOffset",))
        while True:
            ranges = self._newest(reach)
            total = sum(map(len, read_ranges(self._store, ranges, counted)))
            is_all = all(r.start == q.min_offset for r, q in self._with_queues(ranges))
            if total >= count or is_all:
                break
            reach *= 4  # too few match the tags and keys, or count at all: look further back
        surplus = max(0, total - count)
        for batch in read_ranges(self._store, ranges, self._options):
            older = min(surplus, len(batch))
            surplus -= older
            yield batch.slice(older)

    def _with_queues(self, ranges: Sequence[QueueRange]) -> Iterator[tuple[QueueRange, Queue]]:
        return ((r, self._store.queue(r.topic, r.queue_id)) for r in ranges)

    def _newest(self, count: int) -> list[QueueRange]:
        """Return the ends of the queues that together hold the messages stored last."""
        import numpy as np

        from rmqstore_spark.reader.options import QueueRange
        from rmqstore_spark.reader.queue import read_entry_bytes

        ends = [self._next[q.topic, q.queue_id] for q in self._queues]
        starts = [max(q.min_offset, end - count) for q, end in zip(self._queues, ends, strict=True)]
        found = read_entry_bytes(list(zip(self._queues, starts, ends, strict=True)))
        decode = self._store.directory.queue_format.decode
        places = [decode(data)["physicalOffset"].astype(np.int64) for data in found]
        every = np.concatenate([np.zeros(0, np.int64), *places])
        if len(every) > count:
            oldest = np.partition(every, len(every) - count)[len(every) - count]
            starts = [
                end - int(np.count_nonzero(place >= oldest))
                for place, end in zip(places, ends, strict=True)
            ]
        return [
            QueueRange(q.topic, q.queue_id, start, end)
            for q, start, end in zip(self._queues, starts, ends, strict=True)
            if start < end
        ]

    def follow(self) -> Iterator[pa.RecordBatch]:
        """Yield messages that are dispatched after the start, as they come; this never ends."""
        pause = _TOPOLOGY_SECONDS
        looked = time.monotonic()
        while True:
            began = time.monotonic()
            if began - looked >= pause:
                self._look_for_queues()
                looked = time.monotonic()
                pause = max(_TOPOLOGY_SECONDS, (looked - began) / _LOOKING_SHARE)
            ranges = self._news()
            spent = time.monotonic() - began
            if ranges:
                yield from read_ranges(self._store, ranges, self._options)
            else:
                time.sleep(max(_LOOK_SECONDS, spent / _LOOKING_SHARE))

    def _look_for_queues(self) -> None:
        try:
            self._store.refresh()
        except FileNotFoundError as error:
            raise StoreNotFoundError(
                f"{self._store.path} no longer exists: it was removed while `rmqstore tail` "
                "followed it."
            ) from error
        there = set()
        self._queues = []
        for queue in self._choice.queues(self._store, missing_ok=True):
            key = (queue.topic, queue.queue_id)
            there.add(key)
            self._queues.append(queue)
            self._next.setdefault(key, queue.min_offset)
        for gone in self._next.keys() - there:
            del self._next[gone]  # if it comes back, it is another queue

    def _news(self) -> list[QueueRange]:
        from rmqstore_spark.reader.options import QueueRange

        found = []
        self._store.refresh_queues(self._queues)
        for queue in self._queues:
            key = (queue.topic, queue.queue_id)
            start, end = self._next[key], queue.max_offset
            if end < start:
                say(
                    f"{queue.topic}/{queue.queue_id} was cut: it ended at {start}, and now ends "
                    f"at {end}."
                )
            elif end > start:
                found.append(QueueRange(*key, start, end))
            self._next[key] = end
        return found


_Follow = typer.Option(
    "--follow", "-f", help="Keep printing new messages, also of new queues, until Ctrl-C."
)
_Limit = typer.Option(
    "--limit", "-n", min=0, metavar="N", help="Number of newest messages to print first."
)


def tail(
    follow: Annotated[bool, _Follow] = False,
    limit: Annotated[int, _Limit] = 10,
    topics: Topics = None,
    queue_ids: QueueIds = None,
    tags: Tags = None,
    keys: Keys = None,
    *,
    output: MessageOutput,
    everything: AllTopics = False,
    skip_damaged: SkipDamaged = False,
    where: StoreAt,
) -> None:
    """Print the newest messages, and follow new ones with -f."""
    printer = output.printer(single_topic=len(topics or ()) == 1)
    options = read_options(
        printer, tags=tags, keys=keys, skip_damaged=skip_damaged, skip_expired=True
    )
    with where.open() as store:
        store.require_queues("tail", "Read its messages with `rmqstore read`")
        follower = Tail(store, Choice(topics, queue_ids, everything), options)
        if limit:
            print_batches(printer, follower.last(limit), None)
        if follow:
            print_batches(printer, follower.follow(), None)
