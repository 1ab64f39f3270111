"""Stores read through their process: the same rows as from their files."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.client.connection import Connection
from rmqstore_spark.client.endpoint_files import EndpointFiles
from rmqstore_spark.errors import OptionError, ServiceError, TopicNotFoundError
from rmqstore_spark.files.systems.base import FileRange
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.open import open_files
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import QueueRange, QueueSplit, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan, read_split
from rmqstore_spark.wire.protocol import Code
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import Served, block_of, served
from tests.support.waiting import PATIENCE


@pytest.fixture(params=["endpoint", "socket"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(
        tmp_path / "store",
        listen_socket=str(tmp_path / "run" / "store.sock"),
        broker_name="broker-of-ours",
    ) as found:
        found.store.create_topic("orders", write_queue_nums=3)
        traffic = Traffic(4000, topics={"orders": 3}, body_size=(10, 2000))
        for block in encoded_traffic(traffic):
            assert found.store.put(block).ok
        found.store.flush()
        yield found


def no_error(relative: str, error: Exception) -> None:
    raise AssertionError(relative) from error


def rows(store: Store) -> list[dict[str, object]]:
    return [row for batch in store.scan() for row in batch.drop_columns("brokerName").to_pylist()]


def test_the_same_rows_as_from_the_files(here: Served, place: str) -> None:
    with Store.open(here.store.path) as near, Store.open(getattr(here, place)) as far:
        assert far.broker_name == "broker-of-ours"
        assert far.topics() == near.topics()
        assert rows(far) == rows(near)
        assert len(rows(far)) == 4000
        for queue_id in range(3):
            mine, theirs = far.queue("orders", queue_id), near.queue("orders", queue_id)
            assert (mine.min_offset, mine.max_offset) == (theirs.min_offset, theirs.max_offset)
            assert mine.max_offset > mine.min_offset
            assert mine.offset_at(1_700_000_000_200) == theirs.offset_at(1_700_000_000_200)
        with_key = [query_by_key(store, "orders", "order-0000000042") for store in (far, near)]
        assert with_key[0].num_rows == 1
        assert with_key[0].drop_columns("brokerName") == with_key[1].drop_columns("brokerName")


def test_many_queues_take_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "store") as here:
        here.store.create_topic("orders", write_queue_nums=40)
        for block in encoded_traffic(Traffic(4000, topics={"orders": 40}, body_size=100)):
            assert here.store.put(block).ok
        here.store.flush()
        requests = 0

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal requests
                requests += 1
                return method(*args, **named)

            return call

        monkeypatch.setattr(Connection, "exchange", counted(Connection.exchange))
        tables = {}
        for place in (here.store.path, here.endpoint):
            with Store.open(place) as store:
                ranges = [
                    QueueRange(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
                    for queue in store.queues()
                ]
                splits = plan(store, ranges, PlanLimits(min_partitions=2), by="commitlog")
                assert len(splits) == 2
            with Store.open(place) as store:
                requests = 0
                batches = [b for split in splits for b in read_split(store, split, ReadOptions())]
                tables[place] = pa.Table.from_batches(batches).drop_columns("brokerName")
                assert len(ranges) == 40
        assert tables[here.store.path].num_rows == 4000
        assert tables[here.store.path].equals(tables[here.endpoint])
        assert 0 < requests < 20


def test_a_task_that_reads_one_queue_lists_no_other(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    exchange = Connection.exchange

    def noted(self: Connection, code: Code, body: bytes, *rest: Any) -> Any:
        if code == Code.WALK:
            listed.append(json.loads(body)["path"])
        return exchange(self, code, body, *rest)

    monkeypatch.setattr(Connection, "exchange", noted)
    with Store.open(here.endpoint, broker_name="a name") as store:
        assert listed == ["", "commitlog"]
        split = QueueSplit(QueueRange("orders", 1, 0, 5), 0)
        found = [n for b in read_split(store, split, ReadOptions()) for n in b["queueOffset"]]
        assert len(found) == 5
        assert listed[2:] == ["consumequeue/orders/1"]
        with pytest.raises(TopicNotFoundError, match="It has: orders"):
            store.queue("none", 0)


def test_one_of_several_files_is_missing(here: Served) -> None:
    files = EndpointFiles(here.endpoint)
    there, missing = (f"{files.root}/commitlog/{name:020}" for name in (0, 7))
    parts = files.read_many([FileRange(there, 0, 4), FileRange(there, 4, 4)])
    assert b"".join(parts) == files.read(there, 0, 8) != b""
    with pytest.raises(FileNotFoundError, match=f"{7:020}"):
        files.read_many([FileRange(there, 0, 4), FileRange(missing, 0, 4)])


def test_what_is_put_is_seen_after_a_refresh(here: Served, place: str) -> None:
    with Store.open(getattr(here, place)) as far:
        before = far.queue("orders", 0).max_offset
        for block in encoded_traffic(Traffic(300, topics={"orders": 1})):
            here.store.put(block)
        here.store.flush()
        far.refresh()
        assert far.queue("orders", 0).max_offset == before + 300


def test_what_is_put_during_a_scan_is_no_damage(tmp_path: Path) -> None:
    """The scan has read the log's end as it was, and then the queues name more."""
    with served(tmp_path / "store") as here:
        here.store.create_topic("orders", write_queue_nums=1)
        here.store.put(block_of([b"first"] * 30))
        here.store.flush()
        with Store.open(here.endpoint) as store:
            batches = store.scan(options=ReadOptions(columns=("body",), batch_rows=10))
            found = next(batches).num_rows
            here.store.put(block_of([b"second"] * 30))
            here.store.flush()
            store.refresh()
            found += sum(batch.num_rows for batch in batches)
        assert found == 60


