"""Stores that another process writes, or that nobody writes, served read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.types import CommitRequest, HalfId, WriterId
from rmqstore_spark.client import PutStream, StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RefusedError,
    SegmentExpiredError,
    ServiceError,
    StoreAccessError,
    StoreNotFoundError,
)
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import delay_progress, group_offsets
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.server.server import StoreServer
from rmqstore_spark.server.stores.sidecar import Sidecar, StorePlace, store_places
from rmqstore_spark.verify import verify
from tests.support.accounts import account_file, guarded
from tests.support.certificates import make_certificates
from tests.support.messages.batches import rows_block, small_segments
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.live_writer import LiveWriter
from tests.support.processes.serving import block_of, served, server_of
from tests.support.stores.golden import load_queues
from tests.support.stores.pages import drop_pages, resident
from tests.support.stores.records import commitlog_folders
from tests.support.stores.storing import as_killed

Golden = Callable[[str], Path]


@contextmanager
def sidecar(
    *places: StorePlace, config: StoreConfig | None = None, **settings: Any
) -> Iterator[StoreServer]:
    """Serve stores read-only."""
    config = config or StoreConfig(listen_port=0)
    stores = Sidecar(
        places, config, **{"spares_page_cache": True, "max_read_rate": None, **settings}
    ).stores
    server = server_of(stores, config)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def beside(path: Path, log_folders: Sequence[str] | None = None) -> Iterator[str]:
    """Serve one store read-only; give its endpoint."""
    folders = tuple(log_folders) if log_folders else None
    with sidecar(StorePlace("broker-a", str(path), folders)) as server:
        yield str(server.endpoints[0])


def shape(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return what a change of any file or folder would change; not the time of the last read."""
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        size = 0 if path.is_dir() else status.st_size
        found.append((str(path), size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def everything(store: Store) -> dict[str, Any]:
    """Return what readers can know of a store."""
    queues = store.queues()
    lose = ReadOptions(fail_on_data_loss=False)
    return {
        "closed": store.is_closed_cleanly,
        "written": store.is_being_written,
        "checkpoint": store.checkpoint,
        "topics": store.topics(),
        "bounds": {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in queues},
        "queues": [
            row
            for q in queues
            for batch in store.read(q.topic, q.queue_id, options=lose)
            for row in batch.to_pylist()
        ],
        "log": [row for batch in store.scan(options=lose) for row in batch.to_pylist()],
        "groups": (group_offsets(store), delay_progress(store)),
        "verified": str(verify(store).to_dict()).replace(store.path, "STORE"),
    }


# ---- what readers see --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["live", "trimmed-raw", "multipath", "dledger", "unclean", "unclean-torn"],
)
def test_a_golden_store_is_the_same_by_path_and_by_endpoint(golden: Golden, name: str) -> None:
    folder = golden(name)
    logs = [str(path) for path in commitlog_folders(folder)] if name == "multipath" else None
    before = shape(folder)
    with Store.open(folder / "store", broker_name="broker-a", commitlog_paths=logs) as near:
        here = everything(near)
    with beside(folder / "store", logs) as endpoint, Store.open(endpoint) as far:
        there = everything(far)
        for key, value in here.items():
            assert there[key] == value, key
        with StoreClient(endpoint) as client:
            ends = client.offsets()
            found = {
                (topic, int(number)): (queue.min_offset, queue.max_offset)
                for topic, queues in ends.queues.items()
                for number, queue in queues.items()
            }
            assert found == here["bounds"]
            settings = client.topics()
            assert sorted(settings) == [topic.name for topic in here["topics"]]
    assert shape(folder) == before


def test_the_queues_of_a_brokers_store_are_those_that_rocketmq_reports(golden: Golden) -> None:
    reported = {
        place: (queue.min_offset, queue.max_offset)
        for place, queue in load_queues(golden("live")).queues.items()
    }
    with beside(golden("live") / "store") as endpoint, StoreClient(endpoint) as client:
        for topic, queues in client.offsets().queues.items():
            for number, queue in queues.items():
                assert (queue.min_offset, queue.max_offset) == reported[topic, int(number)]


def test_messages_are_found_by_key(golden: Golden) -> None:
    with beside(golden("live") / "store") as endpoint, StoreClient(endpoint) as client:
        for sent in load_queues(golden("live")).keys[:8]:
            found = client.query(sent.topic, sent.key).column("physicalOffset").to_pylist()
            assert sorted(found) == sorted(sent.with_key or sent.physical_offsets)
            assert found


# ---- a store that is being written -------------------------------------------------------------


def test_a_store_is_followed_while_a_broker_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = LiveWriter(path, 4000)
    try:
        writer.write(500)
        with beside(path) as endpoint, Store.open(endpoint) as far, StoreClient(endpoint) as client:
            assert (far.is_closed_cleanly, far.is_being_written) == (False, True)
            assert sum(batch.num_rows for batch in far.scan()) == 500
            writer.write(1500)
            far.refresh()
            assert sum(batch.num_rows for batch in far.scan()) == 2000
            assert messages_in(client) == 2000
            writer.kill()
            assert (far.is_closed_cleanly, far.is_being_written) == (False, False)
            far.refresh()
            assert sum(batch.num_rows for batch in far.scan()) == 2000
            assert messages_in(client) == 2000
    finally:
        writer.kill()


def messages_in(client: StoreClient) -> int:
    queues = [queue for by_id in client.offsets().queues.values() for queue in by_id.values()]
    return sum(queue.max_offset - queue.min_offset for queue in queues)


def test_topics_appear_and_the_writer_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path) as here:
        here.store.put(block_of([b"one"] * 10))
        here.store.flush()
        with beside(path) as endpoint, Store.open(endpoint) as far:
            assert far.is_being_written
            assert {topic.name for topic in far.topics() if not topic.is_system} == {"orders"}
            here.store.put(block_of([b"two"] * 5, topic="bills"))
            here.store.flush()
            far.refresh()
            assert {"orders", "bills"} <= {topic.name for topic in far.topics()}
            assert far.queue("bills", 0).max_offset == 5
            here.server.close()
            here.store.close()
            assert far.is_closed_cleanly
            with served(path) as again:
                again.store.put(block_of([b"three"] * 2, topic="bills"))
                again.store.flush()
                far.refresh()
                assert far.is_being_written
                bodies = [row["body"] for b in far.read("bills", 0) for row in b.to_pylist()]
                assert bodies == [b"two"] * 5 + [b"three"] * 2


