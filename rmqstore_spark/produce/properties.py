"""Joins the properties of messages that are about to be stored, as a producer's client does.

See docs/format.md, "A CommitLog record" (upstream: MessageDecoder.messageProperties2String).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.constants import (
    KEY_SEPARATOR,
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rmqstore_spark.layout.record.properties import encode_properties
from rmqstore_spark.layout.spans import join_texts

DELIVERY_PROPERTIES: Final = (
    PROPERTY_DELAY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QID,
    PROPERTY_TRAN_MSG,
    PROPERTY_CRC32,
    PROPERTY_WAIT,
)
"""Properties that request or describe a delivery. They are not copied with a message."""

DELIVERY_PREFIX: Final = "INNER_MULTI_"

_SEPARATORS: Final = NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR
_PATTERN: Final = f"[{_SEPARATORS}]"
_CRC_LEAD: Final = f"{PROPERTY_CRC32}{NAME_VALUE_SEPARATOR}".encode()
_CRC_TAIL: Final = 11
"""Bytes that follow it in a record that ends with the CRC property."""


def join_keys(keys: pa.ListArray) -> pa.StringArray:
    """Return KEYS for n lists of keys; empty if a list has no key. Null keys are left out.

    Raises:
        RowError: a key contains a space, and would be read as two keys.
    """
    offsets, flat = _own_part(keys.offsets, keys.values)
    if _may_hold(flat, KEY_SEPARATOR):
        _refuse(
            pc.match_substring(flat, KEY_SEPARATOR),
            offsets,
            "has a key with a space, the separator of keys",
        )
    if flat.null_count:
        present = pc.is_valid(flat).to_numpy(zero_copy_only=False)
        kept = np.concatenate([[0], np.cumsum(present)])
        offsets = pa.array(kept[offsets].astype(np.int32))
        flat = flat.drop_null()
    return pc.binary_join(pa.ListArray.from_arrays(offsets, flat), KEY_SEPARATOR)


def property_of(maps: pa.MapArray, name: str) -> pa.StringArray:
    """Return one property of n maps, the last of that name; null if it is missing."""
    return pc.map_lookup(maps, pa.scalar(name), "last")


def join_properties(
    uniq_key: pa.StringArray,
    keys: pa.StringArray | None = None,
    tags: pa.StringArray | None = None,
    maps: pa.MapArray | None = None,
    delay: pa.StringArray | None = None,
) -> pa.BinaryArray:
    """Return the properties of n messages as they are stored.

    UNIQ_KEY comes first, then KEYS, TAGS, DELAY and the properties of the maps. From the maps,
    UNIQ_KEY and delivery properties are left out, and KEYS and TAGS if they have a column.

    Args:
        uniq_key: n ids, none null.
        keys, tags: n values; null or empty if a message has none.
        maps: n maps; a property whose value is null is left out.
        delay: n delay levels as texts; null if a message has none.

    Raises:
        RowError: a name or value is empty or contains a separator, or all of them together are too
            long.
    """
    _refuse_separator(PROPERTY_UNIQ_KEY, uniq_key)
    named = [(PROPERTY_UNIQ_KEY, uniq_key)]
    for name, column in (PROPERTY_KEYS, keys), (PROPERTY_TAGS, tags), (PROPERTY_DELAY, delay):
        if column is not None:
            _refuse_separator(name, column)
            named.append((name, column))
    columns = [(f"{name}{NAME_VALUE_SEPARATOR}", _binary(column)) for name, column in named]
    if maps is not None:
        columns.append(("", encode_properties(_kept(maps, [name for name, _ in named]))))
    leads = [PROPERTY_SEPARATOR * (place > 0) + lead for place, (lead, _) in enumerate(columns)]
    joined = join_texts(leads, [column for _, column in columns])
    sizes = pc.binary_length(joined).to_numpy()
    if len(sizes) and sizes.max() > MAX_PROPERTIES_LENGTH:
        row = int(sizes.argmax())
        raise RowError(
            row,
            f"has {sizes[row]:,} bytes of properties, tags and keys; a record holds at "
            f"most {MAX_PROPERTIES_LENGTH:,} (PROPERTIES_SIZE_EXCEEDED). Put large values into the "
            "body",
        )
    _refuse_crc_property(joined)
    return joined


def _refuse_separator(name: str, column: pa.StringArray) -> None:
    if _may_hold(column, PROPERTY_SEPARATOR):
        held = pc.match_substring(column, PROPERTY_SEPARATOR)
        _refuse(held, None, f"has the character 0x02, the separator of properties, in {name}")


def _refuse_crc_property(joined: pa.BinaryArray) -> None:
    """Refuse properties that readers, and therefore the store, would take for a record's CRC."""
    # Most texts have no "#": looking for one character is much cheaper than for the name.
    if not _may_hold(joined, "#") or joined.buffers()[2].to_pybytes().find(_CRC_LEAD) < 0:
        return
    lead = pc.binary_slice(joined, -_CRC_TAIL - len(_CRC_LEAD), -_CRC_TAIL)
    _refuse(
        pc.equal(lead, _CRC_LEAD),
        None,
        f"has properties that end like the CRC of RocketMQ 5 ({PROPERTY_CRC32}): readers would "
        "report the message as damaged. Rename the last property",
    )


