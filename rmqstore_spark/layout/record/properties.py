"""Convert properties, `name 0x01 value 0x02 name 0x01 value`, to and from Arrow maps.

See docs/format.md, "A CommitLog record" (upstream: MessageDecoder.messageProperties2String).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqstore_spark.layout.spans import (
    I4,
    I8,
    U1,
    Spans,
    array_spans,
    array_texts,
    binary_array,
    checked_strings,
    int_array,
    join_texts,
    string_array,
)

MAP_TYPE = pa.map_(pa.string(), pa.string())


def split_properties(
    spans: Spans, wanted: tuple[str, ...] = ()
) -> tuple[pa.MapArray, dict[str, Spans]]:
    """Split the properties of n records.

    A property without a name or a value is dropped. If a name occurs twice, the last value counts.

    Args:
        spans: n spans of at most 32,767 bytes each.
        wanted: names of at most 8 properties to find as well.

    Returns:
        The properties as maps, empty for a record without any; and the values of the wanted
        properties, see `find_properties`.
    """
    n, total = len(spans), int(np.maximum(spans.lengths, 0).sum(dtype=np.int64))
    room = (total + n) // 4 + 1  # the shortest property takes three bytes and a separator
    rows = np.empty(n + 1, np.int32)
    name_ends, value_ends = np.empty(room, np.int32), np.empty(room, np.int32)
    names, values = pa.allocate_buffer(total), pa.allocate_buffer(total)
    at, length = _found_arrays(wanted, n)
    m = kernel.active.properties(
        spans.buffer, spans.starts, spans.lengths, rows,
        name_ends, np.frombuffer(names, np.uint8), value_ends, np.frombuffer(values, np.uint8),
        _encoded(wanted), at, length,
    )  # fmt: skip
    texts = _texts(name_ends, names, m), _texts(value_ends, values, m)
    maps = pa.MapArray.from_arrays(int_array(rows), *texts)
    return maps, _by_name(wanted, spans.buffer, at, length)


def _texts(offsets: I4, data: pa.Buffer, n: int) -> pa.StringArray:
    return checked_strings(offsets[: n + 1], data.slice(0, int(offsets[n])))


def find_properties(spans: Spans, names: tuple[str, ...]) -> dict[str, Spans]:
    """Return the values of at most 8 properties by name; length -1 for a row without one."""
    at, length = _found_arrays(names, len(spans))
    kernel.active.find_properties(
        spans.buffer, spans.starts, spans.lengths, _encoded(names), at, length
    )
    return _by_name(names, spans.buffer, at, length)


def _encoded(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


def _found_arrays(names: tuple[str, ...], n: int) -> tuple[I8, I4]:
    return np.empty((len(names), n), np.int64), np.empty((len(names), n), np.int32)


def _by_name(names: tuple[str, ...], buffer: U1, at: I8, length: I4) -> dict[str, Spans]:
    return {name: Spans(buffer, at[k], length[k]) for k, name in enumerate(names)}


def split_keys(keys: Spans) -> pa.ListArray:
    """Split KEYS values at runs of spaces into lists of strings; null for a row without KEYS."""
    room = (int(keys.lengths.sum(dtype=np.int64)) + len(keys)) // 2
    rows = np.empty(len(keys) + 1, np.int32)
    piece_at, piece_length = np.empty(room, np.int64), np.empty(room, np.int32)
    count = kernel.active.split_spaces(
        keys.buffer, keys.starts, keys.lengths, rows, piece_at, piece_length
    )
    pieces = string_array(Spans(keys.buffer, piece_at[:count], piece_length[:count]))
    missing = keys.lengths < 0
    if not missing.any():
        return pa.ListArray.from_arrays(int_array(rows), pieces)
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = pa.list_(pa.string())
    return pa.Array.from_buffers(kind, len(keys), [validity, pa.py_buffer(rows)], children=[pieces])


def encode_properties(maps: pa.MapArray) -> pa.BinaryArray:
    """Encode n maps, in the maps' own order and without a separator at the end.

    Nulls (a whole map, or one value) are left out.

    Raises:
        OptionError: a name or value could not be read back. (RocketMQ's own encoder writes them
            unchanged.)
    """
    _require_readable(maps)
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names, values = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    rows = offsets - first
    if values.null_count:
        present = values.is_valid()
        rows = np.append(0, np.cumsum(present.to_numpy(zero_copy_only=False)))[rows]
        names, values = names.filter(present), values.filter(present)
    pairs = join_texts(
        (PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR),
        (names.cast(pa.binary()), values.cast(pa.binary())),
    )
    ends, buffer = array_texts(pairs)
    starts = ends[rows[:-1]].astype(np.int64) + 1  # without the separator in front
    lengths = (ends[rows[1:]] - starts).astype(np.int32)
    return binary_array(Spans(buffer, starts, np.maximum(lengths, 0)))


def _require_readable(maps: pa.MapArray) -> None:
    """Refuse properties that would read back differently (docs/format.md, "Properties")."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    names, values = maps.keys[first:last], maps.items[first:last]
    for texts, what, separators in ((names, "name", b"\x01\x02"), (values, "value", b"\x02")):
        bad = pc.equal(pc.binary_length(texts), 0)
        if _holds_any(texts, separators):  # rare, so each text is checked only now
            bad = pc.or_(bad, pc.match_substring_regex(texts, f"[{separators.decode()}]"))
        found = pc.index(pc.and_kleene(bad, pc.is_valid(values)), True).as_py()
        if found < 0:
            continue
        row = int(np.searchsorted(maps.offsets.to_numpy(), first + found, side="right")) - 1
        cause = "holds a byte that separates properties (1 or 2 in a name, 2 in a value)"
        if not texts[found].as_py():
            cause = "is empty"
        raise OptionError(
            f"Row {row}: the {what} of property {names[found].as_py()!r} {cause}, so it could not "
            "be read back. Change it, or leave the property out."
        )


def _holds_any(texts: pa.StringArray, wanted: bytes) -> bool:
    """Return whether the texts contain one of some bytes; values under nulls may count too."""
    spans = array_spans(texts.cast(pa.binary()))
    if not len(spans):
        return False
    data = spans.buffer[spans.starts[0] : spans.starts[-1] + max(0, spans.lengths[-1])]
    return any(bool((data == byte).any()) for byte in wanted)
