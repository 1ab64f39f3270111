"""Finds the files of a log: their order, which are not part of it, and which overlap."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.files.systems.base import (
    FileInfo,
    Files,
    Listing,
    Skipped,
    join,
)

MAX_OFFSET: Final = (1 << 63) - 1

_NAME_DIGITS: Final = 20


class Segment(NamedTuple):
    """One file of a log.

    Attributes:
        start: log offset of its first byte.
        size: bytes of the log that it holds (the file's length, limited by the next file's start).
        path: the file.
    """

    start: int
    size: int
    path: str

    @property
    def end(self) -> int:
        """Log offset of the byte after its last one."""
        return self.start + self.size


class LogFiles(NamedTuple):
    """The result of `find_log_files`.

    Attributes:
        segments: the log's files by offset, each limited by the next one's start.
        file_sizes: the full length of each file.
        strays: everything else in the folders, and why it is not part of the log.
    """

    segments: list[Segment]
    file_sizes: list[int]
    strays: list[Skipped]


def find_log_files(folders: Sequence[str], listings: Iterable[Listing]) -> LogFiles:
    """Decide which files make up a log.

    Args:
        folders: the log's folders; if two hold the same name, the first one is used.
        listings: entries of each of the folders.
    """
    strays: list[Skipped] = []
    found: dict[int, Segment] = {}
    for folder, listing in zip(folders, listings, strict=True):
        prefix = join(folder, "")
        for info in listing:
            if info.name.startswith(GUARD_NAME):
                continue
            path = prefix + info.name
            start = segment_start(info.name)
            reason = _why_stray(info, start)
            if start is None or reason:
                strays.append(Skipped(path, reason))
            elif start in found:
                other = found[start].path
                strays.append(Skipped(path, f"{other} holds the same part of the log"))
            else:
                found[start] = Segment(start, info.size, path)
    ordered, inner = _without_overlaps([found[start] for start in sorted(found)])
    segments = [
        segment
        if segment.end <= following.start
        else segment._replace(size=following.start - segment.start)
        for segment, following in itertools.pairwise(ordered)
    ] + ordered[-1:]
    return LogFiles(segments, [segment.size for segment in ordered], strays + inner)


def list_or_nothing(files: Files, folder: str) -> Listing:
    """Return the entries of a folder; none if it does not exist."""
    try:
        return files.list(folder)
    except FileNotFoundError:
        return []


def segment_start(name: str) -> int | None:
    """Return the offset in a segment's file name, or None if it is not a segment's name."""
    if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def _why_stray(info: FileInfo, start: int | None) -> str:
    """Return why an entry of a log's folder is not a segment; empty if it is one."""
    if start is None:
        return "the name is not an offset of 20 digits"
    if info.is_dir:
        return "a folder with a segment's name"
    if info.size <= 0:
        return "an empty file"
    if start + info.size > MAX_OFFSET:
        return "the name is not a valid offset"
    return ""


def _without_overlaps(files: Sequence[Segment]) -> tuple[list[Segment], list[Skipped]]:
    """Drop files that overlap the file before them.

    The files of a log have one size. If two files overlap and the first one has the usual size, the
    second one is dropped. If neither has it, the second one is dropped if it lies wholly within the
    first. Otherwise both are kept, and `find_log_files` ends the first where the second begins.

    Args:
        files: ascending, not yet limited by the next one's start.
    """
    if all(before.end <= file.start for before, file in itertools.pairwise(files)):
        return list(files), []
    sizes = Counter(file.size for file in files).most_common(2)
    usual = sizes[0][0] if len(sizes) == 1 or sizes[0][1] > sizes[1][1] else None
    kept: list[Segment] = []
    inner = []
    for file in files:
        last = kept[-1] if kept else None
        if last is None or file.start >= last.end:
            kept.append(file)
        elif last.size == usual or (file.size != usual and file.end <= last.end):
            inner.append(Skipped(file.path, f"{last.path} holds the same part"))
        else:
            kept.append(file)
    return kept, inner
