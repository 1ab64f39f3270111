"""Describes a batch that was committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from rmqstore_spark.base.types import Content, is_digest, topics_with_most_rows
from rmqstore_spark.engine.batches.owners import is_identity

_MOST: Final = 2**63 - 1
_MOST_TIME: Final = 253_402_300_799_999  # the last millisecond of the year 9999


@dataclass(frozen=True)
class Committed:
    """A batch that was committed.

    Attributes:
        number: its number among its writer's batches.
        content: its content.
        bytes: bytes of its records.
        physical_offset: where its first record starts in the log.
        marker: where its marker starts in the log.
        time: storeTimestamp of its records, milliseconds; None for a marker of version 1 or 2.
        identity: the client that owns its writer; empty if clients had no certificates.
    """

    number: int
    content: Content
    bytes: int
    physical_offset: int
    marker: int
    time: int | None = None
    identity: str = ""

    @classmethod
    def of_values(
        cls, numbers: Sequence[Any], time: Any, digest: Any, topics: Any, identity: Any
    ) -> Committed:
        """Check what a file or a marker says of a commit.

        Args:
            numbers: number, rows, bytes, bytes of bodies or None, physicalOffset, marker.
            time: storeTimestamp, or None.
            digest: of its records, or None.
            topics: the rows of each topic. Those with the most are kept.
            identity: the client that owns the writer.

        Raises:
            ValueError: the values do not describe a commit.
        """
        number, rows, size, body_bytes, first, marker = numbers
        for one in (number, rows, size, 0 if body_bytes is None else body_bytes, first, marker):
            if not is_long(one):
                raise ValueError(f"{one!r:.40} is not the number of a commit")
        if time is not None and not (is_long(time) and time <= _MOST_TIME):
            raise ValueError(f"{time!r:.40} is not the time of a commit")
        if digest is not None and not is_digest(digest):
            raise ValueError(f"{digest!r:.40} is not a digest")
        if not isinstance(topics, dict) or not all(map(is_long, topics.values())):
            raise ValueError(f"{topics!r:.40} are not the rows of topics")
        if not is_identity(identity):
            raise ValueError(f"{identity!r:.40} is not an identity")
        content = Content(rows, body_bytes, digest, topics_with_most_rows(topics))
        return cls(number, content, size, first, marker, time, identity)

    def to_row(self) -> list[Any]:
        """Return its row in the file: what `of_values` takes, the numbers one by one."""
        content = self.content
        return [
            self.number, content.rows, self.bytes, content.body_bytes, self.physical_offset,
            self.marker, self.time, content.digest, dict(content.topics), self.identity,
        ]  # fmt: skip

    def __str__(self) -> str:
        content = self.content
        when = ""
        if self.time is not None:
            moment = datetime.fromtimestamp(self.time / 1000, timezone.utc)
            when = f", stored at {moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
        return f"{content}{when}, from {self.physical_offset} to its marker at {self.marker}"


def is_long(value: object) -> bool:
    """Return whether a value is a nonnegative number that fits into a long."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
