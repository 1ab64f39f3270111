"""Messages that producers might have sent, a batch at a time: what benchmarks and tests store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.spans import Spans, binary_array

__all__ = ["FIRST_TIME", "Traffic"]

FIRST_TIME: Final = 1_700_000_000_000
"""storeTimestamp of the first message, unless told otherwise: 2023-11-14, in milliseconds."""

_BATCH: Final = 20_000
_BATCH_BYTES: Final = 32 << 20
_POOL: Final = 4 << 20

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """Messages that producers might have sent; the same ones for the same settings.

    Each has UNIQ_KEY (32 hex digits of its number), KEYS (`order-` and ten digits of it), WAIT and
    TAGS, unless told otherwise. Bodies are printable.

    Args:
        messages: how many.
        first: the number of the first one.
        topics: name to number of queues.
        body_size: bytes of each body, or the least and the most.
        tags: each message has one of them, as likely as the others; none for no TAGS.
        keys: whether they have KEYS.
        burst: so many messages in a row go to the same queue.
        shuffled: the queue of a burst is drawn, else they take turns.
        first_time: storeTimestamp of the first, ms.
        per_millisecond: messages with the same storeTimestamp.
    """

    messages: int
    topics: Mapping[str, int] = field(default_factory=lambda: {"orders": 1})
    body_size: int | tuple[int, int] = 100
    tags: Sequence[str] = ("TagA", "TagB", "TagC")
    keys: bool = True
    burst: int = 1
    shuffled: bool = False
    first_time: int = FIRST_TIME
    per_millisecond: int = 10
    seed: int = 1
    first: int = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The messages, in batches for `StoreBuilder.append`."""
        least, most = self.body_size if isinstance(self.body_size, tuple) else (self.body_size,) * 2
        pool, state = _pool(self.seed, most)
        random = np.random.default_rng()
        random.bit_generator.state = state
        step = max(1, min(_BATCH, _BATCH_BYTES // (most + 200)))
        end = self.first + self.messages
        for first in range(self.first, end, step):
            numbers = np.arange(first, min(first + step, end))
            lengths = random.integers(least, most + 1, len(numbers), np.int32)
            starts = random.integers(0, _POOL, len(numbers))
            after = (numbers - self.first) // self.per_millisecond
            times = pa.array(self.first_time + after)
            topic, queue_id = self._queues(numbers, random)
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": topic,
                    "queueId": queue_id,
                    "body": binary_array(Spans(pool, starts, lengths)),
                    "properties": self._properties(numbers, random),
                    "bornTimestamp": times,
                    "storeTimestamp": times,
                }
            )

    def _queues(
        self, numbers: Rows, random: np.random.Generator
    ) -> tuple[pa.StringArray, pa.Int32Array]:
        every = [(topic, n) for topic, count in self.topics.items() for n in range(count)]
        names = pa.array([topic for topic, _ in every], pa.string())
        ids = np.array([n for _, n in every], np.int32)
        bursts = numbers // self.burst
        if self.shuffled:
            drawn = random.integers(0, len(every), int(bursts[-1] - bursts[0]) + 1)
            chosen = drawn[bursts - bursts[0]]
        else:
            chosen = bursts % len(every)
        return names.take(pa.array(chosen)), pa.array(ids[chosen])

    def _properties(self, numbers: Rows, random: np.random.Generator) -> pa.BinaryArray:
        pieces = [_same(b"UNIQ_KEY\x01C0A8010A2A9F18B4AAC2", numbers), _digits(numbers, 12)]
        pieces.append(_same(b"\x02WAIT\x01true", numbers))
        if self.keys:
            pieces += [_same(b"\x02KEYS\x01order-", numbers), _digits(numbers, 10)]
        table = np.concatenate(pieces, axis=1)
        offsets = (np.arange(len(numbers) + 1) * table.shape[1]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(table)]
        properties = pa.Array.from_buffers(pa.binary(), len(numbers), buffers)
        if not self.tags:
            return properties
        tags = pa.array([f"TAGS\x01{tag}".encode() for tag in self.tags], pa.binary())
        drawn = tags.take(pa.array(random.integers(0, len(tags), len(numbers))))
        return pc.binary_join_element_wise(properties, drawn, b"\x02")


@lru_cache(maxsize=8)  # it takes longer than a few messages
def _pool(seed: int, most: int) -> tuple[npt.NDArray[np.uint8], Any]:
    """What bodies are cut from, and the state of the generator behind it."""
    random = np.random.default_rng(seed)
    pool = random.integers(ord("0"), ord("z") + 1, _POOL + most, np.uint8)
    return pool, random.bit_generator.state


def _same(piece: bytes, numbers: Rows) -> npt.NDArray[np.uint8]:
    """(n, width) uint8: the same bytes in each row."""
    return np.broadcast_to(np.frombuffer(piece, np.uint8), (len(numbers), len(piece)))


def _digits(numbers: Rows, width: int) -> npt.NDArray[np.uint8]:
    """(n, width) uint8: decimal digits."""
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
