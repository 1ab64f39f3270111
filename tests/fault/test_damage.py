"""Parts of a store that are torn, zeroed, deleted or garbled: promises 3 and 4."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.messages import block
from tests.fault.stores import NOW, TINY, Row, SmallStores, make_stores, rows_of, settings
from tests.support.sampling import one_in

pytestmark = pytest.mark.fault

SEGMENT = TINY["mappedFileSizeCommitLog"]
SECTOR = 512


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> SmallStores:
    """The stores; only copies are changed."""
    return make_stores(tmp_path_factory.mktemp("small"))


@pytest.fixture
def killed(stores: SmallStores, tmp_path: Path) -> Path:
    """A copy of the one whose process was killed."""
    return Path(shutil.copytree(stores.killed, tmp_path / "store"))


def in_log(stores: SmallStores) -> list[Row]:
    """The messages in the order of the log."""
    return sorted(stores.rows.values(), key=lambda row: row[3])


def zero(store: Path, begin: int, end: int) -> None:
    """Zero bytes of the log, within one file of it."""
    with (store / "commitlog" / f"{begin // SEGMENT * SEGMENT:020}").open("r+b") as file:
        file.seek(begin % SEGMENT)
        file.write(bytes(end - begin))


def reopened(store: Path, *, cut: bool = False) -> tuple[list[Row], list[Path], int]:
    """Rows that were there before, files that hold what was cut, and where the log ended."""
    with StoreWriter.open(store, settings(), clock=lambda: NOW, cut=cut) as writer:
        kept = [Path(each.kept) for each in writer.recovery.cuts]
        assert writer.put(block(200, 4)).ok
        end = writer.recovery.log_end
    with Store.open(store) as reader:
        assert verify(reader).ok
    rows = sorted(rows_of(store), key=lambda row: row[3])
    assert [row[4][:12] for row in rows[-4:]] == [b"%012d" % number for number in range(200, 204)]
    return rows[:-4], kept, end


def test_the_tail_is_truncated_at_every_byte(stores: SmallStores, tmp_path: Path) -> None:
    """Promise 3: the rest of the last record never reached the disk, even if it is one byte."""
    rows = in_log(stores)
    last = rows[-1]
    with StoreWriter.open(
        Path(shutil.copytree(stores.killed, tmp_path / "whole")), settings(), clock=lambda: NOW
    ) as whole:
        end = whole.recovery.log_end
    name = f"{last[3] // SEGMENT * SEGMENT:020}"
    data = (stores.killed / "commitlog" / name).read_bytes()
    properties = end - len(b"TAGS\x01T0\x02KEYS\x01k109")
    assert data[properties % SEGMENT : end % SEGMENT] == b"TAGS\x01T1\x02KEYS\x01k109"
    for cut in one_in(8, range(last[3], end)):
        store = Path(shutil.copytree(stores.killed, tmp_path / str(cut)))
        (store / "commitlog" / name).write_bytes(data[: cut % SEGMENT])
        found, kept, found_end = reopened(store)
        if cut < properties:
            assert found == rows[:-1]
            assert found_end == last[3]
            assert bool(kept) == any(data[last[3] % SEGMENT : cut % SEGMENT])
        else:  # nothing guards properties: a broker too takes the record, with zeros for the rest
            assert found == rows
        shutil.rmtree(store)


def test_a_zeroed_sector_at_the_end_is_cut(stores: SmallStores, killed: Path) -> None:
    """Promise 4: past what is known as flushed, intact records may follow; they are kept aside."""
    rows = in_log(stores)
    at = next(row[3] for row in rows if row[3] > stores.flushed_end)
    behind = (killed / "commitlog" / f"{at // SEGMENT * SEGMENT:020}").read_bytes()
    zero(killed, at, at + SECTOR)
    found, kept, end = reopened(killed)
    assert (found, end) == ([row for row in rows if row[3] < at], at)
    (file,) = kept
    saved = file.read_bytes()
    assert not any(saved[:SECTOR])
    written = behind[at % SEGMENT + SECTOR :].rstrip(b"\0")
    assert saved[SECTOR : SECTOR + len(written)] == written


@pytest.mark.parametrize("number", [0, 30, 60, 90])
def test_a_zeroed_sector_below_what_was_flushed_stops_the_opening(
    stores: SmallStores, killed: Path, number: int
) -> None:
    """Promise 4: the error names file and offset, and nothing changes; with --cut, it opens."""
    rows = in_log(stores)
    # Where the checkpoint lets recovery begin later, that part of the log is not walked.
    (killed / "checkpoint").write_bytes((killed / "checkpoint").read_bytes()[:8] + bytes(4088))
    at = rows[number][3]
    zero(killed, at, min(at + SECTOR, at // SEGMENT * SEGMENT + SEGMENT))
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    with pytest.raises(CorruptStoreError, match="recover --cut") as caught:
        StoreWriter.open(killed, settings(), clock=lambda: NOW)
    assert caught.value.file.endswith(f"/commitlog/{at // SEGMENT * SEGMENT:020}")
    assert caught.value.offset == at % SEGMENT
    assert before == {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    found, kept, end = reopened(killed, cut=True)
    assert (found, end) == (rows[:number], at)
    saved = {path.name: path.read_bytes() for path in kept}
    for start in range(at // SEGMENT * SEGMENT + SEGMENT, rows[-1][3], SEGMENT):
        name = f"{start:020}"
        assert saved[name] == before[killed / "commitlog" / name]


def gone(path: Path, seed: int) -> None:
    """Remove a file or a folder."""
    del seed
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def garbled(path: Path, seed: int) -> None:
    """Fill a file, or all files of a folder, with noise."""
    drawn = random.Random(seed)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            file.write_bytes(drawn.randbytes(file.stat().st_size))


def emptied(path: Path, seed: int) -> None:
    """Cut a file, or all files of a folder, to nothing."""
    del seed
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            file.write_bytes(b"")


REBUILT = (
    "consumequeue", "consumequeue/orders-1", "consumequeue/orders-1/2",
    "consumequeue/orders-1/2/00000000000000000000", "consumequeue/orders-1/2/00000000000000000200",
    "consumequeue/rmq_sys_RMQSTORE_COMMIT", "index", "checkpoint", "rmqstore",
)  # fmt: skip


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("harm", [gone, garbled, emptied])
@pytest.mark.parametrize("name", REBUILT)
def test_what_is_rebuilt_may_be_lost_or_garbled(
    stores: SmallStores,
    tmp_path: Path,
    name: str,
    harm: Callable[[Path, int], None],
    state: str,
) -> None:
    """Promise 3: the log alone counts. Each key is found by the index too: `verify` looks."""
    store = Path(shutil.copytree(getattr(stores, state), tmp_path / "store"))
    harm(store / name, 1)
    found, kept, _ = reopened(store)
    assert found == in_log(stores)
    assert not kept
