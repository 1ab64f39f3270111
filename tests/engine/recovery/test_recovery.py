"""Stores that brokers left, clean and killed, opened for writing.

What must be there afterwards is what RocketMQ itself reports after its own recovery; where it
loses what it could have kept (keys of an index, mostly), it is what its records say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.engine.failpoints import NAMES
from rmqstore_spark.engine.recovery.recover import Recovered
from rmqstore_spark.errors import CorruptStoreError, UnsupportedStoreError
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes import forked
from tests.support.stores.golden import load_entries, load_meta, load_queues, load_records
from tests.support.stores.keys import assert_complete, every_key
from tests.support.stores.recovering import (
    NOW,
    close_cleanly,
    copy_store,
    entries_of,
    expected_keys,
    indexed_keys,
    opened,
    remove,
    tree,
)

Golden = Callable[[str], Path]

CLEAN = (
    "basic", "batch", "boundary", "delayed", "extcq", "flags", "ha-master", "ha-slave", "ipv6",
    "live", "lmq", "tiny", "transactions", "trimmed", "trimmed-raw", "v5basic", "v5v2topic",
)  # fmt: skip
UNCLEAN = (
    "unclean", "unclean-crc", "unclean-nocheckpoint", "unclean-nocq", "unclean-tail",
    "unclean-torn",
)  # fmt: skip


def assert_as_reported(found: Recovered, golden: Path) -> None:
    """Log, queues and every entry must be what RocketMQ reports."""
    file = "queues.settled.json" if golden.name == "trimmed-raw" else "queues.json"
    report = load_queues(golden, file)
    assert (found.log_begin, found.log_end) == (
        report.min_physical_offset, report.max_physical_offset,
    )  # fmt: skip
    entries = reported_entries(golden)
    for route, queue in report.queues.items():
        assert found.queues.max_offset(*route) == queue.max_offset, route
        if queue.readable == 0:  # RocketMQ says 0 of a queue whose messages have all expired
            continue
        assert found.queues.min_offset(*route) == queue.min_offset, route
        assert [e[:2] for e in entries_of(found, *route)] == [e[:2] for e in entries[route]], route
        if golden.name != "trimmed-raw":
            assert entries_of(found, *route) == entries[route], route


def reported_entries(golden: Path) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """The entries that RocketMQ lists: physical offset, size, tagsCode.

    (Of `trimmed-raw` it lists those from before its clean-up: there the records tell.)
    """
    if golden.name == "trimmed-raw":
        found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for r in load_records(golden):
            found.setdefault((r.topic, r.queue_id), []).append((r.physical_offset, r.store_size, 0))
        return found
    begin = load_queues(golden).min_physical_offset
    return {
        route: [
            (e.physical_offset, e.size, e.tags_code) for e in listed if e.physical_offset >= begin
        ]
        for route, listed in load_entries(golden).items()
    }


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_store_opens_as_it_is(golden: Golden, tmp_path: Path, name: str) -> None:
    store = copy_store(golden(name), tmp_path)
    before = tree(store)
    with opened(store, golden(name)) as found:
        assert found.summary.clean
        assert not found.summary.cuts
        assert_as_reported(found, golden(name))
        assert (store / "abort").exists()
        assert (store / "commitlog" / GUARD_NAME).stat().st_size > 0
    assert tree(store) == before


@pytest.mark.parametrize("name", UNCLEAN)
def test_promise_3_a_killed_store_recovers_to_what_rocketmq_reports(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    store = copy_store(golden(name), tmp_path)
    with opened(store, golden(name)) as found:
        assert not found.summary.clean
        assert_as_reported(found, golden(name))
        close_cleanly(store, found)
    with Store.open(store) as reader:
        report = verify(reader)
        assert report.ok, report
        assert not [p for p in report.problems if p.kind != "properties"]


@pytest.mark.parametrize("name", UNCLEAN)
def test_the_index_holds_every_key_afterwards(golden: Golden, tmp_path: Path, name: str) -> None:
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    with opened(store, folder) as found:
        end = found.log_end
        close_cleanly(store, found)
    records = [r for r in load_records(folder) if r.physical_offset < end]
    assert indexed_keys(store, load_meta(folder).index_slots) == expected_keys(records)
    with Store.open(store) as reader:
        assert_complete(reader, records, every_key(records)[:60])


@pytest.mark.parametrize(("name", "end"), [("unclean-crc", 1796657), ("unclean-tail", 1797718)])
def test_promise_4_what_is_cut_is_kept_and_said(
    golden: Golden, tmp_path: Path, name: str, end: int
) -> None:
    store = copy_store(golden(name), tmp_path)
    before = (store / "commitlog" / "00000000000001769472").read_bytes()[end - 1769472 :]
    with opened(store, golden(name)) as found:
        (cut,) = found.summary.cuts
    wanted = before.rstrip(b"\0")
    assert (cut.start, cut.size) == (end, len(wanted))
    assert Path(cut.kept).read_bytes() == wanted
    assert json.loads((Path(cut.kept).parent / "cut.json").read_bytes())["logEnd"] == end
    assert any(cut.kept in line for line in found.summary.lines())
    after = (store / "commitlog" / "00000000000001769472").read_bytes()
    assert len(after) == 65536
    assert not any(after[end - 1769472 :])
    assert not (store / "commitlog" / "00000000000001835008").exists()


@pytest.mark.parametrize("name", ["unclean-crc", "unclean-nocq", "unclean-torn", "basic"])
def test_opening_again_changes_nothing(golden: Golden, tmp_path: Path, name: str) -> None:
    store = copy_store(golden(name), tmp_path)
    with opened(store, golden(name)) as found:
        close_cleanly(store, found)
    first = tree(store)
    with opened(store, golden(name)) as found:
        assert found.summary.clean
        assert (found.summary.redispatched, found.summary.indexed_keys) == (0, 0)
        close_cleanly(store, found)
    assert tree(store) == first
    kept = list((store / "rmqstore").glob("cut/*"))
    assert len(kept) == (1 if name == "unclean-crc" else 0)


def test_after_another_kill_the_same_comes_out(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("unclean-crc"), tmp_path)
    with opened(store, golden("unclean-crc")):
        pass
    with opened(store, golden("unclean-crc")) as found:
        assert not found.summary.cuts
        assert_as_reported(found, golden("unclean-crc"))


# ---- damage -------------------------------------------------------------------------------------


def flip_in_body(store: Path, offset: int, size: int = 65536) -> None:
    """Change a byte of the body of the record at a physical offset."""
    path = store / "commitlog" / f"{offset // size * size:020}"
    data = bytearray(path.read_bytes())
    data[offset % size + 95] ^= 1
    path.write_bytes(data)


def flushed_record(golden: Path) -> int:
    """A record with a body, well before what the checkpoint knows as flushed."""
    flushed = Checkpoint.decode((golden / "store" / "checkpoint").read_bytes())
    return next(
        r.physical_offset
        for r in load_records(golden)[40:]
        if len(r.body) > 50 and r.store_timestamp < flushed.physic_msg_timestamp
    )


def test_promise_4_damage_below_what_was_flushed_stops_the_opening(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("unclean")
    store = copy_store(folder, tmp_path)
    at = flushed_record(folder)
    flip_in_body(store, at)
    before = tree(store)
    with pytest.raises(CorruptStoreError, match="recover --cut") as caught, opened(store, folder):
        pass
    assert caught.value.file.endswith(f"{at // 65536 * 65536:020}")
    assert caught.value.offset == at % 65536
    assert tree(store) == before
    assert not (store / "rmqstore").exists()


def test_promise_4_told_to_cut_it_goes_on_and_keeps_what_follows(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("unclean")
    store = copy_store(folder, tmp_path)
    at = flushed_record(folder)
    flip_in_body(store, at)
    files = {p.name: p.read_bytes() for p in (store / "commitlog").iterdir()}
    with opened(store, folder, cut=True) as found:
        assert found.log_end == at
        kept = {Path(cut.kept).name: cut for cut in found.summary.cuts}
        close_cleanly(store, found)
    assert f"{at:020}" in kept
    for name, data in files.items():
        if int(name) > at and any(data):
            assert Path(kept[name].kept).read_bytes() == data
    records = [r for r in load_records(folder) if r.physical_offset < at]
    assert indexed_keys(store, 500) == expected_keys(records)
    with Store.open(store) as reader:
        assert verify(reader).ok
        assert sum(q.max_offset - q.min_offset for q in reader.queues()) == len(records)


def test_damage_in_a_store_that_was_closed_cleanly_stops_the_opening(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    last = next(r for r in reversed(load_records(folder)) if len(r.body) > 50)
    flip_in_body(store, last.physical_offset, 262144)
    with pytest.raises(CorruptStoreError, match="bodyCRC"), opened(store, folder):
        pass


def test_a_damaged_queue_of_which_the_cut_leaves_nothing_is_emptied(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("unclean-nocheckpoint")
    store = copy_store(folder, tmp_path)
    flip_in_body(
        store, next(r.physical_offset for r in load_records(folder)[5:] if len(r.body) > 50)
    )
    for path in (store / "consumequeue").glob("TopicTest/*/00000000000000000000"):
        path.write_bytes(bytes(400) + path.read_bytes()[400:])
    for _ in range(2):
        with opened(store, folder) as found:
            ends = [end for ids in found.queues.ranges().values() for _, end in ids.values()]
            assert sum(ends) < 20
            close_cleanly(store, found)


def test_a_store_without_its_log_is_not_emptied(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("basic"), tmp_path)
    for path in (store / "commitlog").iterdir():
        path.unlink()
    before = tree(store)
    with pytest.raises(CorruptStoreError, match="no file"), opened(store, golden("basic")):
        pass
    assert tree(store) == before


def test_a_log_that_lacks_a_file_is_refused(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("basic"), tmp_path)
    (store / "commitlog" / "00000000000000524288").unlink()
    with (
        pytest.raises(CorruptStoreError, match="from 524288 to 786432"),
        opened(store, golden("basic")),
    ):
        pass


def test_a_log_that_lacks_its_last_files_is_refused(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("basic"), tmp_path)
    (store / "commitlog" / "00000000000002621440").unlink()
    with pytest.raises(CorruptStoreError, match="names a record"), opened(store, golden("basic")):
        pass


def test_what_a_crash_leaves_of_a_new_segment_is_taken_back(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("unclean"), tmp_path)
    os.truncate(store / "commitlog" / "00000000000001835008", 4096)
    (store / "commitlog" / "00000000000001900544").touch()
    with opened(store, golden("unclean")) as found:
        assert_as_reported(found, golden("unclean"))


# ---- what a broker does not notice --------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "live", "lmq", "delayed", "transactions", "trimmed"])
def test_lost_queues_are_rebuilt(golden: Golden, tmp_path: Path, name: str) -> None:
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    remove(store / "consumequeue")
    with opened(store, folder) as found:
        report = load_queues(folder)
        expired = {route for route, queue in report.queues.items() if queue.readable == 0}
        made = {route for route in report.queues if route not in expired}
        assert made <= set(found.summary.rebuilt_queues)
        for route in made:
            assert found.queues.max_offset(*route) == report.queues[route].max_offset
            listed = [
                (e.physical_offset, e.size, e.tags_code)
                for e in load_entries(folder)[route]
                if e.physical_offset >= found.log_begin
            ]
            assert entries_of(found, *route)[-len(listed) :] == listed
        close_cleanly(store, found)
    with Store.open(store) as reader:
        assert verify(reader).ok


def test_queues_that_begin_late_are_rebuilt_as_a_broker_fills_them(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("trimmed")
    store = copy_store(folder, tmp_path)
    before = {name: digest for name, digest in tree(store).items() if "TopicTest" in name}
    remove(store / "consumequeue")
    with opened(store, folder):
        pass
    after = tree(store)
    newest = max(name for name in before if "/TopicTest/0/" in name)
    assert after[newest] == before[newest]


@pytest.mark.parametrize("name", ["basic", "unclean"])
def test_one_missing_queue_is_noticed(golden: Golden, tmp_path: Path, name: str) -> None:
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    remove(store / "consumequeue" / "TopicTest" / "2")
    with opened(store, folder) as found:
        assert ("TopicTest", 2) in found.summary.rebuilt_queues
        assert_as_reported(found, folder)


@pytest.mark.parametrize("topic", ["TopicTest", "orders_v2-EU"])
def test_one_missing_queue_is_noticed_where_little_of_the_log_is_walked(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.recovery.queue_check._LOOKED_OVER", 30_000)
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    remove(store / "consumequeue" / topic / "2")
    with opened(store, folder) as found:
        assert found.summary.walked_bytes < 40_000
        assert found.summary.rebuilt_queues == ((topic, 2),)
        assert_as_reported(found, folder)


def test_a_missing_queue_that_got_nothing_lately_is_noticed_by_what_was_written_down(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.engine.recovery.queue_check._LOOKED_OVER", 2000)
    folder = golden("live")
    store = copy_store(folder, tmp_path)
    with opened(store, folder) as found:
        oldest = min(
            (route for route in load_entries(folder) if found.queues.max_offset(*route)),
            key=lambda route: load_entries(folder)[route][-1].physical_offset,
        )
        close_cleanly(store, found)
    before = tree(store)
    remove(store / "consumequeue" / oldest[0] / str(oldest[1]))
    with opened(store, folder) as found:
        assert oldest in found.summary.rebuilt_queues
        assert_as_reported(found, folder)
    assert {k: v for k, v in tree(store).items() if k != "checkpoint"} == {
        k: v for k, v in before.items() if k != "checkpoint"
    }


def test_a_hole_in_a_queue_is_filled(golden: Golden, tmp_path: Path) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    path = max((store / "consumequeue" / "TopicTest" / "1").iterdir())
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    path.write_bytes(data)
    with opened(store, folder) as found:
        assert_as_reported(found, folder)
        assert found.summary.redispatched >= 2


@pytest.mark.parametrize("name", ["tiny", "trimmed"])
@pytest.mark.parametrize("number", [0, 1, 3, -2, -1])
@pytest.mark.parametrize("how", ["gone", "zeros", "short"])
def test_a_queue_whose_files_do_not_hold_together_is_written_anew(
    golden: Golden, tmp_path: Path, name: str, number: int, how: str
) -> None:
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    topic = "T" if name == "tiny" else "TopicTest"
    path = sorted((store / "consumequeue" / topic / "1").iterdir())[number]
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size if how == "zeros" else 35))
    (store / "abort").touch()
    for is_again in (False, True):
        with opened(store, folder) as found:
            assert_as_reported(found, folder)
            assert not (is_again and found.summary.redispatched)
            close_cleanly(store, found)
        with Store.open(store) as reader:
            assert verify(reader).ok


@pytest.mark.parametrize("size", [0, 1, 45, 140])
def test_the_only_file_of_the_only_queue_is_cut(golden: Golden, tmp_path: Path, size: int) -> None:
    folder = golden("tiny")
    store = copy_store(folder, tmp_path)
    for path in sorted((store / "consumequeue").glob("*/*/*"))[1:]:
        path.unlink()
    (path,) = (store / "consumequeue").glob("*/*/*")
    os.truncate(path, size)
    with opened(store, folder) as found:
        assert_as_reported(found, folder)


@pytest.mark.parametrize("name", ["basic", "live", "unclean"])
def test_a_missing_index_is_made_anew(golden: Golden, tmp_path: Path, name: str) -> None:
    folder = golden(name)
    store = copy_store(folder, tmp_path)
    remove(store / "index")
    with opened(store, folder) as found:
        end = found.log_end
        close_cleanly(store, found)
    records = [r for r in load_records(folder) if r.physical_offset < end]
    assert indexed_keys(store, load_meta(folder).index_slots) == expected_keys(records)
    with Store.open(store) as reader:
        assert verify(reader).ok


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_missing_index_file_is_made_anew_between_its_neighbours(
    golden: Golden, tmp_path: Path, number: int
) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    wanted = indexed_keys(store, 500)
    names = sorted(os.listdir(store / "index"))
    lost = names[number]
    (store / "index" / lost).unlink()
    with opened(store, folder) as found:
        assert len(found.summary.made_index_files) == 1
        close_cleanly(store, found)
    assert indexed_keys(store, 500) == wanted
    (made,) = set(os.listdir(store / "index")) - set(names)
    assert sorted({*names, made}).index(made) in (number, number + 1)
    with Store.open(store) as reader:
        assert verify(reader).ok


def test_the_last_index_file_is_gone_on_with(golden: Golden, tmp_path: Path) -> None:
    folder = golden("live")
    store = copy_store(folder, tmp_path)
    names = os.listdir(store / "index")
    with opened(store, folder) as found:
        assert found.indexes is not None
        one = np.ones(1, np.int64)
        found.indexes.insert(one.astype(np.int32), one * found.log_end, one * NOW)
        found.indexes.flush(sync=True)
    assert os.listdir(store / "index") == names


def test_without_an_index_none_is_made(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("basic"), tmp_path)
    remove(store / "index")
    with opened(store, golden("basic"), index_shape=None) as found:
        assert found.indexes is None
    assert not (store / "index").exists()


# ---- kinds of stores ----------------------------------------------------------------------------


def test_extension_units_stay_readable(golden: Golden, tmp_path: Path) -> None:
    """A queue that is rebuilt has tagsCodes in place of them, as where RocketMQ writes no unit."""
    folder = golden("extcq")
    store = copy_store(folder, tmp_path)
    path = max((store / "consumequeue" / "ExtTopic" / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[20:40] = bytes(20)
    path.write_bytes(data)
    with opened(store, folder) as found:
        held = np.array([entry[2] for entry in entries_of(found, "ExtTopic", 0)])
        assert np.count_nonzero(~CONSUME_QUEUE.in_units(held)) == 1
        close_cleanly(store, found)
    with Store.open(store) as reader:
        assert verify(reader).ok


def test_promise_8_names_in_the_log_lead_nowhere(golden: Golden, tmp_path: Path) -> None:
    folder = golden("basic")
    store = copy_store(folder, tmp_path / "deep")
    for path in (store / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(b"TopicTest", b"../../abc"))
    remove(store / "consumequeue")
    remove(store / "index")
    with opened(store, folder) as found:
        assert found.summary.topics_without_queues == ("../../abc",)
        assert "orders_v2-EU" in found.queues.ranges()
    assert os.listdir(tmp_path / "deep") == ["basic"]
    assert "abc" not in os.listdir(store)


@pytest.mark.parametrize("slot", [-1, 1 << 20, 1 << 62, (1 << 63) - 1])
def test_promise_8_a_damaged_queue_offset_moves_nothing(
    golden: Golden, tmp_path: Path, slot: int
) -> None:
    """Nothing guards the field: the record keeps the place that the order of the log gives it."""
    folder = golden("basic")
    store = copy_store(folder, tmp_path)
    records = [r for r in load_records(folder) if (r.topic, r.queue_id) == ("TopicTest", 1)]
    at = records[20].physical_offset
    path = store / "commitlog" / f"{at // 262144 * 262144:020}"
    data = bytearray(path.read_bytes())
    data[at % 262144 + 20 : at % 262144 + 28] = slot.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    remove(store / "consumequeue")
    with opened(store, folder) as found:
        assert_as_reported(found, folder)


def test_a_dledger_log_is_refused(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("dledger"), tmp_path)
    with pytest.raises(UnsupportedStoreError, match="DLedger"), opened(store, golden("dledger")):
        pass


def test_a_new_store_is_empty(golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "new"
    store.mkdir()
    with opened(store, golden("basic")) as found:
        assert (found.log_begin, found.log_end, found.segment_size) == (0, 0, 0)
        assert found.queues.ranges() == {}


# ---- killed in the middle -----------------------------------------------------------------------

_RECOVER = """
import sys
from pathlib import Path
from tests.support.stores.recovering import opened
with opened(Path(sys.argv[1]), Path(sys.argv[2])):
    pass