def test_to_its_readers_the_store_is_a_closed_one(here: Served, place: str) -> None:
    with Store.open(getattr(here, place)) as far:
        assert far.is_closed_cleanly
        names = {info.name for info in far.directory.files.list(far.path)}
        assert names == {"checkpoint", "commitlog", "config", "consumequeue", "index", "rmqstore"}
        inside = {info.name for info in far.directory.files.list(f"{far.path}/commitlog")}
        assert all(name.isdigit() for name in inside)
        assert not far.directory.files.list(f"{far.path}/rmqstore")  # no topic was deleted


def test_a_folder_a_file_and_what_is_missing(here: Served, place: str) -> None:
    files, root = open_files(getattr(here, place))
    near = Path(here.store.path, "config", "topics.json")
    assert files.read(f"{root}/config/topics.json", 0, 1 << 20) == near.read_bytes()
    assert files.size(f"{root}/config/topics.json") == near.stat().st_size
    assert files.exists(f"{root}/commitlog")
    assert not files.exists(f"{root}/abort")
    with pytest.raises(FileNotFoundError):
        files.read(f"{root}/config/none.json", 0, 10)
    with pytest.raises(FileNotFoundError):
        files.list(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        files.list(f"{root}/config/topics.json")


def test_a_tree_is_listed_as_it_is(here: Served, place: str) -> None:
    files, root = open_files(getattr(here, place))
    local = LocalFiles()
    for depth in (0, 1, 2, 3):
        far = dict(files.walk(f"{root}/consumequeue", depth, no_error))
        near = dict(local.walk(f"{here.store.path}/consumequeue", depth, no_error))
        assert {folder: [info.name for info in listing] for folder, listing in far.items()} == {
            folder: [info.name for info in listing] for folder, listing in near.items()
        }
        assert len(far) == (1, 2, 5, 5)[depth]
        for folder, listing in far.items():
            whole = [f"{path}/consumequeue/{folder}" for path in (root, here.store.path)]
            found = [files.list(whole[0]), local.list(whole[1])]
            sizes = [[(i.name, i.size, i.is_dir) for i in infos] for infos in (listing, *found)]
            assert sizes[0] == sizes[1] == sizes[2] != []
    told: list[tuple[str, str]] = []
    missing = files.walk(f"{root}/none", 1, lambda at, e: told.append((at, type(e).__name__)))
    assert (list(missing), told) == ([], [("", "FileNotFoundError")])


def test_it_goes_to_other_processes(here: Served, place: str) -> None:
    files = EndpointFiles(getattr(here, place), timeout_s=7.0)
    sent = pickle.loads(pickle.dumps(files))
    path = f"{sent.root}/config/topics.json"
    near = Path(here.store.path, "config", "topics.json").read_bytes()
    assert sent.read(path, 0, 1 << 20) == near
    assert sent.read(path, 3, 6) == near[3:9]
    assert sent.connection.timeout_s == 7.0
    assert (sent.root, sent.place) == (files.root, files.place)
    sent.close()
    assert sent.read(path, 0, 9) == near[:9]


FORKED = """
import os, sys
from rmqstore_spark.files.systems.base import FileRange
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.open import open_files

files, root = open_files(sys.argv[1])
name = root + "/commitlog/" + "0" * 20
whole = files.read(name, 0, 100_000)
assert len(whole) == 100_000, len(whole)

def check(order):
    for at in order:
        assert files.read(name, at, 100) == whole[at : at + 100], at

child = os.fork()
if child == 0:
    try:
        check(range(0, 99_000, 997))
    except BaseException:
        os._exit(1)
    os._exit(0)
check(range(99_000, 0, -997))
assert os.waitpid(child, 0)[1] == 0
check([3])
"""


def test_a_forked_child_reads_on_its_own(here: Served) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED, here.endpoint],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_ends_before_its_ranges_do(here: Served, place: str) -> None:
    files, root = open_files(getattr(here, place))
    name = f"{root}/config/topics.json"
    near = Path(here.store.path, "config", "topics.json").read_bytes()
    size = len(near)
    assert files.read_many([FileRange(name, size - 3, 9), FileRange(name, size, 4)]) == [
        near[-3:], b"",
    ]  # fmt: skip
    out = np.zeros(20 << 20, np.uint8)
    assert files.read_into(name, 2, out) == size - 2
    assert out[: size - 2].tobytes() == near[2:]
    lengths = np.array([2, 4, 4])
    for offsets in ([0, size - 6, size - 2], [0, size - 6, size + (1 << 20)]):
        assert files.read_spans(name, np.array(offsets), lengths, out) == 2
        assert out[:6].tobytes() == near[:2] + near[-6:-2]


def test_an_unknown_option_is_told() -> None:
    with pytest.raises(OptionError, match="aclFile"):
        open_files("rmq://127.0.0.1:1", {"aclFile": "/secret"})


def test_nothing_listens_there() -> None:
    with pytest.raises(ServiceError, match="rmqstore serve"):
        Store.open("rmq://127.0.0.1:1")


def test_what_cannot_be_asked_is_not_missing() -> None:
    files, root = open_files("rmq://127.0.0.1:1", {"retries": 0})
    with pytest.raises(ServiceError, match="Nothing listens on"):
        files.exists(f"{root}/abort")
    with pytest.raises(FileNotFoundError, match="not below"):
        files.size("rmq://127.0.0.1:10/config")


def test_the_golden_stores_of_a_broker(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A store that RocketMQ wrote, opened by us, read through the process."""
    copy = tmp_path / "store"
    shutil.copytree(golden("basic") / "store", copy)
    with Store.open(copy) as near:
        expected = rows(near)
    with served(copy, message_index_enable=False) as here, Store.open(here.endpoint) as far:
        assert rows(far) == expected
        assert len(expected) > 1000
