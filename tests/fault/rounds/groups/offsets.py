"""Queue offsets in a group's log that a leader has given again, or passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from tests.engine.group.stores import text_of

__all__ = ["OddOffset", "odd_offsets"]

_HOST: Final = slice(64, 72)
"""Of a record: the address of the broker that took the message."""


class OddOffset(NamedTuple):
    """A message whose queue offset does not follow that of the one before in its queue.

    Attributes:
        entry: the index of its entry.
        term: of its entry.
        leader: who took it, as its store host says.
        queue_id: its queue.
        offset: which it was given.
        expected: which it should have been given.
        text: of it.
    """

    entry: int
    term: int
    leader: str
    queue_id: int
    offset: int
    expected: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.leader} gave entry {self.entry}, of term {self.term}, the offset {self.offset} "
            f"of queue {self.queue_id} in place of {self.expected}: {self.text[:20]}"
        )


def odd_offsets(entries: Sequence[bytes], ports: Mapping[str, int]) -> Iterator[OddOffset]:
    """Find them.

    Args:
        entries: all of a log, with their headers.
        ports: where the members listen for clients.
    """
    leaders = {port: me for me, port in ports.items()}
    ends: dict[tuple[bytes, int], int] = {}
    for index, entry in enumerate(entries):
        record = entry[ENTRY_HEADER_SIZE:]
        queue_id = int.from_bytes(record[12:16], "big")
        offset = int.from_bytes(record[20:28], "big")
        queue = _topic_of(record), queue_id
        expected = ends.get(queue, 0)
        if offset != expected:
            port = int.from_bytes(record[_HOST][4:], "big")
            yield OddOffset(
                index, int.from_bytes(entry[16:24], "big"), leaders.get(port, f"port {port}"),
                queue_id, offset, expected, text_of(record),
            )  # fmt: skip
        ends[queue] = max(expected, offset + 1)


def _topic_of(record: bytes) -> bytes:
    at = 88 + int.from_bytes(record[84:88], "big")
    return record[at + 1 : at + 1 + record[at]]