"""


@pytest.mark.fault
@pytest.mark.parametrize("name", ["unclean-crc", "unclean-nocq"])
@pytest.mark.parametrize("place", [place for place in NAMES if place.startswith("recovery.")])
def test_promise_3_a_recovery_that_is_killed_comes_out_the_same_when_run_again(
    golden: Golden, tmp_path: Path, name: str, place: str
) -> None:
    folder = golden(name)
    wanted = copy_store(folder, tmp_path / "wanted")
    with opened(wanted, folder):
        pass
    store = copy_store(folder, tmp_path / "killed")
    killed = forked.run(
        [sys.executable, "-c", _RECOVER, store, folder],
        env={**os.environ, "RMQSTORE_FAILPOINT": place},
    )
    if place == "recovery.after_keep" and name != "unclean-crc":
        assert killed.returncode in (0, -9)
    else:
        assert killed.returncode == -9
    with opened(store, folder) as found:
        assert_as_reported(found, folder)
    assert tree(store).keys() - tree(wanted).keys() == set()
    same = {k: v for k, v in tree(wanted).items() if not k.startswith("index/")}
    assert {k: v for k, v in tree(store).items() if not k.startswith("index/")} == same
    slots = load_meta(folder).index_slots
    assert indexed_keys(store, slots) == indexed_keys(wanted, slots)
    kept = [p for p in (store / "rmqstore" / "cut").glob("*") if p.is_dir()]
    assert bool(kept) == (name == "unclean-crc")
    assert not [p for p in kept if p.name.endswith(".partial")]
