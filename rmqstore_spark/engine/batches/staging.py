"""Manages the stages of a store: records that tasks have written and nobody has committed yet.

`stage` describes a single stage. This module decides who may begin one, how much may be staged in
all, and which stages a commit takes. A stage is removed by `abort`, which also prevents a late
attempt from beginning it again; after `stagingTimeout`; or when the store is opened or closed.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import StageInfo
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.batches.held import StagingMemory
from rmqstore_spark.engine.batches.marker import is_another
from rmqstore_spark.engine.batches.spilled import SpareFiles
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.counters import Failures
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import make_folder

_log = logging.getLogger(__name__)

_REMEMBERED: Final = 100_000
_MOST_STAGES: Final = 10_000
_SPARE_MS: Final = 5_000
"""How long memory and files of stages that are gone are kept for others."""
_ELSEWHERE: Final = (
    "never staged here: since the batch began, the master has changed (in a DLedger group, the "
    "leader), or this process was started again"
)
_AGAIN: Final = (
    "Run the batch again: of a stream, start the query again with its checkpoint, which stores no "
    "row twice."
)
_STAGE_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class StagingLimits:
    """The limits of staging.

    Attributes:
        max_bytes: bytes of all stages together.
        max_stage_bytes: bytes of one stage.
        memory_bytes: of `max_bytes`, what stages may hold in memory.
        timeout_ms: a stage that nobody has touched for this time is removed.
    """

    max_bytes: int
    max_stage_bytes: int
    memory_bytes: int
    timeout_ms: int


class Staging:
    """All stages of a store.

    Args:
        folder: `<store>/rmqstore/staging`; stages left by an earlier process are removed from it.
        admission: checks each block on receipt.
        limits: the limits of staging.
        clock: returns the time in milliseconds.
        indexed: whether the store keeps an index.

    Attributes:
        staged_bytes: bytes that stages take, in memory and on disk.
    """

    def __init__(
        self,
        folder: Path,
        admission: Admission,
        limits: StagingLimits,
        clock: Callable[[], int],
        *,
        indexed: bool = True,
    ) -> None:
        self.clock = clock
        self.indexed = indexed
        self.failures = Failures()
        self.memory = StagingMemory(limits.memory_bytes)
        self.spares = SpareFiles(folder / "spare")
        self._ended = 0
        self._seen = (0, 0)  # stages that had ended, and when `expire` first saw so many
        self._admission = admission
        self._folder = folder
        self._limits = limits
        self._lock = threading.Lock()
        self._stages: dict[str, Stage] = {}
        self._claimed: dict[str, Stage] = {}
        self.staged_bytes = 0
        self._held: dict[str, int] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        make_folder(str(folder))
        for left in folder.iterdir():
            if _STAGE_ID.fullmatch(left.name) and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._stages)

    def begin(self, stage_id: str, owner: str = "", identity: str = "") -> Stage:
        """Begin a stage.

        Args:
            stage_id: 32 hex digits (a UUID without its dashes), new for each attempt of a task.
            owner: name of the writer, for messages.
            identity: the identity in the client's certificate, or empty. No other identity can
                commit or abort the stage.

        Raises:
            RefusedError: the id is invalid, in use or aborted; or there are too many stages.
        """
        if not _STAGE_ID.fullmatch(stage_id):
            raise RefusedError(
                f"{stage_id[:64]!r} is not a stage id: it must have 32 hex digits.",
                PutStatus.MESSAGE_ILLEGAL,
            )
        with self._lock:
            if stage_id in self._gone:
                why = self._gone[stage_id]
                text = f"The stage {stage_id} cannot be started again: it was {why}."
                raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL)
            if stage_id in self._held:  # also by a commit that has claimed it
                stage = self._stages.get(stage_id)
                doing = "written" if stage is not None else "committed"
                owned = f" by {stage.owner}" if stage is not None and stage.owner else ""
                text = f"The stage {stage_id} is already being {doing}{owned}."
                raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL)
            if len(self._stages) >= _MOST_STAGES:
                raise RefusedError(
                    f"There are {len(self._stages)} stages, the maximum; each task of a batch has "
                    "one. Wait for other batches to be committed. A batch that has more tasks by "
                    "itself must be written with fewer partitions (DataFrame.coalesce).",
                    PutStatus.OS_PAGECACHE_BUSY,
                )
            folder = self._folder / stage_id
            stage = Stage(self, self._admission, stage_id, owner, folder, identity)
            self._stages[stage_id] = stage
            self._held[stage_id] = 0
            return stage

    def reserve(self, stage: Stage, count: int) -> None:
        """Reserve room for bytes that a stage is about to take.

        Raises:
            RefusedError: there would be too many.
        """
        with self._lock:
            held = self._held.get(stage.stage_id, 0)
            if held + count > self._limits.max_stage_bytes:
                raise RefusedError(
                    f"The stage {stage.stage_id} would have {held + count} bytes, and one task "
                    f"may stage {self._limits.max_stage_bytes} (stagingMaxStageBytes). Write "
                    "with more partitions.",
                    PutStatus.MESSAGE_ILLEGAL,
                )
            total = self.staged_bytes + count
            if total > self._limits.max_bytes:
                raise RefusedError(
                    f"Staged data would have {total} bytes, and stagingMaxBytes is "
                    f"{self._limits.max_bytes}. Wait for other batches, or raise it.",
                    PutStatus.OS_PAGECACHE_BUSY,
                )
            self._held[stage.stage_id] = held + count
            self.staged_bytes = total

    def claim(self, wanted: Sequence[StageInfo], identity: str = "") -> list[Stage]:
        """Take stages out of the table for a commit. Nobody else can commit or abort them then.

        Args:
            wanted: what tasks report about their stages.
            identity: the identity in the client's certificate; empty if there is none.

        Returns:
            The stages, in the order in which they were named.

        Raises:
            RefusedError: a stage is missing, unfinished, belongs to another client, or holds
                something else; nothing was taken.
        """
        with self._lock:
            if len({info.stage_id for info in wanted}) < len(wanted):
                raise RefusedError("A commit names a stage twice.", PutStatus.MESSAGE_ILLEGAL)
            self._require_own((info.stage_id for info in wanted), identity)
            for info in wanted:
                self._require_as_said(info)
            stages = [self._stages.pop(info.stage_id) for info in wanted]
            self._claimed.update((stage.stage_id, stage) for stage in stages)
            return stages

    def topics(self, wanted: Sequence[StageInfo]) -> Counter[str]:
        """Return the rows of each topic in stages; nothing for a stage that is not here."""
        found: Counter[str] = Counter()
        with self._lock:
            for info in wanted:
                stage = self._stages.get(info.stage_id)
                found.update(stage.topics if stage is not None else {})
        return found

    def _require_own(self, stage_ids: Iterable[str], identity: str) -> None:
        for stage_id in stage_ids:
            stage = self._stages.get(stage_id) or self._claimed.get(stage_id)
            if stage is not None and is_another(identity, stage.identity):
                raise RefusedError(
                    f"The stage {stage_id} belongs to the client {stage.identity!r}, and "
                    f"{identity!r} may not commit or abort it. Give the driver and the executors "
                    "of one application certificates with the same subject alternative name.",
                    PutStatus.NO_PERMISSION,
                )

    def _require_as_said(self, info: StageInfo) -> None:
        stage = self._stages.get(info.stage_id)
        if stage is None or not stage.finished:
            why = self._gone.get(info.stage_id, _ELSEWHERE)
            why = why if stage is None else "not finished"
            raise RefusedError(
                f"The commit misses the stage {info.stage_id[:64]}: it was {why}. {_AGAIN}",
                PutStatus.MESSAGE_ILLEGAL,
            )
        if stage.info != info:
            raise RefusedError(
                f"The stage {info.stage_id} differs from what its task reported: {stage.info} "
                f"here, {info} there. {_AGAIN}",
                PutStatus.MESSAGE_ILLEGAL,
            )

    def give_back(self, stages: Iterable[Stage]) -> None:
        """Put claimed stages back after a commit that failed, so that it can be repeated."""
        for stage in stages:
            with self._lock:
                del self._claimed[stage.stage_id]
                why = self._gone.get(stage.stage_id)
                if why is None:
                    self._stages[stage.stage_id] = stage
            if why is not None:
                self._drop(stage, why)

    def finish(self, stages: Iterable[Stage]) -> None:
        """Remove claimed stages that were committed."""
        for stage in stages:
            self._drop(stage, "committed")

    def abort(self, stage_ids: Iterable[str], why: str = "aborted", identity: str = "") -> None:
        """Remove stages, so that they cannot be begun or committed again.

        Stages that were committed, or that nobody began, cause no error.

        Args:
            stage_ids: the stages.
            why: the reason that later errors state: "it was {why}".
            identity: the identity in the client's certificate; empty if there is none.

        Raises:
            RefusedError: a stage belongs to another client; nothing was removed.
        """
        ids = [stage_id for stage_id in stage_ids if _STAGE_ID.fullmatch(stage_id)]
        with self._lock:
            self._require_own(ids, identity)
            found = [self._stages.pop(stage_id, None) for stage_id in ids]
            for stage_id in ids:
                self._remember_why_gone(stage_id, why)
        for stage in found:
            if stage is not None:
                self._drop(stage, why)

    def discard(self, stage: Stage) -> None:
        """Remove a stage whose writer went away, unless it is being committed.

        Its id can be used again.
        """
        with self._lock:
            if self._stages.get(stage.stage_id) is not stage:
                return
            del self._stages[stage.stage_id]
            self._release(stage)
        stage.remove("it was discarded")

    def forget(self, stage: Stage, why: str) -> None:
        """Remove a stage that has closed itself."""
        with self._lock:
            if self._stages.get(stage.stage_id) is stage:
                del self._stages[stage.stage_id]
                self._release(stage)
                self._remember_why_gone(stage.stage_id, why)

    def expire(self) -> int:
        """Remove stages that nobody has touched for the timeout; return their number.

        The memory and the files that ended stages have left go when no stage ends for a while.
        """
        now = self.clock()
        if self._ended != self._seen[0]:
            self._seen = self._ended, now
        elif not 0 <= now - self._seen[1] < _SPARE_MS:  # the clock may have gone back
            self._drop_spares()
        with self._lock:
            for stage in self._stages.values():
                stage.touched = min(stage.touched, now)  # a clock that went back expires nothing
            late = [s for s in self._stages.values() if now - s.touched >= self._limits.timeout_ms]
            for stage in late:
                del self._stages[stage.stage_id]
        for stage in late:
            _log.warning(
                "Removed the stage %s of %s (%d rows): it was not used for %d ms.",
                stage.stage_id, stage.owner or "a task", stage.info.rows, self._limits.timeout_ms,
            )  # fmt: skip
            self._drop(stage, "removed after stagingTimeout")
        return len(late)

    def close(self) -> None:
        """Remove all stages."""
        with self._lock:
            stages = list(self._stages.values())
            self._stages.clear()
        for stage in stages:
            self._drop(stage, "removed when the store was closed")
        self._drop_spares()

    def _drop_spares(self) -> None:
        self.memory.drop()
        self.spares.drop()

    def _drop(self, stage: Stage, why: str) -> None:
        stage.remove(f"it was {why}")
        with self._lock:
            self._release(stage)
            self._remember_why_gone(stage.stage_id, why)

    def _release(self, stage: Stage) -> None:
        self._ended += 1
        self.staged_bytes -= self._held.pop(stage.stage_id, 0)
        self._claimed.pop(stage.stage_id, None)

    def _remember_why_gone(self, stage_id: str, why: str) -> None:
        """Remember why a stage is gone. An earlier reason stays."""
        self._gone.setdefault(stage_id, why)
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
