"""A record on its way into a store that is stored alone, without arrays of one value each.

`block` is for any number of records. A turn of the event loop that has a single message costs a
third of what it costs as a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.record.block import Route
from rmqstore_spark.layout.spans import U1


@dataclass(slots=True)
class SingleRecord:
    """A checked record that gets an entry in its queue, without a delay, its body not compressed.

    Attributes:
        data: its bytes.
        route: its queue.
        tags_code: the tagsCode of its entry.
        keys: the hashes of its keys, as `index_hashes` returns them.
    """

    data: bytearray | U1
    route: Route
    tags_code: int
    keys: tuple[int, ...]

    def stamp(
        self, queue_offset: int, physical_offset: int, store_timestamp: int, host: bytes
    ) -> None:
        """Fill in the fields that only the store knows; see `block.stamp_records`."""
        kernel.active.stamp_record(self.data, queue_offset, physical_offset, store_timestamp, host)


def single_record(
    data: U1, *, max_body: int, store_host_v6: bool, allowed_sys_flag: int
) -> SingleRecord | None:
    """Check bytes that a client wants to store, as `check_block` does, if they are one record.

    Returns:
        The record; None if `check_block` is to be asked, which tells what is wrong, if it is that.
    """
    found = kernel.active.check_single(data, max_body, int(store_host_v6), allowed_sys_flag)
    if found is None:
        return None
    topic, queue_id, tags_code, keys = found
    return SingleRecord(data, Route(topic, queue_id), tags_code, keys)
