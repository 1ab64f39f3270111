"""Turns raw records into rows: checks, filters and decompresses them, and builds batches.

These are all the checks that the format allows. It has a checksum for the body alone. So a record
must also lie at the physical offset that it states, be as long as its queue entry says, and be the
message that the queue expects in that slot (docs/format.md, "A CommitLog record").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import CorruptRecordError, OptionError
from rmqstore_spark.layout.compression import MAX_UNPACKED, BodyTooLargeError, decompress
from rmqstore_spark.layout.constants import (
    COMPRESSED_FLAG,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from rmqstore_spark.layout.record.columns import Identity, build_batch
from rmqstore_spark.layout.record.dispatches import are_as_claimed, belongs_to
from rmqstore_spark.layout.record.format import (
    STATUS_TEXT,
    Records,
    check_crcs,
)
from rmqstore_spark.layout.record.properties import find_properties, split_keys
from rmqstore_spark.layout.spans import I8, Spans, string_array
from rmqstore_spark.reader.options import ReadOptions

_log = logging.getLogger(__name__)

_NO_LIMIT: Final = 1 << 62


class Allowance:
    """Limits the memory that the messages of one read take.

    Args:
        most: maximum bytes of all batches together; by default there is no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _NO_LIMIT if most is None else most
        self.left = self._most

    def take(self, size: int) -> None:
        """Count a batch.

        Raises:
            OptionError: the batches take more than the limit.
        """
        self.left -= size
        if self.left < 0:
            raise self.exceeded()

    def exceeded(self) -> OptionError:
        """Return the error for messages that take more than the limit."""
        return OptionError(
            f"the messages found need more than {self._most} bytes. Request fewer, for example "
            "of a shorter time."
        )


def decompressed(
    records: Records, packed: npt.NDArray[np.bool_], batch_bytes: int, allowance: Allowance
) -> Iterator[tuple[npt.NDArray[np.int64], Spans, dict[int, str]]]:
    """Decompress the compressed bodies of n records, in groups of limited size.

    Args:
        records: the n records.
        packed: n, which bodies are compressed.
        batch_bytes: a group is complete when its decompressed bodies have more bytes than this.
        allowance: the memory that the read has left. A body that does not fit is not decompressed.

    Yields:
        The rows of a group, in order and without those that failed; their bodies; the causes of
        failed rows, by row.

    Raises:
        OptionError: the allowance is used up.
    """
    first = 0
    while first < len(records):
        last, unpacked, failed = _unpack_group(records, packed, first, batch_bytes, allowance)
        rows = np.setdiff1d(np.arange(first, last), list(failed))
        yield rows, _bodies(records, rows, unpacked), failed
        first = last


def _unpack_group(
    records: Records,
    packed: npt.NDArray[np.bool_],
    first: int,
    batch_bytes: int,
    allowance: Allowance,
) -> tuple[int, dict[int, bytes], dict[int, str]]:
    """Decompress from a row on until the group is full. The first result is the group's end."""
    body = records.body
    unpacked: dict[int, bytes] = {}
    failed: dict[int, str] = {}
    total = 0
    for row in (np.flatnonzero(packed[first:]) + first).tolist():
        start = int(body.starts[row])
        stored = body.buffer[start : start + int(body.lengths[row])]
        most = min(MAX_UNPACKED, allowance.left - total)
        try:
            unpacked[row] = decompress(stored, int(records.sys_flag[row]), most)
        except CorruptRecordError as error:
            if isinstance(error, BodyTooLargeError) and most < MAX_UNPACKED:
                raise allowance.exceeded() from None
            failed[row] = error.cause
            continue
        total += len(unpacked[row])
        if total > batch_bytes:
            return row + 1, unpacked, failed
    return len(records), unpacked, failed


