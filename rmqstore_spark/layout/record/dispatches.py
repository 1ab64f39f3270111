"""Find the queues of a record, light queues included (docs/format.md, "Light queues")."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    LMQ_PREFIX,
    MULTI_DISPATCH_QUEUE_SPLITTER,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.format import (
    Records,
)
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, string_array


def belongs_to(records: Records, identity: Identity) -> npt.NDArray[np.bool_]:
    """Return which records are the messages that their queue entries refer to.

    A light queue's entry refers to a record that names the queue in its INNER_MULTI_DISPATCH
    property, with the entry's offset in INNER_MULTI_QUEUE_OFFSET (docs/format.md, "Light
    queues"). Damaged records count as belonging.
    """
    same = records.topic.equal(identity.topic)
    same &= records.queue_id == identity.queue_id
    same &= records.queue_offset == identity.queue_offset
    same |= records.status != 0
    others = np.flatnonzero(~same)
    if len(others):
        same[others] = _multi_dispatched(records.take(others), identity.take(others))
    return same


def are_as_claimed(records: Records, identity: Identity, offsets: I8, sizes: I4) -> bool:
    """Return whether all n records are sound, belong to their entries, and agree with them.

    False does not mean that a record is wrong: a light queue's entry can be right as well, which
    only `belongs_to` finds out.

    Args:
        offsets: n physical offsets that the entries state.
        sizes: n record sizes that they state.
    """
    topics = identity.topics
    return bool(
        kernel.active.as_claimed(
            records.buffer, records.positions, records.longs, records.ints, offsets, sizes,
            identity.queue_offset, identity.queue, topics.buffer, topics.starts, topics.lengths,
            identity.queue_ids,
        )
    )  # fmt: skip


def _multi_dispatched(records: Records, identity: Identity) -> npt.NDArray[np.bool_]:
    owner, names, queue_ids, slots = dispatches(records)
    topics = string_array(identity.topic).take(pa.array(owner))
    hits = np.array(pc.equal(names, topics).to_numpy(zero_copy_only=False), np.bool_)
    hits &= (slots == identity.queue_offset[owner]) & (queue_ids == identity.queue_id[owner])
    result = np.zeros(len(records), np.bool_)
    result[owner[hits]] = True
    return result


def dispatches(records: Records) -> tuple[I8, pa.StringArray, I4, I8]:
    """Return the additional queues of n records, from their properties.

    Returns:
        For each such queue: the record's row, the queue's topic and id, and the offset in it.
    """
    found = find_properties(
        records.properties, (PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET)
    )
    splitter = MULTI_DISPATCH_QUEUE_SPLITTER
    queues = pc.split_pattern(string_array(found[PROPERTY_INNER_MULTI_DISPATCH]), splitter)
    texts = pc.split_pattern(string_array(found[PROPERTY_INNER_MULTI_QUEUE_OFFSET]), splitter)
    paired = pc.equal(pc.list_value_length(queues), pc.list_value_length(texts))
    rows = np.flatnonzero(pc.fill_null(paired, False).to_numpy(zero_copy_only=False))
    queues, texts = queues.take(pa.array(rows)), texts.take(pa.array(rows)).flatten()
    numbers = pc.match_substring_regex(texts, "^[0-9]{1,18}$")
    known = np.flatnonzero(numbers.to_numpy(zero_copy_only=False))
    owner = rows[pc.list_parent_indices(queues).to_numpy()][known]
    names = queues.flatten().take(pa.array(known))
    slots = texts.take(pa.array(known)).cast(pa.int64()).to_numpy()
    light = pc.starts_with(names, LMQ_PREFIX).to_numpy(zero_copy_only=False)
    return owner, names, np.where(light, np.int32(0), records.queue_id[owner]), slots
