"""How a store is kept, as far as its recovery must know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmqstore_spark.engine.dispatch.indexes import IndexShape
from rmqstore_spark.engine.dispatch.queues import DEFAULT_FILE_SIZE
from rmqstore_spark.verify.snapshot import DELAY_LEVELS

__all__ = ["Progress", "RecoverySettings"]

Progress: TypeAlias = Callable[[str, int, int], object]
"""Told what is being done, and how many bytes of how many are."""

_USUAL_SHAPE: Final = IndexShape()


@dataclass(frozen=True)
class RecoverySettings:
    """How a store is kept, as far as recovery must know.

    Attributes:
        queue_file_size: `mappedFileSizeConsumeQueue`, for a store without queues.
        index_shape: `maxHashSlotNum` and `maxIndexNum`, for a store without index files; None
            where no index is kept (`messageIndexEnable=false`).
        delay_levels: `messageDelayLevel`.
        cut: end the log even where that cuts off what was known to be flushed.
        rebuild: write all queues and the index anew from the log, whatever is known to hold.
    """

    queue_file_size: int = DEFAULT_FILE_SIZE
    index_shape: IndexShape | None = _USUAL_SHAPE
    delay_levels: str = DELAY_LEVELS
    cut: bool = False
    rebuild: bool = False
