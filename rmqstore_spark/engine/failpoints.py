"""Places at which a test can kill or stop this process.

`RMQSTORE_FAILPOINT=name` in the environment kills the process (SIGKILL, as in a crash) when it
reaches that place; `name:3` kills it when it gets there for the third time. `name:3:stop` stops it
there instead, until SIGCONT. Without the variable, a failpoint costs one check of a global.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from rmqstore_spark.errors import OptionError

NAMES: Final[dict[str, str]] = {
    "put.before_write": "records are checked and numbered, nothing is written",
    "put.after_write": "records are in the log, not flushed, not in their queues",
    "put.after_dispatch": "records are dispatched, not acknowledged",
    "replica.before_write": "bytes of a master's log are checked, nothing is written",
    "replica.after_hidden": "a part of a master's batch is in the log, hidden",
    "replica.before_publish": "a master's batch is in the log and flushed, still hidden",
    "replica.after_write": "bytes of a master's log are in the log, not flushed, not in the queues",
    "replica.after_dispatch": "bytes of a master's log are dispatched, not reported",
    "stage.before_write": "a block is checked, not staged",
    "commit.before_write": "a batch has its place, nothing of it is in the log",
    "commit.after_head": "the hidden head of a batch is in the log, nothing else of it",
    "commit.after_portion": "a portion of a hidden batch is in the log, earlier portions are not",
    "commit.before_sync": "a batch is in the log, hidden, not flushed",
    "commit.before_publish": "a batch is in the log, hidden, flushed",
    "commit.after_filler": "room before a hidden batch is filled up, nothing of that is flushed",
    "commit.after_publish": "a batch is visible, its first magic code is not flushed",
    "commit.after_sync": "a batch is visible and flushed, not in the queues",
    "commit.after_dispatch": "a batch is dispatched, not acknowledged",
    "group.before_close": "a store's log is recovered for its group, and not closed yet",
    "group.before_mark": "it is closed, and nothing says so yet",
    "group.after_mark": "it is closed, and nothing of the group's log exists",
    "group.within_run": "a portion of a batch is proposed to a group, later ones are not",
    "group.after_run": "a batch is proposed to a group, nobody knows whether it is committed",
    "group.before_see": "committed entries are dispatched, puts that wait for them are not told",
    "delay.before_append": "delayed messages are due, nothing of them is delivered",
    "delay.after_append": "delayed messages are delivered, the progress is in the log only",
    "delayOffset.before_write": "the log is flushed, the progress of delivery is not written",
    "delayOffset.after_backup": "delayOffset.json.bak is written, delayOffset.json is not",
    "transactions.before_half": "half messages are checked, nothing of them is stored",
    "transactions.before_end": "transactions are to be ended, nothing of it is stored",
    "transactions.after_end": "messages and op messages are in the log, nobody has been told",
    "transactionChecks.before_write": "the progress of transactions is half written",
    "transactionChecks.after_backup": "transactionChecks.json.bak is written, the file is not",
    "ledger.before_write": "the ledger of commits is about to be written",
    "roll.before_create": "a segment is full, the next one does not exist",
    "roll.after_create": "the next segment exists, its folder is not flushed",
    "flush.before_sync": "the log is about to be flushed",
    "flush.after_sync": "the log is flushed, nobody has been notified",
    "topics.before_write": "a topic is created in memory only",
    "topics.after_backup": "topics.json.bak is written, topics.json is not",
    "consumerOffset.before_write": "the offsets of a group have moved in memory only",
    "consumerOffset.after_backup": "consumerOffset.json.bak is written, the file itself is not",
    "queues.before_flush": "queues and index are about to be flushed",
    "checkpoint.before_write": "all is flushed, the checkpoint is old",
    "promote.before_mark": "a slave follows nobody any more, nothing says that it is a master",
    "promote.after_mark": "the role of a master is on disk, nothing was accepted",
    "demote.before_mark": "a master accepts nothing, nothing says that it is a slave",
    "demote.after_mark": "the role of a slave is on disk, no master was followed",
    "expiry.after_archive": "a segment is in the archive, and still in the log",
    "expiry.before_remove": "queues and the ledger are flushed, no segment is removed",
    "expiry.after_remove": "a segment is removed, the log's folder is not flushed",
    "expiry.after_segment": "a segment is removed, the next one is not",
    "expiry.after_queue_file": "a file of a queue is removed, others are not",
    "expiry.after_index_file": "an index file is removed, others are not",
    "recovery.before_mark": "the log's end is found, nothing is changed",
    "recovery.after_mark": "guard and abort exist, the log is unchanged",
    "recovery.after_keep": "the bytes after the log's end are copied, and still in the log",
    "recovery.after_wipe": "the log is cut, queues and index are unchanged",
    "recovery.after_index_gone": "index files that failed the check are removed",
    "recovery.after_queues": "entries and keys are written, nothing is wiped after them",
    "recovery.before_checkpoint": "all is flushed, the checkpoint is old",
    "recovery.after_checkpoint": "the checkpoint is written",
    "close.before_checkpoint": "the store is closing, all is flushed",
    "close.before_guard": "the checkpoint is written, guard and abort exist",
    "close.after_guard": "the guard is removed, abort exists",
}
"""All failpoints, each with what has been done there and what has not."""

_VARIABLE: Final = "RMQSTORE_FAILPOINT"


def _parse(given: str) -> tuple[str, int, signal.Signals]:
    name, _, rest = given.partition(":")
    count, _, what = rest.partition(":")
    if given and (
        name not in NAMES or (count and not count.isdecimal()) or what not in ("", "stop")
    ):
        raise OptionError(
            f"{_VARIABLE}={given!r} is not a failpoint. Failpoints: {', '.join(NAMES)}."
        )
    return name, int(count or 1), signal.SIGSTOP if what else signal.SIGKILL


_armed, _left, _signal = _parse(os.environ.get(_VARIABLE, ""))
_lock = threading.Lock()


def reach(name: str) -> None:
    """Mark a failpoint as reached. The process ends or stops here if a test asked for it."""
    if _armed and name == _armed:
        _count_down()


def _count_down() -> None:
    global _left
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), _signal)