def test_a_segment_that_expires_is_reported_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path, mapped_file_size_commit_log=256 << 10) as here:
        for block in encoded_traffic(Traffic(2000, topics={"orders": 1}, body_size=(400, 600))):
            here.store.put(block)
    with beside(path) as endpoint, Store.open(endpoint) as far:
        total = far.queue("orders", 0).max_offset
        first = min((path / "commitlog").glob("0*"))
        first.unlink()
        with pytest.raises(SegmentExpiredError):
            list(far.read("orders", 0, 0, total))
        kept = far.read("orders", 0, 0, total, ReadOptions(fail_on_data_loss=False))
        assert 0 < sum(batch.num_rows for batch in kept) < total


# ---- nothing is written ------------------------------------------------------------------------


def test_whatever_would_write_is_refused_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path) as here:
        here.store.put(block_of([b"one"]))
    before = shape(path)
    with beside(path) as endpoint, StoreClient(endpoint, retries=0) as client:
        commit = CommitRequest(WriterId("stream", "q", 0), ())
        attempts: list[Callable[[], Any]] = [
            lambda: client.open(["orders"]),
            lambda: client.create_topic("new"),
            lambda: client.delete_topic("orders"),
            client.flush,
            lambda: client.commit_offsets("billing", {"orders": {0: 1}}),
            lambda: client.commit_offsets("billing", {"orders": {0: 0}}, reset=True),
            lambda: client.expire(1),
            lambda: client.expire(1, remove=True),
            lambda: half(client),
            lambda: client.producer("payments").commit([HalfId(0, 0)]),
            lambda: client.producer("payments").checks(),
            lambda: client.commit(commit),
            lambda: client.abort(["0" * 32]),
            lambda: put(client),
            lambda: stage(client),
        ]
        for attempt in attempts:
            with pytest.raises(RefusedError, match="broker-a is served read-only") as refused:
                attempt()
            assert refused.value.status == "NO_PERMISSION"
        assert client.open().broker_name == "broker-a"
        assert client.stats()["state"] == "READ_ONLY"
    assert shape(path) == before


