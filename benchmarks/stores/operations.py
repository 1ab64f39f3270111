"""What is measured, each in a process of its own (`benchmarks.means.child`)."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.stores.kind import Opening, OpenStore
from benchmarks.stores.kinds import KINDS
from benchmarks.stores.messages import Load

__all__ = ["append", "expire", "fill", "find", "leave", "read", "reopen"]

PULL: Final = 32
SCAN: Final = 10_000
BATCH: Final = 1_000
_SECONDS: Final = 0.5
_FINDS: Final = 300

Json = dict[str, Any]


def append(kind: str, opening: Json, load: Json, batch: int, seconds: float) -> dict[str, float]:
    """Append with all writers for a time, or until all messages are stored.

    Before that, a writer appends the first thousand messages, so that all queues have one.

    Returns:
        `rate`: messages a second until readers find them all. `median` and `p99`: seconds of an
        append.
    """
    messages = Load(**load)
    batches = iter(list(messages.batches(batch, first=BATCH)))
    gc.freeze()  # a collection would go through all messages
    store = KINDS[kind].open(Opening(**opening))
    writers = Opening(**opening).writers
    _begin(store, messages)
    counts, times = [0] * writers, [list[float]() for _ in range(writers)]
    ready = threading.Barrier(writers + 1)
    failed: list[BaseException] = []

    def write(writer: int) -> None:
        mine = times[writer]
        ready.wait()
        limit = begin = time.perf_counter()
        limit += seconds
        try:
            while begin < limit and (each := next(batches, None)) is not None:
                store.append(each, writer)
                counts[writer] += len(each)
                end = time.perf_counter()
                mine.append(end - begin)
                begin = end
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    store.settle()
    took = time.perf_counter() - begin
    store.close()
    if failed:
        raise SystemExit(f"an append failed: {failed[0]}")
    each_took = sorted(t for mine in times for t in mine)
    return {
        "rate": sum(counts) / took,
        "median": statistics.median(each_took),
        "p99": each_took[len(each_took) * 99 // 100],
    }


def fill(kind: str, opening: Json, load: Json) -> dict[str, float]:
    """Append all messages with one writer, and close the store.

    Returns:
        Seconds of the `first` thousand messages, and messages a second of the others as `rate`,
        without closing.
    """
    with _store(kind, opening) as store:
        return _filled(store, Load(**load))


def read(kind: str, opening: Json, load: Json) -> dict[str, float]:
    """Read queues from their middle to their end, for a time.

    Returns:
        Messages a second of `pulls`, and of `scans`.
    """
    with _with_messages(kind, opening, load) as store:
        expected = Load(**load)
        return {
            "pulls": _read(store, expected, PULL),
            "scans": _read(store, expected, SCAN),
        }


def find(kind: str, opening: Json, load: Json) -> float:
    """Find messages by their keys, one after the other; return the median in seconds."""
    messages = Load(**load)
    drawn = random.Random(2).sample(range(messages.count), _FINDS)  # noqa: S311
    times = []
    with _with_messages(kind, opening, load) as store:
        for number in drawn:
            key, body = messages.key(number), messages.body(number)
            begin = time.perf_counter()
            found = store.find(key)
            times.append(time.perf_counter() - begin)
            if found != [body]:
                raise SystemExit(f"{kind}: {key} has {len(found)} messages")
    return statistics.median(times)


def expire(kind: str, opening: Json, load: Json) -> float:
    """Remove the older half of the messages; return seconds."""
    messages = Load(**load)
    with _with_messages(kind, opening, load) as store:
        begin = time.perf_counter()
        store.expire(messages.stored(messages.count // 2))
        took = time.perf_counter() - begin
        last = messages.message(messages.count - 1)
        if store.find(last.key) != [last.body]:
            raise SystemExit(f"{kind}: a message that is not old has expired")
        return took


def leave(kind: str, opening: Json, load: Json, more: int) -> None:
    """Append messages, the last ones one by one, and print the number of each when it is there.

    The caller kills this process.

    Args:
        more: how many of the load are appended one by one.
    """
    messages = Load(**load)
    store = KINDS[kind].open(Opening(**opening))
    first = messages.count - more
    for number, batch in enumerate(messages.batches(BATCH)):
        if (number + 1) * BATCH <= first:
            store.append(batch, 0)
    for number in range(first // BATCH * BATCH, messages.count):
        store.append([messages.message(number)], 0)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    raise SystemExit("nobody has killed this process")


def reopen(kind: str, opening: Json, load: Json, first: int, acknowledged: int) -> Json:
    """Open a store that was left, and count what is not there of what was acknowledged.

    Args:
        first: number of the first message that was appended alone.
        acknowledged: number of the last message that was acknowledged.

    Returns:
        `seconds` until a message was found, and how many are `lost`.
    """
    messages = Load(**load)
    begin = time.perf_counter()
    with _store(kind, opening) as store:
        store.settle()
        store.find(messages.key(0))
        seconds = time.perf_counter() - begin
        numbers = [*range(0, first, 97), *range(first, acknowledged + 1)]
        lost = sum(store.find(messages.key(n)) != [messages.body(n)] for n in numbers)
    return {"seconds": seconds, "lost": lost, "checked": len(numbers)}


@contextmanager
def _store(kind: str, opening: Json) -> Iterator[OpenStore]:
    store = KINDS[kind].open(Opening(**opening))
    yield store
    store.close()


@contextmanager
def _with_messages(kind: str, opening: Json, load: Json) -> Iterator[OpenStore]:
    """Open a store that was filled; memory is filled now."""
    with _store(kind, opening) as store:
        if not KINDS[kind].keeps:
            _filled(store, Load(**load))
        yield store


def _begin(store: OpenStore, messages: Load) -> float:
    """Append the first thousand messages; return seconds."""
    batch = next(messages.batches(BATCH))
    begin = time.perf_counter()
    store.append(batch, 0)
    store.settle()
    return time.perf_counter() - begin


def _filled(store: OpenStore, messages: Load) -> dict[str, float]:
    batches = list(messages.batches(BATCH, first=BATCH))
    gc.freeze()
    first = _begin(store, messages)
    begin = time.perf_counter()
    for batch in batches:
        store.append(batch, 0)
    store.settle()
    rate = (messages.count - BATCH) / (time.perf_counter() - begin)
    return {"first": first, "rate": rate}


def _read(store: OpenStore, messages: Load, most: int) -> float:
    each = messages.count // messages.queues
    count, begin = 0, time.perf_counter()
    limit = begin + _SECONDS
    for queue in range(messages.queues):
        position = each // 2
        while position < each:
            bodies = store.read(queue, position, most)
            if not bodies:
                raise SystemExit(f"queue {queue} has nothing at {position}")
            if bodies[0] != messages.body(position * messages.queues + queue):
                raise SystemExit(f"queue {queue} has another message at {position}")
            position += len(bodies)
            count += len(bodies)
            if time.perf_counter() > limit:
                break
        if time.perf_counter() > limit:
            break
    return count / (time.perf_counter() - begin)
