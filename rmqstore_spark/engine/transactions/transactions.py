"""Transactions: the service that holds half messages and ends them, each once.

    put   -> a half message in RMQ_SYS_TRANS_HALF_TOPIC
    end   -> one append: the message (if it is a commit), then its op message
    check -> the producer is asked; after `transactionCheckMax` checks, one append: the message in
             TRANS_CHECK_MAX_TIME_TOPIC, then its op message

What waits is in memory. After a start it is found in the log (`recall`), at its first use. A check
copies nothing: a half message keeps its offset, and its flag, however often it is checked.
(Upstream: TransactionalMessageServiceImpl, EndTransactionProcessor. A broker appends the message
and the op message separately, ends a transaction at each request, and copies half messages.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender, Stored
from rmqstore_spark.engine.append.commit import Commit, HeldUpError
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.transactions.halves import HalfAdmission, HalfLog
from rmqstore_spark.engine.transactions.outcomes import (
    COMMITTED,
    ENDED_BEFORE,
    HELD_UP,
    MOST_AT_ONCE,
    MOST_BYTES,
    ROLLED_BACK,
    Ended,
    Made,
    Outcomes,
    answers,
    lacking,
    parts_of,
    split,
    unknown,
)
from rmqstore_spark.engine.transactions.progress import OpNotes, recall, save_progress
from rmqstore_spark.engine.transactions.waiting import WaitingTransactions, sort_waiting
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
)
from rmqstore_spark.layout.constants import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqstore_spark.layout.record.block import Block, read_block
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.reader.transactions import (
    CHECKS_FILE,
    Transaction,
    identities_of,
    transactions_of,
)

_log = logging.getLogger(__name__)

_MOST_UNSEEN: Final = 64 << 20
"""Bytes of log after which the progress is written again, though no transaction has changed: the
next start looks for commits in what is behind it."""
_DRAIN_S: Final = 0.2


class Transactions:
    """The transactions of a store. Thread-safe.

    Args:
        store: the open store.
        admission: knows whether the store accepts messages.
        appender, durability: append, and wait for the disk and for slaves.
        dispatcher: writes the queues.
        flusher: flushes the log before the progress is written.

    Attributes:
        puts: stores half messages.
    """

    def __init__(
        self,
        store: OpenStore,
        admission: Admission,
        appender: Appender,
        durability: Durability,
        dispatcher: Dispatcher,
        flusher: FlushService,
    ) -> None:
        config = store.config
        self._store = store
        self._config = config
        self._admission = admission
        self._appender = appender
        self._durability = durability
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._outcomes = Outcomes(config, store.clock)
        self._log = HalfLog(store)
        self._lock = threading.RLock()
        self._known: WaitingTransactions | None = None
        self._file: ConfigFile | None = None
        self._ops = OpNotes()
        self._waits_since = 0.0  # for what is proposed; 0 if nobody does
        self._half_end = 0
        self._is_saved = True
        self._saved_end = 0
        self._counts = {COMMITTED: 0, ROLLED_BACK: 0, ENDED_BEFORE: 0}
        self._given_up = self._checks = 0
        self.puts = Puts(
            config, HalfAdmission(store, admission, self._check_room), self, durability
        )

    # ---- half messages -------------------------------------------------------------------------

    def _check_room(self, block: Block) -> None:
        named = identities_of(decode_records(block.data, block.starts, block.sizes))
        with self._lock:
            self._waiting().check_room(named)

    @property
    def commit(self) -> Commit | None:
        """The commit that writes its block, if there is one."""
        return self._appender.commit

    def append(self, block: Block, *, patient: bool = True) -> Stored:
        """Append half messages, and remember them.

        Raises:
            HeldUpError: a commit leaves no room for them, and the caller is not patient.
            RefusedError: they were not appended, or it is not known what waits.
        """
        began = time.monotonic()
        while True:
            try:
                return self._append_halves(block)
            except HeldUpError:
                if not patient:
                    raise
            self._appender.await_commit(began)  # without the lock, which others need

    def _append_halves(self, block: Block) -> Stored:
        with self._lock:
            waiting = self._waiting()
            reach("transactions.before_half")
            stored = self._appender.append(block, patient=False)
            records = decode_records(block.data, block.starts, block.sizes)
            waiting.add(transactions_of(records, stored.queue_offset))
            if len(block):
                self._half_end = int(stored.queue_offset[-1]) + 1
                self._is_saved = False
        return stored

    # ---- ends ----------------------------------------------------------------------------------

    def end(
        self, group: str, halves: Sequence[HalfId], *, is_commit: bool, patient: bool = True
    ) -> list[Ended]:
        """Commit or roll back transactions, each once.

        Args:
            group: the producer group of the half messages.
            halves: the half messages.
            is_commit: whether to commit them.
            patient: wait for a commit of a batch to the same queues, as long as a put does. The
                transactions that it does not hold up are ended before.

        Returns:
            The answer for each half message; HELD_UP only if the caller is not patient.

        Raises:
            RefusedError: the store accepts no messages. Transactions that were not ended wait on.
        """
        began = time.monotonic()
        found = self._end(group, halves, is_commit)
        while patient and (held := [n for n, one in enumerate(found) if one.status == HELD_UP]):
            self._appender.await_commit(began)  # without the lock, which others need
            again = self._end(group, [halves[number] for number in held], is_commit)
            for number, one in zip(held, again, strict=True):
                found[number] = one
        return found

    def _end(self, group: str, halves: Sequence[HalfId], is_commit: bool) -> list[Ended]:
        """End those transactions that no commit of a batch holds up; see `end`."""
        self._admission.require_master()
        with self._lock:
            waiting = self._waiting()
            found = [self._find(waiting, group, half) for half in halves]
            chosen = {one.place.queue_offset: one for one in found if isinstance(one, Transaction)}
            done: dict[int, str] = {}
            last: Stored | None = None
            for part in parts_of(list(chosen.values())):
                left: Sequence[Transaction] = part
                while left:
                    made = self._commits(left) if is_commit else self._outcomes.ops(left)
                    status, left = COMMITTED if is_commit else ROLLED_BACK, []
                    try:
                        last = self._append(made) or last
                        ended = made.ended
                        self._counts[status] += len(ended)
                    except HeldUpError as error:
                        status = HELD_UP
                        ended, left = split(made.ended, error.rows)
                    done.update({one.place.queue_offset: status for one in ended})
        return answers(found, done, lacking(self._durability, last))

    def _find(self, waiting: WaitingTransactions, group: str, half: HalfId) -> Transaction | Ended:
        """Return the transaction of a half message that waits, or an answer for any other."""
        one = waiting.find(half.queue_offset)
        if one is not None:
            is_it = any(
                (place.queue_offset, place.physical_offset)
                == (half.queue_offset, half.physical_offset)
                for place in one.places
            )
            return one if is_it and one.group == group else unknown(half, group)
        if half.physical_offset < self._store.log.min_offset:
            self._counts[ENDED_BEFORE] += 1
            # Segments with half messages that wait do not expire, at followers too.
            return Ended(ENDED_BEFORE)
        old = self._log.find(half)
        if old is None or old.group != group:
            return unknown(half, group)
        # A broker that checked it has stored a copy of it, which may wait still. A producer that
        # put the same message again began another transaction, with a bornTimestamp of its own.
        newer = waiting.like(old)
        if newer is not None and newer.born == old.born:
            return newer
        self._counts[ENDED_BEFORE] += 1
        return Ended(ENDED_BEFORE)

    def _commits(self, part: Sequence[Transaction]) -> Made:
        made = self._outcomes.commits(part, *self._log.read(part))
        self._restore(made)
        return made

    def _append(self, made: Made) -> Stored | None:
        """Append what ends transactions; return its places; None if it is nothing.

        Raises:
            HeldUpError: a commit holds it up. Who needs the lock must not wait for that.
        """
        if not len(made.halves):
            return None
        block = read_block(made.data, max_rows=2 * MOST_AT_ONCE + len(made.halves))
        reach("transactions.before_end")
        stored = self._appender.append(block, patient=False)
        reach("transactions.after_end")
        self._waiting().remove(made.ended)
        self._ops.add(stored.queue_offset[-len(made.halves) :], made.halves)
        self._is_saved = False
        return stored

    def _restore(self, made: Made) -> None:
        """Create topics that were deleted while half messages for them waited."""
        try:
            self._store.topics.restore(made.routes)
        except OptionError as error:
            _log.warning("Messages are stored in topics that cannot be created: %s", error)

    # ---- checks --------------------------------------------------------------------------------

    def check(self) -> None:
        """Do a round of checks: note whose producers are to be asked, and give up the others.

        Raises:
            RefusedError: the store accepts no messages.
            RmqStoreError: the store cannot be read or written.
        """
        with self._lock:
            asked, hopeless = sort_waiting(self._waiting(), self._config, self._store.clock())
            self._waiting().ask(asked)
            self._checks += len(asked)
            self._is_saved = self._is_saved and not asked
            with suppress(HeldUpError):  # the next round gives up what has no room beside a commit
                for part in parts_of(hopeless):
                    self._give_up(part)

    def _give_up(self, part: Sequence[Transaction]) -> None:
        made = self._outcomes.give_up(part, *self._log.read(part))
        self._restore(made)
        self._append(made)
        self._given_up += len(made.ended)
        for one in made.ended:
            _log.warning(
                "The transaction of the half message at offset %d (producer group %s, UNIQ_KEY %s) "
                "was given up after %d checks: its message is in TRANS_CHECK_MAX_TIME_TOPIC.",
                one.place.queue_offset, one.group, one.key or "none", one.checks,
            )  # fmt: skip
        told = {one.place.queue_offset for one in made.ended}
        damaged = [one for one in part if one.place.queue_offset not in told]
        if damaged:
            _log.error(
                "%d half message(s) are damaged, and their transactions rolled back. The first: "
                "offset %d.", len(damaged), damaged[0].place.queue_offset,
            )  # fmt: skip
            self._append(self._outcomes.ops(damaged))

    def take_asked(self, group: str, most: int) -> Sequence[Transaction]:
        """Return transactions whose producer is to be asked; each check is returned once.

        There are further ones if their half messages have more than 16 MiB.

        Args:
            group: the producer group.
            most: the most to return.

        Raises:
            RefusedError: the store accepts no messages.
        """
        self._admission.require_master()
        with self._lock:
            return self._waiting().take_asked(group, most, MOST_BYTES)

    @property
    def asked_groups(self) -> frozenset[str]:
        """The producer groups that are to be asked."""
        with self._lock:
            return self._known.asked_groups if self._known is not None else frozenset()

    def waiting(self) -> list[Transaction]:
        """Return what waits, by the offset of the newest half message.

        Raises:
            RefusedError: the store accepts no messages.
        """
        self._admission.require_master()
        with self._lock:
            return list(self._waiting())

    def oldest(self) -> int | None:
        """Return the physical offset of the oldest half message that waits; None if none does.

        Raises:
            RefusedError: what waits is not known.
        """
        with self._lock:
            oldest = self._waiting().oldest
            return None if oldest is None else oldest.physical_offset

    # ---- progress ------------------------------------------------------------------------------

    @property
    def has_halves(self) -> bool:
        """Whether the store has, or had, half messages."""
        return (TRANS_HALF_TOPIC, 0) in self._store.queues

    def begin(self) -> None:
        """Find out what waits, unless that is known; completes commits that a crash cut short.

        Raises:
            RefusedError: it cannot be found, or the store accepts no messages.
        """
        self._admission.require_master()
        with self._lock:
            self._waiting()

    def _waiting(self) -> WaitingTransactions:
        """Return what waits; finds it at its first use.

        Raises:
            RefusedError: it cannot be found.
        """
        if self._known is None:
            try:
                self._known = self._begin()
            except (RmqStoreError, OSError) as error:
                raise RefusedError(
                    f"It cannot be found out which transactions wait: {error}",
                    PutStatus.SERVICE_NOT_AVAILABLE,
                ) from error
        return self._known

    def _begin(self) -> WaitingTransactions:
        self._admission.require_master()  # a slave would remember it when it becomes the master
        if not self.has_halves:
            return WaitingTransactions(())
        self._await_proposed()
        while not self._dispatcher.drain(_DRAIN_S):
            if self._dispatcher.stalled is not None:
                raise self._dispatcher.stalled
        found, done = recall(self._store.path)
        waiting = WaitingTransactions(found.waiting)
        self._half_end = found.half_end
        self._ops.add(found.op_offsets, found.op_halves)
        if done:
            made = self._outcomes.ops(done)
            stored = self._appender.append(read_block(made.data, max_rows=len(made.halves)))
            self._ops.add(stored.queue_offset, made.halves)
            waiting.remove(done)
            self._is_saved = False
        return waiting

    def _await_proposed(self) -> None:
        """Wait until what was proposed to a group so far is committed: then queues have it.

        Half messages and op messages are proposed under the lock that the caller holds, so none
        follows. Other records do, all the time, so the log's end may never be committed as a whole.
        Who comes later waits no longer than who came first.
        """
        log = self._store.log
        term, end = log.term, log.end
        if term is None:
            is_known = end == log.max_offset
        else:
            self._waits_since = self._waits_since or time.monotonic()
            is_known = self._durability.await_put(end, term, self._waits_since) is None
        if is_known or term is None:
            self._waits_since = 0.0
        if not is_known:
            raise RefusedError(
                "a quorum of the group does not have all that was proposed to it yet. Try again.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def save(self) -> None:
        """Write the progress, after what it covers is flushed; if the queues are behind, later.

        Used by one thread at a time.

        Raises:
            RmqStoreError: the log could not be flushed, or the progress could not be written.
        """
        with self._lock:
            if self._known is None or self._store.log.end != self._store.log.max_offset:
                return  # what is proposed to a group may not be committed
            grown = self._store.log.max_offset - self._saved_end
            if self._is_saved and not (len(self._known) and grown > _MOST_UNSEEN):
                return
            oldest = self._known.oldest
            half = self._half_end if oldest is None else oldest.queue_offset
            op = self._ops.begin(half)
            checks, end = self._known.checks(), self._store.log.max_offset
            self._is_saved = True
        try:
            self._flusher.flush()
            queues = self._store.queues
            if (
                queues.max_offset(TRANS_HALF_TOPIC, 0) < half
                or queues.max_offset(TRANS_OP_HALF_TOPIC, 0) < op
            ):
                self._is_saved = False
                return
            if self._file is None:
                self._file = ConfigFile(self._store.path, CHECKS_FILE)
            save_progress(self._file, self._store.consumer_offsets, half, op, checks, end)
            self._saved_end = end
        except BaseException:
            self._is_saved = False
            raise

    def forget(self) -> None:
        """Know nothing of what waits: its first use finds it in the log."""
        with self._lock:
            self._known = self._file = None
            self._ops = OpNotes()
            self._half_end = 0
            self._waits_since = 0.0
            self._is_saved = True
            self._saved_end = 0

    def close(self) -> None:
        """Close the file that was read last."""
        with self._lock:
            self._log.close()

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        waiting = self._known
        return {
            "transactionsWaiting": 0 if waiting is None else len(waiting),
            "transactionsCommitted": self._counts[COMMITTED],
            "transactionsRolledBack": self._counts[ROLLED_BACK],
            "transactionsEndedAgain": self._counts[ENDED_BEFORE],
            "transactionsGivenUp": self._given_up,
            "transactionChecks": self._checks,
        }
