"""The part of the configuration that recovery needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmqstore_spark.engine.dispatch.indexes import IndexShape
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS

Progress: TypeAlias = Callable[[str, int, int], object]
"""Called with the current step, the bytes done and the total bytes."""

_USUAL_SHAPE: Final = IndexShape()


@dataclass(frozen=True)
class RecoverySettings:
    """The part of a store's configuration that recovery needs.

    Attributes:
        queue_file_size: `mappedFileSizeConsumeQueue`, for a store without queues; the default of
            the queues' format if None.
        index_shape: `maxHashSlotNum` and `maxIndexNum`, for a store without index files; None
            if the store keeps no index (`messageIndexEnable=false`).
        delay_levels: `messageDelayLevel`.
        cut: cut the log even where this removes bytes that were known to be flushed.
        is_full: the disk is known to have no room: the guard may be without content, and what was
            found need not be recorded.
        rebuild: rebuild all queues and the index from the log, even if they are valid.
    """

    queue_file_size: int | None = None
    index_shape: IndexShape | None = _USUAL_SHAPE
    delay_levels: str = DELAY_LEVELS
    cut: bool = False
    rebuild: bool = False
    is_full: bool = False
