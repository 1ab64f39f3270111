"""How many rows each queue has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["QueueName", "Tally"]

QueueName: TypeAlias = tuple[str, str, int]
"""Broker, topic, queue id."""


class Tally(Counter[QueueName]):
    """Rows by queue."""

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
        names = topics.dictionary
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            topic = names[int(code) >> 32].as_py()
            self[broker, topic, int(code) & 0xFFFFFFFF] += int(count)

    def to_json(self) -> list[tuple[str, str, int, int]]:
        """Bring it into a form for JSON, in a fixed order."""
        return [(*name, self[name]) for name in sorted(self)]

    @classmethod
    def from_json(cls, stored: Iterable[Sequence[object]]) -> Tally:
        """Read it back."""
        tally = cls()
        for broker, topic, queue_id, count in stored:
            tally[str(broker), str(topic), int(str(queue_id))] = int(str(count))
        return tally
