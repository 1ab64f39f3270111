"""Takes what a member of a group has committed, and puts it into queues and index.

It does so on every member: a leader's own records come this way too, in the blocks in which it has
appended them; all others are read from the log. So nothing in queues and index ever has to be taken
back. It also carries out the changes of role, between the entries:

    leads:    all before the entry with which the term begins is committed, and in queues and index
              -> queue offsets and times continue from there -> messages are accepted
    follows:  no more messages are accepted -> those who wait are told -> the role of a slave

Room that is lacking for now holds it up, and ends nothing: a commit is tried again until it is
applied, and a master begins its work as soon as there is room. If that takes long, the store ends,
so that a member with room is elected.
(Upstream: DLedgerCommitLog, DLedgerRoleChangeHandler.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.copied import Copied, feed_of, make_topics
from rmqstore_spark.engine.append.member_appender import MemberAppender
from rmqstore_spark.engine.dispatch.dispatcher import NO_ROOM
from rmqstore_spark.engine.dispatch.jobs import DispatchJob
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.group.member_thread import (
    CommittedLog,
    Decision,
    GroupChange,
    MemberThread,
)
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.recovery.member import member_log_of
from rmqstore_spark.engine.recovery.redispatch import LogBlock, QueueFeed
from rmqstore_spark.engine.recovery.whole_batches import WholeBatches
from rmqstore_spark.errors import (
    RefusedError,
    ReplicationError,
    RmqStoreError,
    StoreWriteError,
)
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.constants import LMQ_PREFIX
from rmqstore_spark.reader.log.commitlog import CommitLog

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1
_LACK_S: Final = 5.0
"""Seconds that a group waits for its leader to have room; then another member shall lead."""


class Applier:
    """A thread that applies what a member decides. It ends with the member.

    Args:
        store: the open store.
        log, role: its parts.
        member: runs the member.
        appender: numbers what is put while this member leads.
        flusher: keeps the times of the checkpoint.
        drain: waits until all is in queues and index.
        take_over: is called before messages are accepted, when all is in queues and index.
        health: fails if something cannot be applied.
    """

    def __init__(
        self,
        store: OpenStore,
        log: MemberLog,
        role: GroupRole,
        member: MemberThread,
        appender: MemberAppender,
        flusher: FlushService,
        health: Health,
        *,
        drain: Callable[[], None],
        take_over: Callable[[], None],
    ) -> None:
        self._store = store
        self._log = log
        self._role = role
        self._member = member
        self._appender = appender
        self._flusher = flusher
        self._health = health
        self._drain = drain
        self._take_over = take_over
        self._feed: QueueFeed | None = None  # as long as all goes into queues through it
        self._files = LocalFiles()
        self._listed: CommitLog | None = None  # with all segments that there were
        self._batches = WholeBatches(log.max_offset)
        self._election: GroupChange | None = None  # that is won, and has not begun
        self._lacks_since = 0.0  # since when room was lacking to lead; 0 if it was not
        self._told_lack = ""  # what was logged last of what is lacking for now
        self._lacks_topic = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="rmqstore-applier", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """End the member, and what it decides.

        Returns:
            Whether queues and index have all that is committed. Otherwise the log ends in a part of
            a batch of Spark: a broker would begin behind it, and never put it into queues.
        """
        self._is_closed = True
        self._member.close()
        self._thread.join()
        if self._batches.is_within:
            _log.warning(
                "The store is left as after a kill, since the group has committed a part of a "
                "batch, and the rest has not come here. Start the store again before a broker of "
                "RocketMQ takes its place."
            )
        return not self._batches.is_within

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._make_topics_of_queues()
            while all(map(self._apply, self._next())):
                if self._is_elected:
                    self._try_to_lead()
        except Exception as error:  # noqa: BLE001 - nothing that follows may be applied
            if isinstance(error, AssertionError):
                self._health.fail_wrong_state(error)
            else:
                self._health.fail(error, "what the group has committed cannot be applied.")
        finally:
            self._log.stop_leading()
            self._files.close()

    def _make_topics_of_queues(self) -> None:
        """Create the topics of queues that recovery has built: no applier has seen their records.

        Topics that there are stay as they are: somebody may have given them fewer queues.
        """
        store = self._store
        lacking = [
            route
            for route in store.recovery.rebuilt_queues
            if route[0] not in store.topics and not route[0].startswith(LMQ_PREFIX)
        ]
        if not lacking:
            return
        names = ", ".join(sorted({topic for topic, _ in lacking}))
        _log.info("Topics that were missing, and whose queues were built from the log: %s.", names)
        try:
            make_topics(store, lacking, self._log.max_offset, store.config.default_topic_queue_nums)
        except (ReplicationError, RefusedError) as error:
            _log.warning("Not all of them were made. Those come with their next message. %s", error)

    def _next(self) -> Sequence[Decision]:
        """Return what was decided since the last time; nothing if it is time to try to lead."""
        return self._member.decisions.take(_AGAIN_S if self._is_elected else None)

    def _apply(self, decision: Decision) -> bool:
        """Carry out a decision; return whether more follow."""
        if isinstance(decision, CommittedLog):
            self._commit(decision)
        elif isinstance(decision, GroupChange):
            self._change(decision)
        else:
            if decision.error is not None:
                self._health.fail(decision.error, "its member of the group has ended.")
            return False
        return True

    def _commit(self, committed: CommittedLog) -> None:
        if committed.end <= self._batches.seen:
            return
        if committed.begin > self._log.max_offset:  # the first entries of a new member
            self._log.begin_later(committed.begin)
            self._feed = None
            self._batches = WholeBatches(committed.begin)
        self._member.note_committed()  # before queues name what is behind the end in the files
        while self._batches.seen < committed.end:
            self._take_next(committed)
        reach("group.before_see")
        self._log.see(self._batches.at, committed.end)

    def _log_up_to(self, committed: CommittedLog) -> CommitLog:
        """Return the log; its files are listed again only if others have come or gone."""
        known = None if self._listed is None else self._listed.dledger
        if known is None or not (
            known.min_offset == committed.begin and committed.end <= known.end_offset
        ):
            self._listed = member_log_of(
                self._files, self._store.path, self._member.data_folder, committed.end
            )
        assert self._listed is not None
        return CommitLog(self._listed.plain, self._listed.dledger, committed.end)

    def _take_next(self, committed: CommittedLog) -> None:
        """Take the next block that this store has appended, or what the log has before it."""
        batches, stop = self._batches, committed.end
        own = self._appender.next_proposed(batches.seen)
        if own is not None and own.end <= stop and not batches.is_within:
            begin = self._appender.begin_of(own)
            if begin == batches.seen:
                self._feed = None
                self._patiently(partial(self._take, own, own.store_timestamp))
                batches.pass_over(own.end)
                return
            stop = begin
        for part in batches.read(self._log_up_to(committed), stop):
            self._patiently(partial(self._take_copied, part))

    def _take_copied(self, part: LogBlock) -> None:
        store = self._store
        if self._feed is None:
            self._feed = feed_of(store, is_group=True)
        copied = Copied(part, self._feed)
        try:
            make_topics(store, part.block.routes, copied.end, store.config.default_topic_queue_nums)
        except ReplicationError as error:
            if not self._lacks_topic:
                _log.warning(
                    "%s Its messages are kept, and the topic comes with the next copy of the "
                    "leader's topics, if there is room for it then. Further ones are not told.",
                    error,
                )
            self._lacks_topic = True
        with store.deleted.copying:
            self._take(copied, int(part.records.store_timestamp.min()))

    def _take(self, job: DispatchJob, first: int) -> None:
        """Hand records to the dispatcher.

        Args:
            job: the records.
            first: the lowest of their storeTimestamps.
        """
        if first < self._log.last_timestamp:  # another member's clock is behind
            self._flusher.lower_time(max(first - 1, 0))
        self._appender.published(job.store_timestamp)
        self._log.show(job.end)
        self._appender.dispatch(job)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do something that may lack room for now, until it succeeds or the store is closed."""
        while True:
            try:
                work()
            except RefusedError as error:
                if self._is_closed or self._health.failure is not None:
                    raise
                self._tell_lack("What the group has committed waits", error)
                time.sleep(_AGAIN_S)
            else:
                self._told_lack = ""
                return

    def _tell_lack(self, what: str, error: RmqStoreError) -> None:
        if str(error) != self._told_lack:
            _log.warning("%s: %s", what, error)
        self._told_lack = str(error)

    def _change(self, changed: GroupChange) -> None:
        self._role.leader, self._role.term = changed.leader or "", changed.term
        self._election = changed if changed.leads else None
        self._lacks_since = 0.0
        if self._role.follows:
            return
        self._log.stop_leading()  # those who wait must not, while others hold the lock
        with self._appender.ending_commit():
            self._appender.forget_proposed()
            self._role.follow()
        _log.warning("%s is a slave now: it does not lead its group any more.", self._store.path)
        self._role.changed()

    def _require_queue_ends(self) -> None:
        """Refuse to lead before it is known where queues end whose messages have expired.

        Another thread asks the other members meanwhile (`ha.group_tables`).
        """
        if self._store.queue_ends.are_lacking and self._member.log_begin() != (0, 0):
            raise RefusedError(
                "It began without queues, and does not know yet where those end whose messages "
                "have expired. Another member must tell it; the log says why none does.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    @property
    def _is_elected(self) -> bool:
        """Whether an election is won, and what the term's first entry follows was taken."""
        return self._election is not None and self._batches.at >= self._election.end

    def _try_to_lead(self) -> None:
        """Be the master, unless room is lacking for now: then it is tried again."""
        assert self._election is not None
        try:
            self._lead(self._election)
        except (RefusedError, StoreWriteError) as error:
            now = time.monotonic()
            self._lacks_since = self._lacks_since or now
            is_over = now - self._lacks_since > _LACK_S or self._health.failure is not None
            if is_over or (isinstance(error, StoreWriteError) and error.errno not in NO_ROOM):
                raise RmqStoreError(f"The store cannot lead: {error}") from error
            self._tell_lack("The store cannot lead yet", error)
        else:
            self._election = None
            self._told_lack = ""
            self._lacks_since = 0.0

    def _lead(self, election: GroupChange) -> None:
        """Be the master: what the term's first entry follows is in queues and index."""
        self._require_queue_ends()
        self._drain()
        with self._role.copying:
            self._take_over()
            with self._appender.appending(patient=True):
                self._appender.continue_from_log()
                self._log.lead_from(election.term, election.end)
                self._role.lead()
        _log.warning(
            "%s is the master now: it leads its group in term %d, from physical offset %d on.",
            self._store.path, election.term, election.end,
        )  # fmt: skip
        self._role.changed()