def put(client: StoreClient) -> None:
    with client.put_stream() as stream:
        stream.put(block_of([b"x"]))


def half(client: StoreClient) -> None:
    with PutStream(client.connection, halves=True) as stream:
        stream.put(block_of([b"x"]))


def stage(client: StoreClient) -> None:
    with client.stage_stream() as stream:
        stream.send(block_of([b"x"]))
        stream.finish()


def test_it_asks_for_an_account_over_tls(tmp_path: Path, golden: Golden) -> None:
    given = make_certificates(tmp_path / "tls")
    config = StoreConfig(
        listen_port=0, tls_server_cert_path=given.server_cert,
        tls_server_key_path=given.server_key, **guarded(tmp_path / "accounts.yml"),
    )  # fmt: skip
    mine = str(account_file(tmp_path / "mine"))
    secrets: dict[str, Any] = {"acl_file": mine, "tls_ca": given.ca}
    place = StorePlace("broker-a", str(golden("tiny") / "store"))
    with sidecar(place, config=config) as server:
        endpoint = str(server.endpoints[0])
        assert endpoint.startswith("rmqs://127.0.0.1:")
        with Store.open(place.path, broker_name="broker-a") as near:
            wanted = list(near.scan())
        with Store.open(endpoint, storage_options=secrets) as far:
            assert list(far.scan()) == wanted
        missing: list[tuple[dict[str, Any], str]] = [
            ({"tls_ca": given.ca}, "aclFile"),
            ({"acl_file": mine}, "tlsCaFile"),
        ]
        for wrong, words in missing:
            with (
                StoreClient(endpoint, retries=0, timeout_s=5, **wrong) as client,
                pytest.raises(ServiceError, match=words),
            ):
                client.stats()


def test_no_lock_is_taken(tmp_path: Path) -> None:
    """A writer can open the store while it is served, and readers then see that it did."""
    path = tmp_path / "store"
    with served(path) as here:
        here.store.put(block_of([b"one"]))
    with beside(path) as endpoint, Store.open(endpoint) as far:
        assert sum(batch.num_rows for batch in far.scan()) == 1
        with served(path) as here:
            here.store.put(block_of([b"two"]))
            here.store.flush()
            far.refresh()
            assert sum(batch.num_rows for batch in far.scan()) == 2


# ---- several stores ----------------------------------------------------------------------------


def test_clients_name_one_of_several_stores(golden: Golden) -> None:
    live, tiny = golden("live") / "store", golden("tiny") / "store"
    places = [StorePlace("broker-a", str(live)), StorePlace("broker-b", str(tiny))]
    with sidecar(*places) as server:
        address = str(server.endpoints[0])
        for place in places:
            with (
                Store.open(f"{address}#{place.name}") as far,
                Store.open(place.path, broker_name=place.name) as near,
            ):
                assert far.broker_name == place.name
                assert list(far.scan()) == list(near.scan())
            with StoreClient(f"{address}#{place.name}") as client:
                assert client.open().broker_name == place.name
        with pytest.raises(RefusedError, match=r"Add one of these.*#broker-a, #broker-b"):
            StoreClient(address).topics()
        with pytest.raises(StoreAccessError, match=r"no store #broker-c\. It serves: #broker-a"):
            Store.open(f"{address}#broker-c")


def test_the_only_store_needs_no_name_but_another_name_is_refused(golden: Golden) -> None:
    with beside(golden("tiny") / "store") as endpoint:
        assert StoreClient(endpoint).topics() == StoreClient(f"{endpoint}#broker-a").topics()
        with pytest.raises(RefusedError, match="no store #broker-b"):
            StoreClient(f"{endpoint}#broker-b").topics()


