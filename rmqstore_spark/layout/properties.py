"""Properties: `name 0x01 value 0x02 name 0x01 value` to and from Arrow maps.

See docs/format.md, "A CommitLog record" (upstream: MessageDecoder.messageProperties2String).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqstore_spark.layout.spans import Spans, string_array

__all__ = ["MAP_TYPE", "decode_properties", "encode_properties", "find_properties", "split_keys"]

MAP_TYPE = pa.map_(pa.string(), pa.string())


def decode_properties(spans: Spans) -> pa.MapArray:
    """Take the properties of n records apart.

    A piece without a name or without a value is dropped; of a name given twice the last value
    counts. A row without properties gives an empty map.
    """
    # The shortest property takes three bytes and a separator.
    room = int(((np.maximum(spans.lengths, 0).astype(np.int64) + 1) // 4).sum())
    rows = np.empty(len(spans) + 1, np.int32)
    name_at, value_at = np.empty(room, np.int64), np.empty(room, np.int64)
    name_length, value_length = np.empty(room, np.int32), np.empty(room, np.int32)
    count = kernel.active.properties(
        spans.buffer, spans.starts, spans.lengths, rows, name_at, name_length, value_at,
        value_length,
    )  # fmt: skip
    names = string_array(Spans(spans.buffer, name_at[:count], name_length[:count]))
    values = string_array(Spans(spans.buffer, value_at[:count], value_length[:count]))
    return pa.MapArray.from_arrays(pa.array(rows), names, values)


def find_properties(spans: Spans, names: tuple[str, ...]) -> dict[str, Spans]:
    """The values of a few properties (at most 8), by name; length -1 where a row has none."""
    value_at = np.empty((len(names), len(spans)), np.int64)
    value_length = np.empty((len(names), len(spans)), np.int32)
    encoded = tuple(name.encode() for name in names)
    kernel.active.find_properties(
        spans.buffer, spans.starts, spans.lengths, encoded, value_at, value_length
    )
    return {name: Spans(spans.buffer, value_at[k], value_length[k]) for k, name in enumerate(names)}


def split_keys(keys: Spans) -> pa.ListArray:
    """Cut KEYS values at runs of spaces into lists of strings; null where a row has no KEYS."""
    room = int(((np.maximum(keys.lengths, 0).astype(np.int64) + 1) // 2).sum())
    rows = np.empty(len(keys) + 1, np.int32)
    piece_at, piece_length = np.empty(room, np.int64), np.empty(room, np.int32)
    count = kernel.active.split_spaces(
        keys.buffer, keys.starts, keys.lengths, rows, piece_at, piece_length
    )
    pieces = string_array(Spans(keys.buffer, piece_at[:count], piece_length[:count]))
    missing = keys.lengths < 0
    return pa.ListArray.from_arrays(
        pa.array(rows), pieces, mask=pa.array(missing) if missing.any() else None
    )


def encode_properties(maps: pa.MapArray) -> pa.BinaryArray:
    """The bytes of n maps, in the maps' own order and without a separator at the end.

    Nulls (a whole map, or one value) are left out.
    """
    offsets = maps.offsets
    pairs = pc.binary_join_element_wise(maps.keys, maps.items, NAME_VALUE_SEPARATOR)
    lists = pa.ListArray.from_arrays(offsets, pairs)
    if pairs.null_count:
        present = pc.is_valid(pairs)
        kept = np.concatenate([[0], np.cumsum(present.to_numpy(zero_copy_only=False))])
        lists = pa.ListArray.from_arrays(
            pa.array(kept[offsets.to_numpy()].astype(np.int32)), pairs.drop_null()
        )
    joined = pc.binary_join(lists, PROPERTY_SEPARATOR)
    return joined.cast(pa.binary())
