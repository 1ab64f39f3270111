"""The golden archives hold what their README says, as RocketMQ left it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.golden import (
    ARCHIVES,
    GOLDEN_NAMES,
    SHIPPED_NAMES,
    load_entries,
    load_meta,
    load_queues,
    load_records,
)


def test_every_store_is_shipped_and_listed() -> None:
    readme = (ARCHIVES / "README.md").read_text(encoding="utf-8")
    assert SHIPPED_NAMES == GOLDEN_NAMES
    assert [name for name in GOLDEN_NAMES if name.replace("unclean-", "-") not in readme] == []


def test_archives_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in ARCHIVES.iterdir()}
    assert [name for name, size in sizes.items() if size > 1_000_000] == []


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_reports_agree_among_themselves(golden: Callable[[str], Path], name: str) -> None:
    folder = golden(name)
    records, entries, queues = load_records(folder), load_entries(folder), load_queues(folder)
    meta = load_meta(folder)

    counted = {key: len(found) for key, found in entries.items()}
    reported = {key: q.max_offset - q.min_offset for key, q in queues.queues.items()}
    if name != "trimmed-raw":  # its queues still reach to what expired
        assert counted == {key: count for key, count in reported.items() if count}
    offsets = [record.physical_offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(r.store_size <= meta.commitlog_file_size for r in records)


def test_file_times_are_kept(golden: Callable[[str], Path]) -> None:
    folder = golden("basic")
    written = max(record.store_timestamp for record in load_records(folder)) / 1000
    newest = max(file.stat().st_mtime for file in (folder / "store" / "commitlog").iterdir())
    assert abs(newest - written) < 60
