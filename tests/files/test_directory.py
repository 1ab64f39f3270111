from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.errors import OptionError, StoreNotFoundError, UnsupportedStoreError
from rmqstore_spark.files.directory import StoreDirectory
from tests.files.conftest import Publish

SEGMENT = "0" * 20


def make_store(path: Path) -> Path:
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / SEGMENT).write_bytes(b"log")
    (path / "consumequeue" / "T" / "0").mkdir(parents=True)
    (path / "consumequeue" / "T" / "0" / SEGMENT).write_bytes(b"queue")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "broker" / "store")


def refusal(path: Path) -> str:
    with pytest.raises(StoreNotFoundError) as caught:
        StoreDirectory.open(path)
    text = str(caught.value)
    assert str(path) in text
    assert "commitlog/" in text
    assert "files named by 20 digits" in text
    return text


# ---- golden stores ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "live", "unclean", "unclean-nocq", "v5basic"])
def test_parts_of_a_brokers_store(golden: Callable[[str], Path], name: str) -> None:
    path = golden(name) / "store"
    directory = StoreDirectory.open(path)
    assert directory.is_closed_cleanly == (not name.startswith("unclean"))
    assert len(directory.commit_log()) == len(list((path / "commitlog").iterdir()))
    assert directory.dledger_log() is None
    assert set(directory.topology.queues) == set(os.listdir(path / "consumequeue"))
    assert not directory.has_rocksdb_queues
    assert directory.batch_queues().queues == {}
    index, skipped = directory.index_files()
    assert [info.name for info in index] == sorted(os.listdir(path / "index"))
    assert skipped == []
    assert os.path.exists(directory.checkpoint_path)
    for topic, queue_ids in directory.topology.queues.items():
        for queue_id in queue_ids:
            assert len(directory.queue(topic, queue_id)) > 0
            assert len(directory.queue_extension(topic, queue_id)) == 0


def test_several_commitlog_folders(golden: Callable[[str], Path]) -> None:
    path = golden("multipath") / "store"
    with pytest.raises(StoreNotFoundError, match="storePathCommitLog"):
        StoreDirectory.open(path)
    folders = [str(path / "clA"), f"file://{path}/clB/"]
    directory = StoreDirectory.open(path, commitlog_paths=folders)
    log = directory.commit_log()
    assert log.gaps == []
    assert len(log) == sum(len(os.listdir(path / folder)) for folder in ("clA", "clB"))
    half = StoreDirectory.open(path, commitlog_paths=folders[:1]).commit_log()
    assert half.gaps


def test_a_dledger_store(golden: Callable[[str], Path]) -> None:
    path = golden("dledger") / "store"
    directory = StoreDirectory.open(path)
    log = directory.dledger_log()
    assert log is not None
    assert log.self_id == "n0"
    assert min(os.listdir(log.data)) == SEGMENT
    assert os.listdir(log.index)
    assert "committedIndex" in Path(log.checkpoint).read_text()
    assert len(directory.commit_log()) == 0


def test_extension_queues(golden: Callable[[str], Path]) -> None:
    directory = StoreDirectory.open(golden("extcq") / "store")
    assert [segment.start for segment in directory.queue_extension("ExtTopic", 0)] == [0, 4096]


def test_configuration(golden: Callable[[str], Path]) -> None:
    directory = StoreDirectory.open(golden("live") / "store")
    topics = directory.config("topics.json")
    assert topics is not None
    assert "topicConfigTable" in topics
    assert directory.config("nothing.json") is None


def test_every_file_system_shows_the_same_store(
    golden: Callable[[str], Path], publish: Publish
) -> None:
    expected = StoreDirectory.open(golden("live") / "store")
    files, path = publish(golden("live") / "store")
    directory = StoreDirectory(files, path)
    assert directory.topology.queues == expected.topology.queues
    for topic, queue_ids in directory.topology.queues.items():
        for queue_id in queue_ids:
            found, wanted = directory.queue(topic, queue_id), expected.queue(topic, queue_id)
            assert found.starts.tolist() == wanted.starts.tolist()
            assert found.end_offset == wanted.end_offset
            assert found.read_range(found.min_offset, 200) == wanted.read_range(
                wanted.min_offset, 200
            )
    assert [info.name for info in directory.index_files()[0]] == [
        info.name for info in expected.index_files()[0]
    ]
    assert directory.config("topics.json") == expected.config("topics.json")


# ---- change -------------------------------------------------------------------------------------


def test_new_queues_show_after_refresh(store: Path) -> None:
    directory = StoreDirectory.open(store)
    assert directory.topology.queues == {"T": (0,)}
    (store / "consumequeue" / "T" / "1").mkdir()
    (store / "consumequeue" / "New" / "0").mkdir(parents=True)
    assert directory.topology.queues == {"T": (0,)}
    directory.refresh()
    assert directory.topology.queues == {"New": (0,), "T": (0, 1)}
    shutil.rmtree(store / "consumequeue" / "T")
    assert len(directory.queue("T", 0)) == 0
    directory.refresh()
    assert directory.topology.queues == {"New": (0,)}


def test_a_directory_travels_without_its_topology(store: Path) -> None:
    directory = StoreDirectory.open(store, commitlog_paths=[str(store / "commitlog")])
    assert directory.topology.queues == {"T": (0,)}
    packed = pickle.dumps(directory)
    (store / "consumequeue" / "T" / "1").mkdir()
    copy: StoreDirectory = pickle.loads(packed)
    assert copy.topology.queues == {"T": (0, 1)}
    assert copy.commitlog_folders == directory.commitlog_folders


def test_abort_tells_a_store_that_is_in_use(store: Path) -> None:
    directory = StoreDirectory.open(store)
    assert directory.is_closed_cleanly
    (store / "abort").touch()
    assert not directory.is_closed_cleanly


