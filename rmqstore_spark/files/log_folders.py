"""Which files of some folders make up a log, and which are none of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rmqstore_spark.files.base import FileInfo, Files, Listing, Skipped, join
from rmqstore_spark.files.own_names import GUARD_NAME

__all__ = ["MAX_OFFSET", "Lineup", "Segment", "line_up", "list_or_nothing", "segment_start"]

MAX_OFFSET: Final = (1 << 63) - 1

_NAME_DIGITS: Final = 20


class Segment(NamedTuple):
    """One file of a log.

    Attributes:
        start: log offset of its first byte.
        size: bytes of the log that it holds (the file's length, cut where the next one begins).
        path: the file.
    """

    start: int
    size: int
    path: str

    @property
    def end(self) -> int:
        """Log offset one past its last byte."""
        return self.start + self.size


class Lineup(NamedTuple):
    """What `line_up` found.

    Attributes:
        segments: the log's files by offset, each cut where the next one begins.
        file_sizes: how long each of them is uncut.
        strays: what else lies in the folders, and why it is no part of the log.
    """

    segments: list[Segment]
    file_sizes: list[int]
    strays: list[Skipped]


def line_up(folders: Sequence[str], listings: Iterable[Listing]) -> Lineup:
    """Sort out which files make up a log.

    Args:
        folders: of the log, in the order of preference where two hold the same name.
        listings: entries of each of the folders.
    """
    strays: list[Skipped] = []
    found: dict[int, Segment] = {}
    for folder, listing in zip(folders, listings, strict=True):
        for info in listing:
            if info.name.startswith(GUARD_NAME):
                continue
            path = join(folder, info.name)
            start = segment_start(info.name)
            reason = _why_stray(info, start)
            if start is None or reason:
                strays.append(Skipped(path, reason))
            elif start in found:
                other = found[start].path
                strays.append(Skipped(path, f"{other} holds the same stretch of the log"))
            else:
                found[start] = Segment(start, info.size, path)
    ordered, inner = _in_line([found[start] for start in sorted(found)])
    segments = [
        segment._replace(size=min(segment.size, following.start - segment.start))
        for segment, following in itertools.pairwise(ordered)
    ] + ordered[-1:]
    return Lineup(segments, [segment.size for segment in ordered], strays + inner)


def list_or_nothing(files: Files, folder: str) -> Listing:
    """Entries of a folder; none where it does not exist."""
    try:
        return files.list(folder)
    except FileNotFoundError:
        return []


def segment_start(name: str) -> int | None:
    """The offset that a segment's file name tells, None where it is no such name."""
    if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def _why_stray(info: FileInfo, start: int | None) -> str:
    """Why an entry of a log's folder is no segment; empty where it is one."""
    if start is None:
        return "the name is not an offset of 20 digits"
    if info.is_dir:
        return "a folder with a segment's name"
    if info.size <= 0:
        return "an empty file"
    if start + info.size > MAX_OFFSET:
        return "the name is no possible offset"
    return ""


def _in_line(files: Sequence[Segment]) -> tuple[list[Segment], list[Skipped]]:
    """Sort out what lies within the stretch of the file before it.

    A file that has not the size of the others gives way to one that has; else what lies wholly
    within the other is no part of the log. (The files of a log are of one size.)

    Args:
        files: ascending, not yet cut where the next one begins.
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
            inner.append(
                Skipped(file.path, f"it lies within the stretch of the log of {last.path}")
            )
        else:
            kept.append(file)
    return kept, inner
