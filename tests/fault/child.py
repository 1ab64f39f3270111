"""The process that is killed: it writes a store, and says what it does as it does it.

    python -m tests.fault.child STORE NEXT_NUMBER SEED [key=value ...] [--replay FIRST COUNT]

Lines of its output: `ready`, then for each operation `begin KIND FIRST COUNT` and, once it is
acknowledged, `done KIND FIRST`; `durable FIRST` once the store says that the log is on disk behind
that operation, for which it waits now and then. What is refused ends it with exit code 3 and the
reason, after one more put, which says `resumed` if it is taken.
`--mutant NAME` breaks a promise on purpose: the tests must notice.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RefusedError, RmqStoreError, StoreWriteError
from rmqstore_spark.types import CommitRequest, WriterId
from tests.fault.messages import TOPICS, block
from tests.support.waiting import eventually

__all__ = ["MUTANTS", "replace"]

_FAR = 1_000_000
"""More than the messages of one life."""

_KILLED_AT = os.environ.get("RMQSTORE_FAILPOINT", "")

_PATIENT = 0.05
"""How often it waits until all is on disk."""


_UNIT = 7
"""Messages of a unit: every other put is one of batches that must not span two segments."""


def _acknowledge_before_the_flush() -> None:
    _break("rmqstore_spark.engine.log.flush", "FlushService.wait", True)


def _skip_the_folders_fsync() -> None:
    _break("rmqstore_spark.engine.log.open_segments", "sync_folder", None)


def _flush_nothing() -> None:
    _break("os", "fdatasync", None)


def _publish_before_the_flush() -> None:
    write, publish = BatchBlock.write, BatchBlock.publish

    def write_and_publish(block: BatchBlock) -> None:
        write(block)
        publish(block)

    module = "rmqstore_spark.engine.batches.batch_block"
    replace(module, "BatchBlock.write", write_and_publish)
    replace(module, "BatchBlock.publish", lambda _block: None)


def _break(module: str, name: str, answer: object) -> None:
    replace(module, name, lambda *_: answer)


def replace(module: str, name: str, function: Callable[..., object]) -> None:
    """Break the store: put another function in the place of one."""
    *path, last = name.split(".")
    holder: Any = importlib.import_module(module)
    for part in path:
        holder = getattr(holder, part)
    assert hasattr(holder, last)
    setattr(holder, last, function)


MUTANTS: dict[str, Callable[[], None]] = {
    "acknowledge-before-flush": _acknowledge_before_the_flush,
    "skip-folder-fsync": _skip_the_folders_fsync,
    "no-fdatasync": _flush_nothing,
    "publish-before-flush": _publish_before_the_flush,
}


def main() -> int:
    """Write until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("next", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--replay", type=int, nargs=2)
    parser.add_argument("--operations", type=int, default=1 << 30)
    parser.add_argument("--commits", type=float, default=0.3, help="share of the operations")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    given = parser.parse_args()
    if given.mutant:
        MUTANTS[given.mutant]()
    config = StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in given.settings))
    with StoreWriter.open(given.store, config) as store:
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        _say("ready")
        try:
            _operate(store, given)
        except (RefusedError, StoreWriteError) as error:
            _say(f"refused {error}")
            number = given.next + _FAR
            _say(f"begin put {number} 1")
            if store.put(block(number, 1)).ok:
                _say("resumed")
            return 3
    _say("closed")
    return 0


def _operate(store: StoreWriter, given: argparse.Namespace) -> None:
    drawn = random.Random(given.seed)
    number = given.next
    ends: deque[tuple[int, int]] = deque()
    if given.replay:
        _commit(store, *given.replay)
    for _ in range(given.operations):
        count = drawn.choice((1, 7, 60, 400))
        write = _commit if drawn.random() < given.commits else _put
        write(store, number, count)
        ends.append((number, store.published_end))
        if _KILLED_AT.startswith("consumerOffset."):
            _commit_offsets(store)
        if drawn.random() < _PATIENT:
            eventually(lambda: _flushed(store) >= ends[-1][1])
        _say_durable(ends, _flushed(store))
        number += count


def _commit_offsets(store: StoreWriter) -> None:
    """Let a group have consumed all of the first topic."""
    queues = store.stats()["queues"].get(TOPICS[0], {})
    ends = {int(queue_id): end for queue_id, (_, end) in queues.items()}
    store.commit_offsets("fault-test", {TOPICS[0]: ends})


def _flushed(store: StoreWriter) -> int:
    return int(store.stats()["commitLogFlushedOffset"])


def _say_durable(ends: deque[tuple[int, int]], flushed: int) -> None:
    """Say which operation is the last whose end is on disk, and forget those up to it."""
    durable = None
    while ends and ends[0][1] <= flushed:
        durable, _ = ends.popleft()
    if durable is not None:
        _say(f"durable {durable}")


def _put(store: StoreWriter, first: int, count: int) -> None:
    _say(f"begin put {first} {count}")
    units = [min(_UNIT, first + count - at) for at in range(first, first + count, _UNIT)]
    result = store.put(block(first, count), units=units if first % 2 else None)
    if not result.ok:
        raise StoreWriteError(f"{result.status.value} {result.remark}")
    _say(f"done put {first}")


def _commit(store: StoreWriter, first: int, count: int) -> None:
    """A batch of two tasks, numbered by its first message."""
    _say(f"begin commit {first} {count}")
    half = count // 2
    stages = []
    for at, rows in ((first, half), (first + half, count - half)):
        stage = store.begin_stage(uuid.uuid4().hex)
        if rows:
            stage.append(block(at, rows))
        stages.append(stage.finish())
    store.commit(CommitRequest(WriterId.of_stream("fault-test", first), tuple(stages)))
    _say(f"done commit {first}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RmqStoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
