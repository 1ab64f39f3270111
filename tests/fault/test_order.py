"""Nothing is acknowledged under SYNC_FLUSH, and no batch published, before it is on disk.

Promises 1 and 2, call by call.

A power cut shows only what a file system happens to lose; ext4 flushes a renamed file's name
together with the file. So the order of the calls themselves is looked at too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
_PUBLISHING = "iov_len=4}], 1, "
"""A write of the magic alone, which makes a batch visible."""


def _too_early(folder: Path, mutant: str) -> tuple[list[str], int]:
    """What was acknowledged or published before its flush, and how many were acknowledged."""
    log = folder / "strace.log"
    traced = "pwrite64,pwritev,pwritev2,write,fdatasync,fsync,openat,rename,renameat2"
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
    unflushed: dict[str, int] = {}
    unnamed: dict[str, int] = {}
    early, acknowledged = [], 0
    for number, call in enumerate(calls(log)):
        segment, directory = _SEGMENT.search(call.arguments), _FOLDER.search(call.arguments)
        made = _MADE.findall(call.arguments)
        if call.name.startswith("pwrite") and segment:
            if (unflushed or unnamed) and _PUBLISHING in call.arguments:
                early += [f"{call.arguments} at {number}"]
            unflushed[segment[1]] = call.begun
        elif call.name == "fdatasync" and segment:
            if unflushed.get(segment[1], call.begun) <= call.begun:
                unflushed.pop(segment[1], None)
        elif call.name == "fsync" and directory:
            unnamed = {path: at for path, at in unnamed.items() if at > call.begun}
        elif made and (call.name.startswith("rename") or "O_CREAT" in call.arguments):
            unnamed[made[-1]] = call.begun
        elif call.name == "write" and '"done ' in call.arguments:
            acknowledged += 1
            early += [f"{call.arguments} at {number}"] if unflushed or unnamed else []
    return early, acknowledged


def test_nothing_is_acknowledged_or_published_before_the_flush(tmp_path: Path) -> None:
    early, acknowledged = _too_early(tmp_path, "")
    assert acknowledged == 30
    assert not early


@pytest.mark.parametrize(
    "mutant",
    ["acknowledge-before-flush", "no-fdatasync", "skip-folder-fsync", "publish-before-flush"],
)
def test_a_writer_that_flushes_too_late_is_found_out(tmp_path: Path, mutant: str) -> None:
    early, acknowledged = _too_early(tmp_path, mutant)
    assert acknowledged == 30
    assert early