def test_strays_in_index(store: Path) -> None:
    (store / "index" / "20261121000515247").mkdir(parents=True)
    for name in ("20261121000150640", "20261121000151073", "x", "2026112100015064\u0660"):
        (store / "index" / name).write_bytes(b"index")
    index, skipped = StoreDirectory.open(store).index_files()
    assert [info.name for info in index] == ["20261121000150640", "20261121000151073"]
    assert len(skipped) == 3


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_rocksdb"])
def test_rocksdb_queues_are_recognised(store: Path, folder: str) -> None:
    (store / folder).mkdir(exist_ok=True)
    (store / folder / "CURRENT").write_text("MANIFEST-000001")
    assert StoreDirectory.open(store).has_rocksdb_queues


def test_batch_queues_are_recognised(store: Path) -> None:
    (store / "batchconsumequeue" / "B" / "0").mkdir(parents=True)
    assert StoreDirectory.open(store).batch_queues().queues == {"B": (0,)}


# ---- no store -----------------------------------------------------------------------------------


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError) as caught:
        StoreDirectory.open(tmp_path / "nothing")
    assert f"{tmp_path}/nothing does not exist. Use " in str(caught.value)


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "an empty folder" in refusal(tmp_path)


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert "it is a file" in refusal(tmp_path / "file")


def test_an_archive_that_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "store.zip").write_bytes(b"PK")
    assert f"zip://FOLDER::{tmp_path}/store.zip" in refusal(tmp_path / "store.zip")


def test_what_is_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(20):
        (tmp_path / f"picture{number:02}").write_bytes(b"x")
    text = refusal(tmp_path)
    assert "photos/, picture00" in text
    assert "13 more" in text


@pytest.mark.parametrize("below", ["commitlog", "consumequeue", "consumequeue/T/0"])
def test_a_path_into_a_store(store: Path, below: str) -> None:
    assert f"inside the store {store}:" in refusal(store / below)


def test_a_path_above_stores(store: Path, tmp_path: Path) -> None:
    assert f"looks like a store: {store}." in refusal(store.parent)
    other = make_store(tmp_path / "broker-b" / "store")
    assert f"looks like a store: {store} or {other}." in refusal(tmp_path)


def test_queues_without_a_log(store: Path) -> None:
    shutil.rmtree(store / "commitlog")
    assert "storePathCommitLog" in refusal(store)


@pytest.mark.parametrize("names", [["x"], ["0" * 19], ["readme", SEGMENT + ".bak"]])
def test_a_commitlog_folder_without_segments(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "commitlog").mkdir()
    for name in names:
        (tmp_path / "commitlog" / name).write_bytes(b"x")
    refusal(tmp_path)


def test_a_new_brokers_store_is_one(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "lock").touch()
    directory = StoreDirectory.open(tmp_path)
    assert len(directory.commit_log()) == 0
    assert directory.topology.queues == {}


def test_junk_beside_the_store_does_not_matter(store: Path) -> None:
    (store / "commitlog" / "junk").write_bytes(b"x")
    (store / "commitlog" / "circle").symlink_to(store / "commitlog" / "circle")
    (store / "circle").symlink_to(store)
    os.mkfifo(store / "pipe")
    os.makedirs(os.fsencode(store) + b"/\xff")
    (store / "dledger-empty" / "data").mkdir(parents=True)
    (store / "dledger-file").write_bytes(b"x")
    directory = StoreDirectory.open(store)
    assert len(directory.commit_log()) == 1
    assert len(directory.commit_log().strays) == 2
    assert directory.dledger_log() is None


def test_a_link_to_a_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    directory = StoreDirectory.open(tmp_path / "link")
    assert directory.topology.queues == {"T": (0,)}


def test_two_dledger_members(tmp_path: Path) -> None:
    for member in ("n0", "n1"):
        data = tmp_path / f"dledger-{member}" / "data"
        data.mkdir(parents=True)
        (data / SEGMENT).write_bytes(b"x")
    with pytest.raises(UnsupportedStoreError, match="dledger-n0, dledger-n1"):
        StoreDirectory.open(tmp_path)


@pytest.mark.parametrize("path", ["s3://bucket/commitlog", "", "zip://a::/b.zip"])
def test_a_commitlog_on_another_file_system(store: Path, path: str) -> None:
    with pytest.raises(OptionError, match="file system"):
        StoreDirectory.open(store, commitlog_paths=[path])


def test_a_commitlog_folder_that_is_not_there(store: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="nothing"):
        StoreDirectory.open(store, commitlog_paths=[str(store / "nothing")])


@pytest.mark.parametrize("kind", ["zip", "memory"])
def test_errors_on_other_file_systems_are_the_same(
    store: Path, publish: Publish, kind: str, tmp_path: Path
) -> None:
    _, path = publish(tmp_path / "broker")
    url = f"memory:/{path}"
    if kind == "zip":
        (archive,) = tmp_path.glob("*.zip")
        url = f"zip://broker::{archive}"
    with pytest.raises(StoreNotFoundError, match=f"looks like a store: {path}/store"):
        StoreDirectory.open(url)
    with pytest.raises(StoreNotFoundError, match=r"nothing.* does not exist"):
        StoreDirectory.open(url.replace("broker", "nothing"))
    assert StoreDirectory.open(url.replace("broker", "broker/store")).topology.queues == {"T": (0,)}


def test_an_address_that_lacks_its_scheme_is_taken_for_an_endpoint() -> None:
    with pytest.raises(StoreNotFoundError, match=r"its endpoint is rmq://127\.0\.0\.1:10921"):
        StoreDirectory.open("127.0.0.1:10921")
