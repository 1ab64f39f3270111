"""Encodes messages as the body of a request that sends a batch to a broker.

    size 4 | magic 4 | body CRC 4 | flag 4 | body length 4 | body | properties length 2 | properties

for each message, one after the other. Magic and CRC are 0: brokers ignore them. Upstream:
MessageDecoder.encodeMessage.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.spans import I4, join_texts

_HEAD_BYTES: Final = 20
_FIXED_BYTES: Final = 22


def batch_entries(flags: I4, bodies: pa.BinaryArray, properties: pa.BinaryArray) -> pa.BinaryArray:
    """Return n messages as a batch has them; those that follow each other are a batch's body.

    Args:
        flags: n flags.
        bodies: n, none null.
        properties: n, none null, none longer than a record can hold.
    """
    count = len(bodies)
    sizes, lengths = (pc.binary_length(column).to_numpy() for column in (bodies, properties))
    heads = np.zeros((count, _HEAD_BYTES // 4), ">i4")
    heads[:, 0] = _FIXED_BYTES + sizes + lengths
    heads[:, 3] = flags
    heads[:, 4] = sizes
    tails = lengths.astype(">i2")
    columns = [_fixed(heads, _HEAD_BYTES), bodies, _fixed(tails, 2), properties]
    return join_texts(["", "", "", ""], columns)


def _fixed(values: npt.NDArray[np.signedinteger], width: int) -> pa.BinaryArray:
    """Return numbers as texts of some bytes each."""
    count = len(values)
    offsets = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
