"""Checks the names and sizes of a log's files, and the bytes after the end of the log."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.files.log_folders import Segment
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.walk import next_record
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import TornTail
from rmqstore_spark.verify.snapshot import TailUnit

__all__ = ["check_segments", "check_tail"]

_CHUNK = 4 << 20


def check_segments(
    segments: Segments, findings: Findings, kind: str, *, unit: int = 1, growing: bool = False
) -> None:
    """Check that the files of a log have one size and no gaps, and that there are no others.

    Otherwise a broker refuses to start.

    Args:
        kind: the kind of the problems.
        unit: bytes of an entry. A file must hold a whole number of entries.
        growing: a broker writes the files. A new file can be listed before it has its full length.
    """
    for stray in segments.strays:
        text = f"{stray.reason}: a broker refuses it"
        findings.say("note" if growing else "error", "stray-file", (stray.path, None), text)
    if not len(segments):
        return
    size, odd = _usual_size(segments)
    for segment in odd:
        findings.error(
            kind, (segment.path, None),
            f"the file differs in size from the others ({size} bytes): a broker refuses it",
        )  # fmt: skip
    last = segments[-1]
    if last.size != size:
        findings.say(
            "note" if last.size < size or growing else "error", kind, (last.path, last.size),
            f"the last file has {last.size} bytes, the others {size}: a broker refuses it",
        )  # fmt: skip
    for start, end in segments.gaps:
        place = ", ".join(segments.folders), None
        findings.error(kind, place, f"no file holds the log from {start} to {end}")
    for segment in segments:
        if segment.start % size or segment.start % unit:
            findings.error(
                kind, (segment.path, None),
                f"the name is not a multiple of the files' size ({size} bytes)",
            )  # fmt: skip


def _usual_size(segments: Segments) -> tuple[int, list[Segment]]:
    """Return the size of most files, and the files of other sizes except the last file."""
    sizes = Counter(segment.size for segment in segments)
    size = max(sizes, key=lambda value: (sizes[value], value))
    odd = {segment for segment in list(segments)[:-1] if segment.size != size}
    # A file that is too long overlaps the next one. `Segments` cuts it there.
    odd |= set(segments.odd_sizes) if segments.segment_size == size else {segments[0]}
    return size, sorted(odd)


def check_tail(log: CommitLog, unit: TailUnit, findings: Findings) -> None:
    """Look for bytes after the end of the log, which a crash left there."""
    segments = log.dledger if log.dledger is not None else log.plain
    last, at = -1, unit.start
    while at < unit.end:
        buffer = np.empty(min(_CHUNK, unit.end - at), np.uint8)
        try:
            filled = segments.read_into(at, buffer)
        except SegmentExpiredError:  # a file that should follow is missing
            following = segments.starts[segments.starts > at]
            if not len(following):
                break
            at = int(following[0])
            continue
        data = buffer[:filled]
        if data.any():
            last = at + int(np.flatnonzero(data)[-1])
        at += filled
    if last < 0:
        return
    segment = segments.locate(unit.start)
    findings.torn_tail = TornTail(
        unit.start,
        segment.path,
        unit.start - segment.start,
        last + 1 - unit.start,
        unit.cause,
        next_record(log, unit.start) is not None,
    )