def test_how_the_stores_of_a_command_are_named(tmp_path: Path) -> None:
    config = StoreConfig(broker_name="ours")
    assert store_places(["/data/store"], config) == [StorePlace("ours", "/data/store")]
    assert store_places(["x=/data/a=b"], config) == [StorePlace("x", "/data/a=b")]
    several = store_places(["/one/store", "b=/two/store", "./c=d/e"], config)
    assert [place.name for place in several] == ["one", "b", "e"]
    assert several[2].path == os.path.abspath("./c=d/e")
    wrong: list[tuple[list[str], StoreConfig, str]] = [
        ([], config, "No store given"),
        (["/a/store", "/b/a/store"], config, "both called 'a'.*--store NAME=/b/a/store"),
        (["a b=/a", "/b"], config, "'a b' cannot be the name"),
        (["rmq://h:1", "/b"], config, "is a URL"),
        (["/a", "/b"], StoreConfig(store_path_commit_log="/log"), "a process of its own"),
    ]
    for given, settings, words in wrong:
        with pytest.raises(OptionError, match=words):
            store_places(given, settings)


def test_a_path_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError), beside(tmp_path):
        pass


def test_a_store_that_is_gone_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with served(tmp_path / name) as here:
            here.store.put(block_of([b"one"]))
    places = [StorePlace(name, str(tmp_path / name)) for name in ("a", "b")]
    found = Sidecar(places, StoreConfig(), spares_page_cache=False, max_read_rate=None)
    assert found.stats()["state"] == "READ_ONLY"
    shutil.rmtree(tmp_path / "b")
    stats = found.stats()
    assert stats["state"] == "FAILED"
    assert stats["stores"]["b"] == {"state": "FAILED"}
    assert stats["stores"]["a"]["queues"]["orders"]["0"] == [0, 1]


# ---- the page cache ----------------------------------------------------------------------------


def test_reading_old_segments_leaves_the_newest_ones_in_the_page_cache(on_disk: Path) -> None:
    path = on_disk / "store"
    with served(path, mapped_file_size_commit_log=16 << 20) as here:
        block = block_of([b"x" * (1 << 20)] * 8)
        for _ in range(12):
            assert here.store.put(block).ok
    *cold, hot, newest = sorted((path / "commitlog").glob("0*"))
    assert len(cold) >= 4
    for file in (*cold, hot, newest):
        drop_pages(file)
    for file in (hot, newest):
        file.read_bytes()
    with beside(path) as endpoint, Store.open(endpoint) as far:
        assert sum(batch.num_rows for batch in far.scan()) == 96
    assert max(resident(file) for file in cold) < 0.1
    assert min(resident(file) for file in (hot, newest)) > 0.9


def test_what_a_killed_process_had_flushed_and_is_missing_is_missed_through_an_endpoint_too(
    tmp_path: Path,
) -> None:
    killed = tmp_path / "killed"
    with StoreWriter.open(tmp_path / "store", small_segments(flushDiskType="SYNC_FLUSH")) as writer:
        assert writer.put(rows_block([bytes(500)] * 100)).ok
        writer.flush()
        as_killed(tmp_path / "store", killed)
    names = sorted(path for path in (killed / "commitlog").iterdir() if path.name.isdigit())
    assert len(names) > 3
    names[-1].unlink()
    with beside(killed) as endpoint:
        for path in (killed, endpoint):
            with Store.open(path) as store:
                for queue in store.queues(["orders", "bills"]):
                    with pytest.raises(CorruptStoreError, match="past the end of the CommitLog"):
                        list(store.read(queue.topic, queue.queue_id))
                with pytest.raises(CorruptStoreError, match="the files of the CommitLog end at"):
                    list(store.scan())
                options = ReadOptions(mode="DROPMALFORMED")
                left = sum(map(len, store.scan(options=options)))
                assert 50 < left < 100
                assert left == sum(
                    len(batch)
                    for queue in store.queues(["orders", "bills"])
                    for batch in store.read(queue.topic, queue.queue_id, options=options)
                )
