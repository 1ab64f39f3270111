"""Killed at, or failed by, the k-th call of the kernel: promises 1, 2, 3 and 5."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.fault.claims import Claims
from tests.fault.life import Ending, live, settle
from tests.fault.traces import why_no_strace

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace()),
]

_OPERATIONS = 12


def _injected(store: Path, claims: Claims, seed: int, call: str, what: str) -> Ending:
    log = store.parent / "strace.log"
    prefix = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}"]
    prefix += ["-e", f"inject={call}:{what}"]
    settings = (
        "mappedFileSizeCommitLog=65536",
        "mappedFileSizeConsumeQueue=4000",
        "maxHashSlotNum=500",
        "maxIndexNum=3000",
        "flushDiskType=SYNC_FLUSH",
    )
    return live(store, claims, seed, settings=settings, operations=_OPERATIONS, prefix=prefix)


@pytest.mark.parametrize(
    ("call", "step"),
    [("fdatasync", 4), ("fsync", 6), ("pwrite64", 13), ("pwritev2", 5), ("rename", 4)],
)
def test_killed_at_each_call(tmp_path: Path, call: str, step: int) -> None:
    killed = 0
    for k in range(1, 400, step):
        claims = Claims()
        store = tmp_path / str(k) / "store"
        store.parent.mkdir()
        ending = _injected(store, claims, k, call, f"signal=KILL:when={k}")
        if ending.code == 0:
            break
        assert ending.code in (-signal.SIGKILL, 128 + signal.SIGKILL), ending.errors
        killed += 1
        again = live(store, claims, k, operations=3)
        assert again.code == 0, again.errors
        claims.check(store)
        shutil.rmtree(store.parent)
    else:
        pytest.fail("it never came to its end")
    assert killed > 0


@pytest.mark.parametrize("call", ["fdatasync", "pwrite64", "pwritev2"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 13])
def test_after_a_failed_call_nothing_is_acknowledged(tmp_path: Path, call: str, k: int) -> None:
    claims = Claims()
    store = tmp_path / "store"
    ending = _injected(store, claims, k, call, f"error=EIO:when={k}")
    assert "Traceback" not in ending.errors
    assert "resumed" not in ending.lines
    if ending.code != 0:
        assert "Input/output error" in ending.refusal + ending.errors
    settle(store)
    claims.check(store)
