"""Count the rows of each queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

QueueName: TypeAlias = tuple[str, str, int]
"""Broker, topic, queue id."""

_LISTED: Final = 10


class Tally(Counter[QueueName]):
    """Rows by queue."""

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """Add up several tallies."""
        whole = cls()
        for tally in tallies:
            whole.update(tally)
        return whole

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch.

        Args:
            batch: has the columns brokerName, topic and queueId; brokerName is the same in all.
        """
        if not batch.num_rows:
            return
        broker = batch.column("brokerName")[0].as_py()
        topics = batch.column("topic").dictionary_encode()
        # A queue id has 31 bits.
        codes = topics.indices.to_numpy().astype(np.int64) << 32
        codes += batch.column("queueId").to_numpy()
        names = topics.dictionary.to_pylist()
        for code, count in zip(*(part.to_pylist() for part in _counts(codes)), strict=True):
            self[broker, names[code >> 32], code & 0xFFFFFFFF] += count

    def to_json(self) -> list[tuple[str, str, int, int]]:
        """Convert to JSON, in a fixed order."""
        return [(*name, self[name]) for name in sorted(self)]

    @classmethod
    def from_json(cls, stored: Iterable[Sequence[object]]) -> Tally:
        """Create from JSON."""
        tally = cls()
        for broker, topic, queue_id, count in stored:
            tally[str(broker), str(topic), int(str(queue_id))] = int(str(count))
        return tally


def _counts(codes: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Return the distinct codes, and how often each occurs. NumPy would sort all of them."""
    found = pc.value_counts(pa.array(codes))
    return found.field("values"), found.field("counts")


def describe_difference(planned: Tally, written: Tally, *, less_is_fine: bool) -> str:
    """Describe the queues whose rows differ from the plan; empty if there are none.

    Args:
        less_is_fine: whether fewer rows than planned are accepted.
    """
    wrong = []
    for name in sorted(planned.keys() | written.keys()):
        wanted, count = planned[name], written[name]
        if count > wanted or (count < wanted and not less_is_fine):
            broker, topic, queue_id = name
            wrong.append(f"{topic}/{queue_id} of {broker}: {count:,} of {wanted:,} rows")
    more = f", and {len(wrong) - _LISTED:,} more queues" if len(wrong) > _LISTED else ""
    return ", ".join(wrong[:_LISTED]) + more
