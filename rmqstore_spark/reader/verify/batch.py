"""Records of a stretch of the log, with what several checks need of them worked out once."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.properties import find_properties
from rmqstore_spark.layout.record import Records
from rmqstore_spark.layout.spans import I8, Spans, string_array
from rmqstore_spark.reader.commitlog import CommitLog
from rmqstore_spark.reader.verify.findings import Place

__all__ = ["LogBatch"]

_NAMES: Final = (
    PROPERTY_TAGS,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)


class LogBatch:
    """n records that hold together.

    Args:
        log: where they lie.
        records: as `decode_records` gives them.
        offsets: n physical offsets that they were read from.
    """

    def __init__(self, log: CommitLog, records: Records, offsets: I8) -> None:
        self._log = log
        self.records = records
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.records)

    def place(self, row: int) -> Place:
        """File and offset of a record."""
        return self._log.place(int(self.offsets[row]))

    @cached_property
    def _topics(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        encoded = string_array(self.records.topic).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()

    @property
    def topics(self) -> list[str]:
        """The topics that occur."""
        return self._topics[0]

    @property
    def topic_codes(self) -> npt.NDArray[np.int32]:
        """Which of `topics` is that of each record."""
        return self._topics[1]

    @cached_property
    def transaction(self) -> npt.NDArray[np.int32]:
        """The transaction bits of each sysFlag."""
        return self.records.sys_flag & TRANSACTION_MASK

    @cached_property
    def _found(self) -> dict[str, Spans]:
        return find_properties(self.records.properties, _NAMES)

    def named(self, name: str) -> Spans:
        """The values of one of a few properties."""
        return self._found[name]