def _bodies(records: Records, rows: npt.NDArray[np.int64], unpacked: dict[int, bytes]) -> Spans:
    """Return the bodies of some rows: decompressed if they were compressed, else as stored.

    Empties `unpacked`, so that no more than two copies of large bodies exist at a time.
    """
    targets = np.searchsorted(rows, list(unpacked))
    sizes = np.array([len(plain) for plain in unpacked.values()], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    joined = np.frombuffer(b"".join(unpacked.values()), np.uint8)
    unpacked.clear()
    if len(targets) == len(rows):
        return Spans(joined, starts, sizes, settled=True)
    body = records.body.take(rows)
    body.starts[targets] = len(body.buffer) + starts
    body.lengths[targets] = sizes
    return Spans(np.concatenate([body.buffer, joined]), body.starts, body.lengths)


class Decoder:
    """Turns records into record batches.

    Args:
        broker_name: the value of the column of that name.
        options: the options of the read.
        place: returns the file of a physical offset and the offset in it, for errors.
        max_bytes: maximum memory of all its batches together; by default there is no limit.
    """

    def __init__(
        self,
        broker_name: str,
        options: ReadOptions,
        place: Callable[[int], tuple[str, int]],
        max_bytes: int | None = None,
    ) -> None:
        self._broker = broker_name
        self._options = options
        self._place = place
        self._allowance = Allowance(max_bytes)
        self.dropped = 0

    def decode(
        self,
        records: Records,
        *,
        expected_offset: I8,
        expected_size: npt.NDArray[np.int32] | None = None,
        identity: Identity | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Check n records and build the columns of those that pass the filters.

        Yields one batch, or several if the decompressed bodies take more than `batch_bytes`.

        Args:
            records: as `decode_records` returns them.
            expected_offset: n physical offsets that the records were read from.
            expected_size: n sizes that the queue entries state, if there are entries.
            identity: the queue and slot of each record, if they were found through queues.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
            OptionError: the batches take more than `max_bytes`.
        """
        if self._options.check_crc and not records.crc_checked:
            records = check_crcs(records, bodies="body" in self._options.columns)
        if (
            identity is None
            or expected_size is None
            or not are_as_claimed(records, identity, expected_offset, expected_size)
        ):
            good = self._good(records, expected_offset, expected_size, identity)
            if not good.all():
                records, identity = _take(records, identity, np.flatnonzero(good))
        wanted = self.wanted(records)
        if wanted is not None:
            records, identity = _take(records, identity, wanted)
        packed = (records.sys_flag & COMPRESSED_FLAG) != 0
        wants_bodies = "body" in self._options.columns and self._options.decompress
        if not wants_bodies or not packed.any():
            yield self._build(records, None, identity)
            return
        batch_bytes = self._options.batch_bytes
        for rows, body, failed in decompressed(records, packed, batch_bytes, self._allowance):
            for row, cause in failed.items():
                self._reject(records.physical_offset[row : row + 1], cause)
            if len(rows) == len(records):
                yield self._build(records, body, identity)
            else:
                yield self._build(records.take(rows), body, identity and identity.take(rows))

    def _build(
        self, records: Records, body: Spans | None, identity: Identity | None
    ) -> pa.RecordBatch:
        batch = build_batch(
            records,
            self._options.columns,
            broker=self._broker,
            body=body,
            identity=identity,
            body_as_text=self._options.body_as_text,
        )
        self._allowance.take(batch.nbytes)
        return batch

    def _good(
        self,
        records: Records,
        expected_offset: I8,
        expected_size: npt.NDArray[np.int32] | None,
        identity: Identity | None,
    ) -> npt.NDArray[np.bool_]:
        """Return which records have no problem. Raise or log an error for the others."""
        good = np.ones(len(records), np.bool_)
        for bad, cause in self._problems(records, expected_offset, expected_size, identity):
            new = bad & good
            if new.any():
                self._reject(expected_offset[new], cause)
                good &= ~bad
        return good

    def _problems(
        self,
        records: Records,
        expected_offset: I8,
        expected_size: npt.NDArray[np.int32] | None,
        identity: Identity | None,
    ) -> list[tuple[npt.NDArray[np.bool_], str]]:
        sound, found = records.status == 0, []
        if not sound.all():
            found += [(records.status == status, text) for status, text in STATUS_TEXT.items()]
        found.append(
            (
                sound & (records.physical_offset != expected_offset),
                "a record states another physicalOffset than its own",
            )
        )
        if expected_size is not None:
            found.append(
                (
                    sound & (records.store_size != expected_size),
                    "the size of a record is not that of its queue entry",
                )
            )
        if identity is not None:
            found.append(
                (
                    ~belongs_to(records, identity),
                    "a record is not the message of its queue entry (topic, queueId, queueOffset)",
                )
            )
        return found

    def _reject(self, offsets: I8, cause: str) -> None:
        """Raise, or count and log the records that are left out."""
        file, at = self._place(int(offsets[0]))
        if self._options.mode == "FAILFAST":
            raise CorruptRecordError(cause, file=file, offset=at)
        self.dropped += len(offsets)
        _log.warning(
            "DROPMALFORMED: left out %d record(s), the first at offset %d of %s: %s",
            len(offsets), at, file, cause,
        )  # fmt: skip

    def wanted(self, records: Records) -> npt.NDArray[np.int64] | None:
        """Return which of n sound records pass the filters; None if there are no filters."""
        options = self._options
        if options.tags is None and options.keys is None:
            return None
        keep = np.ones(len(records), np.bool_)
        if options.tags is not None:
            tags = find_properties(records.properties, (PROPERTY_TAGS,))[PROPERTY_TAGS]
            keep &= is_in(string_array(tags), options.tags)
        if options.keys is not None:
            keep &= has_key(records, options.keys)
        return np.flatnonzero(keep)


def has_key(
    records: Records, keys: frozenset[str], *, uniq_only: bool = False
) -> npt.NDArray[np.bool_]:
    """Return which records an IndexFile would hold under one of these keys: UNIQ_KEY, or KEYS.

    Args:
        uniq_only: check UNIQ_KEY alone.
    """
    found = find_properties(records.properties, (PROPERTY_UNIQ_KEY, PROPERTY_KEYS))
    hit = is_in(string_array(found[PROPERTY_UNIQ_KEY]), keys)
    if not uniq_only:
        tokens = split_keys(found[PROPERTY_KEYS])
        owners = pc.list_parent_indices(tokens).to_numpy()
        hit[owners[is_in(tokens.flatten(), keys)]] = True
    return hit


def is_in(values: pa.StringArray, wanted: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Return which of n strings are among the wanted ones. A null never is."""
    hits = pc.is_in(values, value_set=pa.array(sorted(wanted), pa.string()))
    return np.array(hits.to_numpy(zero_copy_only=False), np.bool_)


def _take(
    records: Records, identity: Identity | None, rows: npt.NDArray[np.int64]
) -> tuple[Records, Identity | None]:
    return records.take(rows), identity.take(rows) if identity else None
