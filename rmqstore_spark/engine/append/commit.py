"""A commit that writes its block, and what it holds up: messages that must come after the block.

See docs/writing.md, "Messages beside a commit".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.append.store_time import Ahead
from rmqstore_spark.engine.log.reserved import ReservedBlock
from rmqstore_spark.layout.record.block import Block, Route


class HeldUpError(Exception):
    """A commit holds up a block: its records for the same queues come first, or no room is left.

    Args:
        rows: see below.

    Attributes:
        rows: which records of the block it holds up; all of them, if they have no room before it.
    """

    def __init__(self, rows: npt.NDArray[np.bool_]) -> None:
        super().__init__("a commit to the same queues is under way, or leaves no room before it")
        self.rows = rows


@dataclass(frozen=True)
class Commit:
    """A commit that writes its block.

    Attributes:
        reserved: the block's place.
        next_offsets: the first offset of its records in each of their queues.
        topics: the topics of these.
        time: of its records, and when they may be part of the log.
        begin: where the log ended when it began.
    """

    reserved: ReservedBlock
    next_offsets: Mapping[Route, int]
    topics: frozenset[str]
    time: Ahead
    begin: int

    @property
    def timestamp(self) -> int:
        """The storeTimestamp of its records, milliseconds."""
        return self.time.timestamp

    def holds_up(self, routes: Iterable[Route]) -> bool:
        """Whether records for some queues have to wait for it."""
        return not self.next_offsets.keys().isdisjoint(routes)

    def rows_held_up(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return which records of a block have to wait for it, because of their queues."""
        held = [route in self.next_offsets for route in block.routes]
        return np.array(held, np.bool_)[block.route_of]
