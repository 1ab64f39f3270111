"""Nothing is acknowledged under SYNC_FLUSH, and no batch published, before it is on disk.

Promises 1 and 2, call by call.

A power cut shows only what a file system happens to lose; ext4 flushes a renamed file's name
together with the file. So the order of the calls themselves is looked at too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmqstore_spark.layout.fields import HEAD_SIZE
from tests.fault.claims import Claims
from tests.fault.rounds.life import SMALL, live
from tests.fault.traces import calls, why_no_strace

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace()),
]

_SEGMENT = re.compile(r"<([^>]*/commitlog/\d{20})>")
_FOLDER = re.compile(r"<([^>]*/commitlog)>")
_MADE = re.compile(r'"([^"]*/commitlog/\d{20})"')
_CONFIGURATION = re.compile(r"/config/\w+\.json(?:\.bak)?\.tmp")
_ITS_FOLDER = re.compile(r"<[^>]*/config>")
_ONE_PART = re.compile(r"iov_len=(\d+)}\], 1, ")
_PUBLISHING = "iov_len=4}], 1, "
"""A write of the magic alone, which makes a batch visible."""


def _too_early(folder: Path, mutant: str) -> tuple[list[str], int]:
    """What was acknowledged or published before its flush, and how many were acknowledged.

    What leads from the log's end to a batch, a blank and fillers, is written when it is published,
    and may be on disk later than that: without it, the log ends before the batch.
    """
    log = folder / "strace.log"
    traced = "pwrite64,pwritev,pwritev2,write,sync_file_range,fdatasync,fsync,openat"
    traced += ",rename,renameat2"
    prefix = ["strace", "-f", "-y", "-qq", "-s", "64", "-o", str(log), "-e", f"trace={traced}"]
    ending = live(
        folder / "store",
        Claims(),
        1,
        settings=(*SMALL, "flushDiskType=SYNC_FLUSH"),
        operations=30,
        commits=0.2,
        mutant=mutant,
        prefix=prefix,
    )
    assert ending.code == 0, ending.errors
    unflushed: dict[str, tuple[int, bool]] = {}  # when it was written last, and whether as a lead
    unnamed: dict[str, int] = {}
    early, acknowledged = [], 0
    for number, call in enumerate(calls(log)):
        segment, directory = _SEGMENT.search(call.arguments), _FOLDER.search(call.arguments)
        made = _MADE.findall(call.arguments)
        if call.name.startswith("pwrite") and segment:
            is_early = unnamed or not all(leads for _, leads in unflushed.values())
            if is_early and _PUBLISHING in call.arguments:
                early += [f"{call.arguments} at {number}"]
            part = _ONE_PART.search(call.arguments)
            leads = part is not None and int(part[1]) <= HEAD_SIZE  # a record has more bytes
            unflushed[segment[1]] = call.begun, leads and unflushed.get(segment[1], (0, True))[1]
        elif call.name == "fdatasync" and segment:
            if unflushed.get(segment[1], (call.begun, True))[0] <= call.begun:
                unflushed.pop(segment[1], None)
        elif call.name == "fsync" and directory:
            unnamed = {path: at for path, at in unnamed.items() if at > call.begun}
        elif made and (call.name.startswith("rename") or "O_CREAT" in call.arguments):
            unnamed[made[-1]] = call.begun
        elif call.name == "write" and '"done ' in call.arguments:
            acknowledged += 1
            early += [f"{call.arguments} at {number}"] if unflushed or unnamed else []
    return early, acknowledged


def _written_back(folder: Path) -> tuple[int, int]:
    """How many batches were published, and how many the disk was told of before their flush."""
    told: set[str] = set()
    flushed: set[str] = set()
    published = early = 0
    for call in calls(folder / "strace.log"):
        segment = _SEGMENT.search(call.arguments)
        if segment is None:
            continue
        if call.name == "sync_file_range":
            told.add(segment[1])
        elif call.name == "fdatasync":
            flushed |= told & {segment[1]}
        elif call.name.startswith("pwrite") and _PUBLISHING in call.arguments:
            published += 1
            early += segment[1] in flushed
            told, flushed = set(), set()
    return published, early


def _renamed_too_early(folder: Path) -> tuple[list[str], int]:
    """Configuration files with a name before they are on disk, or whose name is not; all names."""
    written: set[str] = set()
    unnamed: set[str] = set()
    early, renamed = [], 0
    for call in calls(folder / "strace.log"):
        found = _CONFIGURATION.search(call.arguments)
        if found and call.name == "pwrite64":
            written.add(found[0])
        elif found and call.name == "fsync":
            written.discard(found[0])
        elif found and call.name.startswith("rename"):
            renamed += 1
            unnamed.add(call.arguments)
            early += [call.arguments] if found[0] in written else []
        elif call.name == "fsync" and _ITS_FOLDER.search(call.arguments):
            unnamed.clear()
    return [*early, *unnamed], renamed


def test_nothing_is_acknowledged_or_published_before_the_flush(tmp_path: Path) -> None:
    early, acknowledged = _too_early(tmp_path, "")
    assert acknowledged == 30
    assert not early
    early, renamed = _renamed_too_early(tmp_path)
    assert renamed >= 2
    assert not early, "a configuration file is replaced as a whole, and its name is on disk"
    published, written_back = _written_back(tmp_path)
    assert published == written_back > 0


@pytest.mark.parametrize(
    "mutant",
    ["acknowledge-before-flush", "no-fdatasync", "skip-folder-fsync", "publish-before-flush"],
)
def test_a_writer_that_flushes_too_late_is_found_out(tmp_path: Path, mutant: str) -> None:
    early, acknowledged = _too_early(tmp_path, mutant)
    assert acknowledged == 30
    assert early
