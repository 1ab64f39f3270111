"""What followers cost a master: how fast it still stores messages, and CPU of both ends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from benchmarks.means.child import in_child
from benchmarks.network.slaves import cpu_seconds, following
from benchmarks.scale.written import put_seconds
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.ha.master import Master
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["follow", "measure_followers"]

_BODY: Final = 1024
_BLOCK_ROWS: Final = 2_000
_BYTES: Final = 192 << 20
_SEGMENT: Final = 64 << 20
_GIGABYTE: Final = 1e9
_POLL: Final = 0.002


def measure_followers(folder: Path, count: int) -> Mapping[str, float]:
    """Put blocks in a process, with the other stores of a number of them following it."""
    return dict(in_child(f"{__name__}:follow", folder=str(folder), followers=count - 1))


def follow(folder: str, followers: int) -> dict[str, float]:
    """Put blocks, and wait until all followers have them.

    Returns:
        Bytes a second of the puts, and until all followers have them in their queues; seconds of
        CPU that the master, and each follower, took for a byte.
    """
    (block,) = encoded_traffic(Traffic(_BLOCK_ROWS, body_size=_BODY))
    config = StoreConfig(mapped_file_size_commit_log=_SEGMENT, ha_listen_port=0)
    with StoreWriter.open(f"{folder}/master", config) as store, ExitStack() as ends:
        master = Master(store)
        ends.callback(master.close)
        setting = f"--set=mappedFileSizeCommitLog={_SEGMENT}"
        slaves = [
            ends.enter_context(following(master, Path(folder, f"follower-{number}"), setting))
            for number in range(followers)
        ]
        while len(store.slaves) < followers:
            time.sleep(_POLL)
        processes = [psutil.Process(), *slaves]
        before = [cpu_seconds(each) for each in processes]
        began = time.perf_counter()
        put = put_seconds(store, (block.copy() for _ in range(_BYTES // len(block))))
        while any(store.slaves.behind_bytes()):
            time.sleep(_POLL)
        everywhere = time.perf_counter() - began
        size = store.published_end
        spent = [cpu_seconds(each) - b for each, b in zip(processes, before, strict=True)]
    found = {
        "puts": size / put,
        "puts, until all have them": size / everywhere,
        "the master": spent[0] / size * _GIGABYTE,
    }
    if followers:
        found["a follower"] = statistics.mean(spent[1:]) / size * _GIGABYTE
    return found
