"""Writes a Spark batch to the log of a group: an entry for each record, in one run.

    under the append lock:   place the records, and the marker after them -> propose all, in order
    without it:              wait until all of it is committed, and in queues and index

The members show a batch when they have all of it (`recovery.whole_batches`), so it needs no hidden
head. If this member ceases to lead before that, another leader may have all of the batch or a part:
the outcome is unknown here, and the ledger of the next leader knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import Content, WriterId
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.batches.marker import MARKER_ROUTE
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staging import Staging
from rmqstore_spark.engine.batches.writing import BatchWriter, Written
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import RefusedError, StoreWriteError

_LOOK_S: Final = 1.0


class MemberBatchWriter(BatchWriter):
    """Writes batches, one at a time; see `BatchWriter`.

    Args:
        store, staging, admission, appender, flusher: as there.
        log: the log of the group.
    """

    def __init__(
        self,
        store: OpenStore,
        staging: Staging,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
        log: MemberLog,
    ) -> None:
        super().__init__(store, staging, admission, appender, flusher)
        self._group_log = log

    def write(
        self, writer: WriterId, content: Content, stages: Sequence[Stage], identity: str
    ) -> Written:
        """Propose stages, and the marker of their commit. Returns once all members may show them.

        Args:
            writer: who commits.
            content: what the stages hold.
            stages: claimed; they are given back if they are not known to be committed.
            identity: of the client.

        Raises:
            RefusedError: nothing is committed; if `is_open` is set, that is unknown.
        """
        routes = {route for stage in stages for route in stage.routes} | {MARKER_ROUTE}
        with ExitStack() as undo:
            undo.callback(self._staging.give_back, stages)
            with self._appender.appending(patient=True):
                self._admission.check_state()
                commit = self._appender.begin_run(routes, self._group_log.next_block())
                block = BatchBlock(commit, self._segment_size, self._host, self._group_log.lead)
                undo.callback(block.close)
                committed, marker_offset = self._place(block, writer, content, stages, identity)
                term = self._propose(block)
            reach("group.after_run")
            self._await(writer, term, block.end)
            undo.pop_all()
        return Written(block, committed, marker_offset, commit.begin)

    def finish(self, block: BatchBlock) -> None:
        """Close the files of the stages: all of the batch is in queues and index."""
        reach("commit.after_dispatch")
        block.close()

    def _propose(self, block: BatchBlock) -> LeaderTerm:
        log, term = self._group_log, self._group_log.term
        if term is None:
            raise _not_leading()
        is_begun = False
        try:
            for placement, data, starts in block.portions():
                is_begun = True
                if not log.write_in_turns(term, placement, data, starts):
                    raise _not_leading()  # the rest never was proposed: no member shows any of it
                reach("group.within_run")
        except Exception as error:
            if is_begun and term.end is None:
                # A later record of this term would be taken for the rest. So another has to lead.
                self._admission.fail(
                    StoreWriteError(f"A Spark batch was proposed to the group in part: {error}")
                )
            raise
        self._appender.end_run(block.next_offsets)
        return term

    def _await(self, writer: WriterId, term: LeaderTerm, end: int) -> None:
        while not (is_committed := self._group_log.wait(term, end, _LOOK_S)):
            if is_committed is None:
                raise RefusedError(
                    f"It is unknown whether {writer} was committed: another member of the group "
                    "may lead now. Commit it again there: what its log has is not written twice.",
                    PutStatus.SERVICE_NOT_AVAILABLE,
                    is_open=True,
                )


def _not_leading() -> RefusedError:
    return RefusedError(
        "The store has just ceased to lead its group. Nothing was committed.",
        PutStatus.SERVICE_NOT_AVAILABLE,
    )