def _kept(maps: pa.MapArray, replaced: list[str]) -> pa.MapArray:
    """Return the maps with null in place of the values that must not be stored."""
    offsets, names, values = _own_part(maps.offsets, maps.keys, maps.items)
    dropped = pc.is_in(names, pa.array([*DELIVERY_PROPERTIES, *replaced]))
    dropped = pc.or_(dropped, pc.starts_with(names, DELIVERY_PREFIX))
    if pc.any(dropped).as_py():
        values = pc.if_else(dropped, pa.scalar(None, pa.string()), values)
    if _may_hold(names, *_SEPARATORS):
        held = pc.match_substring_regex(names, _PATTERN)
        _refuse(held, offsets, "has a property with the character 0x01 or 0x02 in its name")
    if _may_hold(values, PROPERTY_SEPARATOR):
        held = pc.match_substring(values, PROPERTY_SEPARATOR)
        _refuse(held, offsets, "has a property with the character 0x02 in its value")
    empty = pc.or_(pc.equal(pc.binary_length(names), 0), pc.equal(pc.binary_length(values), 0))
    _refuse(
        empty,
        offsets,
        "has a property with an empty name or value, which a record cannot hold. Set the value to "
        "null to leave it out",
    )
    return pa.MapArray.from_arrays(offsets, names, values)


def _own_part(offsets: pa.Array, *columns: pa.Array) -> tuple[pa.Array, ...]:
    """Return the parts for the rows of a list or map, which can be a slice of a much longer one."""
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    moved = pa.array(offsets.to_numpy() - np.int32(first))
    return (moved, *(column.slice(first, last - first) for column in columns))


def _binary(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())


def _may_hold(column: pa.Array, *characters: str) -> bool:
    """Return whether any text of a column contains one of some ASCII characters."""
    _, offset_buffer, data = column.buffers()
    if data is None or not len(column):
        return False
    bounds = np.frombuffer(offset_buffer, np.int32)
    raw = np.frombuffer(data, np.uint8)
    raw = raw[bounds[column.offset] : bounds[column.offset + len(column)]]
    return any(bool((raw == ord(character)).any()) for character in characters)


def _refuse(wrong: pa.BooleanArray, offsets: pa.Array | None, cause: str) -> None:
    """Raise an error for the first row that is wrong.

    Args:
        wrong: n bools, or as many as `offsets` delimits; null is not wrong.
        offsets: n + 1, where each row's part of `wrong` begins.
    """
    if not pc.any(wrong).as_py():
        return
    at = int(pc.index(wrong, value=True).as_py())
    row = at if offsets is None else int(np.searchsorted(offsets.to_numpy(), at, "right")) - 1
    raise RowError(row, cause)
