"""The writer that is killed: it puts messages and commits batches; see `process`.

Lines of its output: `ready`, then for each operation `begin KIND FIRST COUNT` and, once it is
acknowledged, `done KIND FIRST`; `durable FIRST` once the store says that the log is on disk behind
that operation, for which it waits now and then. What is refused ends it with exit code 3 and the
reason, after one more put, which says `resumed` if it is taken.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RefusedError, RmqStoreError, StoreWriteError
from tests.fault.messages import TOPICS, block
from tests.fault.operations import Operations
from tests.fault.process import Told, replace, say, work
from tests.support.waiting import eventually

_FAR: Final = 1_000_000
"""More than the messages of one life."""
_KILLED_AT: Final = os.environ.get("RMQSTORE_FAILPOINT", "")
_PATIENT: Final = 0.05
"""How often it waits until all is on disk."""
_WITH_ROOM: Final = 0.5
"""How often its batches leave room before them."""


def _without(module: str, name: str, answer: object = None) -> Callable[[], None]:
    """A mutant in which a function does nothing."""
    return partial(replace, module, name, lambda *_: answer)


MUTANTS: Final[dict[str, Callable[[], None]]] = {
    "acknowledge-before-flush": _without(
        "rmqstore_spark.engine.log.flush", "FlushService.wait", True
    ),
    "skip-folder-fsync": _without("rmqstore_spark.engine.log.open_segments", "sync_folder"),
    "no-fdatasync": _without("os", "fdatasync"),
    "publish-before-flush": _without(
        "rmqstore_spark.engine.batches.batch_block", "BatchBlock.flush"
    ),
}


def _operate(store: StoreWriter, told: Told) -> int:
    if told.drawn.random() < _WITH_ROOM:  # as batches that others need not wait for
        for name, value in (("_LARGE", 0), ("_ROOM_PART", 1)):
            replace("rmqstore_spark.engine.batches.writing", name, value)
    for topic in TOPICS:
        store.create_topic(topic, write_queue_nums=4)
    say("ready")
    try:
        _write(store, told)
    except (RefusedError, StoreWriteError) as error:
        say("refused", error)
        number = told.number + _FAR
        say("begin put", number, 1)
        if store.put(block(number, 1)).ok:
            say("resumed")
        return 3
    return 0


def _write(store: StoreWriter, told: Told) -> None:
    operations = Operations(store, say)
    number, ends = told.number, deque[tuple[int, int]]()
    if told.replay:
        operations.commit(*told.replay)
    for _ in range(told.operations):
        count = told.drawn.choice((1, 7, 60, 400))
        is_commit = told.drawn.random() < told.commits
        (operations.commit if is_commit else operations.put)(number, count)
        ends.append((number, store.published_end))
        if _KILLED_AT.startswith("consumerOffset."):
            _commit_offsets(store)
        if told.drawn.random() < _PATIENT:
            eventually(lambda: operations.flushed >= ends[-1][1])
        flushed, durable = operations.flushed, None
        while ends and ends[0][1] <= flushed:
            durable, _ = ends.popleft()
        if durable is not None:
            say("durable", durable)
        number += count


def _commit_offsets(store: StoreWriter) -> None:
    """Let a group have consumed all of the first topic."""
    queues = store.stats()["queues"].get(TOPICS[0], {})
    ends = {int(queue_id): end for queue_id, (_, end) in queues.items()}
    store.commit_offsets("fault-test", {TOPICS[0]: ends})


def _config(**settings: Any) -> StoreConfig:
    return StoreConfig().with_overrides(settings)


if __name__ == "__main__":
    try:
        sys.exit(work(_operate, _config, MUTANTS))
    except RmqStoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
