"""Holds a batch of records, and computes once what several checks need of them."""

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
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, Spans
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.verify.findings import Place
from rmqstore_spark.verify.topic_numbers import TopicNumbers

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
    """n records whose structure is sound.

    Args:
        log: the log that holds them.
        records: as `decode_records` returns them.
        offsets: n physical offsets that they were read from.
        table: numbers their topics.
    """

    def __init__(self, log: CommitLog, records: Records, offsets: I8, table: TopicNumbers) -> None:
        self._log = log
        self._table = table
        self.records = records
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.records)

    def place(self, row: int) -> Place:
        """Return the file and offset of a record."""
        return self._log.place(int(self.offsets[row]))

    @property
    def topics(self) -> list[str]:
        """All topics seen so far."""
        return self._table.names

    @cached_property
    def topic_codes(self) -> I4:
        """The number of each record's topic in `topics`."""
        return self._table.codes(self.records.topic)

    @cached_property
    def transaction(self) -> npt.NDArray[np.int32]:
        """The transaction bits of each record's sysFlag."""
        return self.records.sys_flag & TRANSACTION_MASK

    @cached_property
    def _found(self) -> dict[str, Spans]:
        return find_properties(self.records.properties, _NAMES)

    def named(self, name: str) -> Spans:
        """Return the values of a property, one of those that the checks use."""
        return self._found[name]
