"""A bit changed in each field of each kind of file: promises 4 and 8 (docs/reliability.md).

Whatever is changed, the store is opened, or refused in words with the file; no row that is read is
another than was written, and none is missing without a word. What no reader can notice is a change
in a field that nothing else in a record depends on (its times, flags, hosts and properties): such a
row is at its place with its body. And where a record says another topic, queue or queue offset than
was written, and queues are made of the log, it moves there.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.layout.index.format import entry_position, slot_position
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.messages import block
from tests.fault.stores import NOW, TINY, SmallStores, make_stores, rows_of, settings

pytestmark = pytest.mark.fault

BEFORE_BODY: Final = {
    "totalSize": (0, 4), "magicCode": (4, 4), "bodyCRC": (8, 4), "queueId": (12, 4),
    "flag": (16, 4), "queueOffset": (20, 8), "physicalOffset": (28, 8), "sysFlag": (36, 4),
    "bornTimestamp": (40, 8), "bornHost": (48, 8), "storeTimestamp": (56, 8),
    "storeHost": (64, 8), "reconsumeTimes": (72, 4), "preparedTransactionOffset": (76, 8),
    "bodyLength": (84, 4), "body": (88, 12),
}  # fmt: skip
BEHIND_BODY: Final = {
    "topicLength": (88, 1), "topic": (89, 8), "propertiesLength": (97, 2), "properties": (99, 10),
}  # fmt: skip
FIELDS: Final = {
    "record": BEFORE_BODY | BEHIND_BODY,
    "queue": {"offset": (0, 8), "size": (8, 4), "tagsCode": (12, 8)},
    "index": {
        "beginTimestamp": (0, 8), "endTimestamp": (8, 8), "beginPhyOffset": (16, 8),
        "endPhyOffset": (24, 8), "hashSlotCount": (32, 4), "indexCount": (36, 4),
    },
    "slot": {"number": (0, 4)},
    "key": {"keyHash": (0, 4), "phyOffset": (4, 8), "timeDiff": (12, 4), "previous": (16, 4)},
    "checkpoint": {"physic": (0, 8), "logics": (8, 8), "index": (16, 8), "rest": (24, 64)},
}  # fmt: skip
"""Where each field is in what it belongs to, and how long, in bytes."""

UNGUARDED: Final = ("queueId", "queueOffset", "topic", "sysFlag")

FILES: Final = (
    "config/topics.json", "config/topics.json.bak", "rmqstore/ledger.json", "rmqstore/state.json",
    "commitlog/rmqstore-spark.guard", "rmqstore/staging/*/records", "rmqstore/staging/*/rows",
)  # fmt: skip
"""Files in which any bit may be the one."""

EMPTY: Final = ("abort", "lock")

_NEW: Final = 200  # number of the first message put after the damage


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> SmallStores:
    """The stores; only copies are changed."""
    return make_stores(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("kind", FIELDS)
def test_a_bit_of_a_field(stores: SmallStores, tmp_path: Path, kind: str, state: str) -> None:
    outcomes = set()
    for turn, (name, (begin, length)) in enumerate(FIELDS[kind].items()):
        for where in range(3):
            store = Path(shutil.copytree(getattr(stores, state), tmp_path / f"{name}-{where}"))
            path, at = place_of(kind, stores, store, where, name in BEHIND_BODY)
            bit = random.Random(f"{name}{state}").randrange(length * 8)
            flip(path, at + begin, (0, length * 8 - 1, bit)[(turn + where) % 3])
            outcomes.add(outcome(store, stores, moves=name in UNGUARDED))
            shutil.rmtree(store)
    expected = {"record": {"whole", "refused", "part"}, "queue": {"whole", "refused"}}
    assert outcomes == expected.get(kind, {"whole"})


@pytest.mark.parametrize("name", FILES)
def test_a_bit_of_what_is_beside_the_messages(
    stores: SmallStores, tmp_path: Path, name: str
) -> None:
    tried = 0
    for state in (stores.closed, stores.killed):
        for seed in range(4 if any(state.glob(name)) else 0):
            store = Path(shutil.copytree(state, tmp_path / f"{state.name}-{seed}"))
            (path,) = store.glob(name)
            flip(path, 0, random.Random(f"{name}{seed}").randrange(path.stat().st_size * 8))
            assert outcome(store, stores) == "whole"
            tried += 1
    assert tried


@pytest.mark.parametrize("name", EMPTY)
def test_something_in_an_empty_file(stores: SmallStores, tmp_path: Path, name: str) -> None:
    store = Path(shutil.copytree(stores.killed, tmp_path / "store"))
    (store / name).write_bytes(random.Random(name).randbytes(1000))
    assert outcome(store, stores) == "whole"


def flip(path: Path, at: int, bit: int) -> None:
    """Change one bit, the 0th being the highest of the byte at `at`."""
    with path.open("r+b") as file:
        file.seek(at + bit // 8)
        byte = file.read(1)[0]
        file.seek(at + bit // 8)
        file.write(bytes([byte ^ 0x80 >> bit % 8]))


def place_of(
    kind: str, stores: SmallStores, store: Path, where: int, behind_body: bool
) -> tuple[Path, int]:
    """File of an early, a middle or a late thing of a kind, and where in it that begins.

    The late record is the last, which no checkpoint knows as flushed.
    """
    if kind == "record":
        rows = sorted(stores.rows.values(), key=lambda row: row[3])
        row = rows[(3, len(rows) // 2, -1)[where]]
        at = row[3] + (len(row[4]) if behind_body else 0)
        size = TINY["mappedFileSizeCommitLog"]
        return store / "commitlog" / f"{at // size * size:020}", at % size
    if kind == "queue":
        at = (0, 5, 12)[where] * CONSUME_QUEUE.size
        size = TINY["mappedFileSizeConsumeQueue"]
        return store / "consumequeue/orders-1/2" / f"{at // size * size:020}", at % size
    if kind == "checkpoint":
        return store / "checkpoint", 0
    file = sorted((store / "index").iterdir())[where % 2]
    if kind == "index":
        return file, 0
    if kind == "slot":
        return file, slot_position(3 * where)
    return file, entry_position(TINY["maxHashSlotNum"], 1 + where)


def outcome(path: Path, stores: SmallStores, *, moves: bool = False) -> str:
    """Open a damaged store, write to it, read it.

    Args:
        path: the store.
        stores: what was in it.
        moves: what was changed says where a message belongs, and nothing guards it.

    Returns:
        "whole": nothing has changed; "part": some is missing, and that is reported; "refused":
        with the file; otherwise what is wrong.
    """
    try:
        with StoreWriter.open(path, settings(), clock=lambda: NOW) as store:
            cuts = store.recovery.cuts
            result = store.put(block(_NEW, 4))
            assert result.ok
            assert store.stats()["commitLogMaxOffset"] < 1 << 20
        rows = rows_of(path)
    except RmqStoreError as error:
        return "refused" if str(path) in str(error) else f"{error} names no file"
    old = [row for row in rows if int(row[4][:12]) < _NEW]
    assert len(rows) == len(old) + 4
    places = {row[:3]: row for row in old}
    assert len(places) == len(old)
    if any(stores.rows.get(row[:3]) != row for row in old):
        assert moves
        assert {row[3:] for row in old} <= {row[3:] for row in stores.rows.values()}
    gone = [row for row in stores.rows.values() if places.get(row[:3]) != row]
    if cuts:
        assert all(Path(cut.kept).stat().st_size for cut in cuts)
        assert all(row[3] >= min(cut.start for cut in cuts) for row in gone)
    elif gone:
        with Store.open(path) as reader:
            assert verify(reader).problems
    return "part" if gone else "whole"
