"""A record on its way into a store that is stored alone, without arrays of one value each.

`block` is for any number of records. A turn of the event loop that has a single message costs a
third of what it costs as a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.record.block import Route


@dataclass(slots=True)
class SingleRecord:
    """A checked record that gets an entry in its queue, without a delay, its body not compressed.

    Attributes:
        data: its bytes.
        route: its queue.
        tags_code: the tagsCode of its entry.
        keys: the hashes of its keys, as `index_hashes` returns them.
    """

    data: bytearray
    route: Route
    tags_code: int
    keys: tuple[int, ...]

    def stamp(
        self, queue_offset: int, physical_offset: int, store_timestamp: int, host: bytes
    ) -> None:
        """Fill in the fields that only the store knows; see `block.stamp_records`."""
        kernel.active.stamp_record(self.data, queue_offset, physical_offset, store_timestamp, host)
