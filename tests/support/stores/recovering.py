"""Stores that are recovered: copies of golden ones, opened and closed as the writer does it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rmqstore_spark.engine.dispatch.indexes import IndexShape
from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.engine.recovery.clean_close import remember
from rmqstore_spark.engine.recovery.queues_and_index import RecoverySettings
from rmqstore_spark.engine.recovery.recover import Recovered, recover
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.layout.index.format import IndexHeader, decode_entries, entry_position
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from tests.support.stores.golden import RecordReport, StoreMeta, load_meta

__all__ = [
    "NOW",
    "close_cleanly",
    "copy_store",
    "entries_of",
    "expected_keys",
    "indexed_keys",
    "opened",
    "remove",
    "settings_of",
    "tree",
]

NOW = 1_800_000_000_000
"""What the clock says in a recovery: later than all golden stores."""


def copy_store(golden: Path, folder: Path) -> Path:
    """A copy of a golden store, to be changed."""
    return Path(shutil.copytree(golden / "store", folder / golden.name, symlinks=True))


def settings_of(meta: StoreMeta, clock: Callable[[], int], **changed: Any) -> RecoverySettings:
    """How a golden store was kept."""
    shape = IndexShape(meta.index_slots, meta.index_entries)
    given = {"queue_file_size": meta.consumequeue_file_size, "index_shape": shape, **changed}
    return RecoverySettings(clock, **given)


@contextmanager
def opened(
    store: Path, golden: Path, *, clock: Callable[[], int] = lambda: NOW, **changed: Any
) -> Iterator[Recovered]:
    """Recover a store, and leave it as a kill would."""
    with StoreLock(str(store)):
        found = recover(str(store), settings_of(load_meta(golden), clock, **changed))
        try:
            yield found
        finally:
            found.queues.close()
            if found.indexes is not None:
                found.indexes.close()


def close_cleanly(store: Path, found: Recovered) -> None:
    """What a clean close leaves of a store into which nothing was put."""
    end = found.log_end if found.indexes is not None else 0
    remember(str(store), found.queues, absent=found.absent, index_end=end)
    (store / "commitlog" / GUARD_NAME).unlink()
    (store / "abort").unlink()


def tree(store: Path) -> dict[str, str]:
    """Every file below a store, with a hash of what is in it; what is ours left out."""
    found = {}
    for path in sorted(store.rglob("*")):
        name = str(path.relative_to(store))
        if path.is_file() and not name.startswith("rmqstore/") and path.name != GUARD_NAME:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    found.pop("abort", None)
    return found


def entries_of(found: Recovered, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    """The entries of a queue from its least to its greatest offset."""
    first, end = found.queues.min_offset(topic, queue_id), found.queues.max_offset(topic, queue_id)
    return [entry.item() for entry in found.queues.read(topic, queue_id, first, end - first)]


def indexed_keys(store: Path, slots: int) -> Counter[tuple[int, int]]:
    """The keys that all index files hold together: (keyHash, physical offset)."""
    held: Counter[tuple[int, int]] = Counter()
    for path in sorted((store / "index").iterdir()):
        data = path.read_bytes()
        header = IndexHeader.decode(data)
        entries = decode_entries(data[entry_position(slots, 1) :])[: header.next_entry - 1]
        pairs = zip(entries["keyHash"].tolist(), entries["phyOffset"].tolist(), strict=True)
        held.update(pairs)
        assert np.count_nonzero(entries["phyOffset"] < 0) == 0
    return held


def expected_keys(records: list[RecordReport]) -> Counter[tuple[int, int]]:
    """The keys that records should have in an index, by RocketMQ's own reading of them."""
    wanted: Counter[tuple[int, int]] = Counter()
    for record in records:
        if record.sys_flag & 0xC == 0xC:
            continue
        keys = [record.properties.get("UNIQ_KEY", "")]
        keys += record.properties.get("KEYS", "").split(" ")
        for key in filter(None, keys):
            code = abs(java_hash_code_str(f"{record.topic}#{key}"))
            wanted[0 if code == 1 << 31 else code, record.physical_offset] += 1
    return wanted


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    with suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            os.unlink(path)
