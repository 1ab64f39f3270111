from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.systems.base import FileInfo, Listing, join
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.topology import Topology
from tests.files.conftest import Publish
from tests.support.stores.golden import load_entries

SEGMENT = "0" * 20


def make_queue(root: Path, topic: str, queue_id: str) -> Path:
    folder = root / topic / queue_id
    folder.mkdir(parents=True)
    (folder / SEGMENT).write_bytes(b"q" * 20)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "consumequeue"
    make_queue(root, "Real", "0")
    make_queue(root, "Real", "10")
    make_queue(root, "Real", "2")
    return root


@pytest.mark.parametrize("name", ["basic", "delayed", "extcq", "flags", "live", "lmq", "v5basic"])
def test_queues_are_those_that_rocketmq_lists(
    golden: Callable[[str], Path], publish: Publish, name: str
) -> None:
    store = golden(name)
    files, path = publish(store / "store")
    topology = Topology.load(files, join(path, "consumequeue"))
    expected: dict[str, list[int]] = {}
    for topic, queue_id in sorted(load_entries(store)):
        expected.setdefault(topic, []).append(queue_id)
    assert topology.queues == {topic: tuple(ids) for topic, ids in expected.items()}
    assert topology.skipped == []


def test_queue_ids_are_in_the_order_of_numbers(root: Path, publish: Publish) -> None:
    files, path = publish(root)
    assert Topology.load(files, path).queues == {"Real": (0, 2, 10)}


def test_no_folder_no_queues(tmp_path: Path, publish: Publish) -> None:
    (tmp_path / "store" / "consumequeue").mkdir(parents=True)
    (tmp_path / "store" / "checkpoint").write_bytes(b"x")
    files, path = publish(tmp_path / "store")
    for name in ("consumequeue", "nothing", "checkpoint"):
        topology = Topology.load(files, join(path, name))
        assert topology == Topology({}, {}, [])


@pytest.mark.parametrize(
    "name",
    ["007", "-1", "+1", "1.0", "1e3", "one", "٣", "²", "0x1", "2147483648", "9" * 200, " 1", "1 "],
)
def test_a_folder_that_is_no_queue_id_is_skipped(root: Path, publish: Publish, name: str) -> None:
    make_queue(root, "Real", name)
    files, path = publish(root)
    topology = Topology.load(files, path)
    assert topology.queues == {"Real": (0, 2, 10)}
    assert [skipped.path for skipped in topology.skipped] == [join(path, "Real", name)]


def test_the_largest_queue_id(root: Path, publish: Publish) -> None:
    make_queue(root, "Real", "2147483647")
    files, path = publish(root)
    assert Topology.load(files, path).queues["Real"][-1] == 2**31 - 1


def test_files_and_folders_beside_the_queues_are_skipped(root: Path, publish: Publish) -> None:
    (root / "stray.txt").write_bytes(b"x")
    (root / "Real" / "7").write_bytes(b"a file named like a queue")
    (root / "Odd" / "notes").mkdir(parents=True)
    (root / "Odd" / "notes" / "x").write_bytes(b"x")
    files, path = publish(root)
    topology = Topology.load(files, path)
    assert topology.queues == {"Real": (0, 2, 10)}
    assert {skipped.path: skipped.reason for skipped in topology.skipped} == {
        join(path, "Odd", "notes"): "the name is not a queue id",
        join(path, "Odd"): "a folder without queues",
        join(path, "Real", "7"): "a file instead of a folder",
        join(path, "stray.txt"): "a file instead of a folder",
    }


@pytest.mark.parametrize(
    "topic",
    ["%RETRY%group", "a|b", "主题-测试", "with space", "..x", "-", "T" * 250, "\U0001d518nicode"],
)
def test_topics_may_have_any_readable_name(root: Path, publish: Publish, topic: str) -> None:
    make_queue(root, topic, "3")
    files, path = publish(root)
    assert Topology.load(files, path).queues[topic] == (3,)


@pytest.mark.threat("Only printable text reaches a terminal")
@pytest.mark.parametrize("topic", ["line\nbreak", "tab\t", "\x1b[31mred", "\x7f", "a\u202eb"])
def test_names_that_would_garble_a_terminal_are_skipped(
    root: Path, local: LocalFiles, topic: str
) -> None:
    make_queue(root, topic, "0")
    topology = Topology.load(local, str(root))
    assert list(topology.queues) == ["Real"]
    assert len(topology.skipped) == 1


def test_names_that_are_not_utf8_are_skipped(root: Path, local: LocalFiles) -> None:
    os.makedirs(os.fsencode(root) + b"/bad\xff\xfe/0")
    topology = Topology.load(local, str(root))
    assert list(topology.queues) == ["Real"]
    (skipped,) = topology.skipped
    assert skipped.reason == "the name is not UTF-8"
    assert skipped.path.encode()


@pytest.mark.threat("Paths come from listings only")
def test_names_from_an_archive_cannot_climb_out() -> None:
    class Archive:
        lists_trees = True

        def walk(self, _path: str, _depth: int, _on_error: object) -> list[tuple[str, Listing]]:
            up = FileInfo("..", 0, True, -1)
            return [("", [up, FileInfo(".", 0, True, -1)]), ("..", [FileInfo("0", 0, True, -1)])]

    topology = Topology.load(Archive(), "store/consumequeue")  # type: ignore[arg-type]  # a part
    assert topology.queues == {}
    assert [skipped.reason for skipped in topology.skipped] == ["the name is not a topic"] * 2


# ---- links --------------------------------------------------------------------------------------


@pytest.mark.threat("Loops end")
def test_links_within_the_store_are_skipped(root: Path, local: LocalFiles) -> None:
    (root / "Alias").symlink_to(root / "Real")
    (root / "Up").symlink_to(root.parent)
    (root / "Self").symlink_to(root)
    (root / "Top").symlink_to("/")
    (root / "Circle").symlink_to(root / "Circle")
    (root / "Nowhere").symlink_to(root / "Missing")
    (root / "Real" / "5").symlink_to(root / "Real" / "0")
    (root / "Real" / "6").symlink_to(root / "Real")
    (root / "Real" / "7").symlink_to(root / "Real" / "7")
    topology = Topology.load(local, str(root))
    assert topology.queues == {"Real": (0, 2, 10)}
    assert len(topology.skipped) == 9


@pytest.mark.threat("Paths come from listings only")
def test_links_to_other_disks_are_followed(root: Path, tmp_path: Path, local: LocalFiles) -> None:
    make_queue(tmp_path / "disk2", "Moved", "1")
    (root / "Moved").symlink_to(tmp_path / "disk2" / "Moved")
    (root / "Real" / "3").symlink_to(tmp_path / "disk2" / "Moved" / "1")
    topology = Topology.load(local, str(root))
    assert topology.queues == {"Moved": (1,), "Real": (0, 2, 3, 10)}
    assert topology.skipped == []


# ---- size and change ----------------------------------------------------------------------------


def test_ten_thousand_queues(tmp_path: Path, local: LocalFiles) -> None:
    expected = {f"topic_{number:04}": tuple(range(8)) for number in range(1250)}
    for topic, queue_ids in expected.items():
        for queue_id in queue_ids:
            os.makedirs(tmp_path / topic / str(queue_id))
    topology = Topology.load(local, str(tmp_path))
    assert topology.queues == expected
    assert topology.skipped == []


def test_a_topic_that_vanishes_meanwhile_is_left_out(
    root: Path, local: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(root, "Gone", "0")
    list_folder = LocalFiles.list

    def vanishing(self: LocalFiles, path: str, *, sizes: bool = True) -> Listing:
        if path.endswith("/Gone"):
            raise FileNotFoundError(path)
        return list_folder(self, path, sizes=sizes)

    monkeypatch.setattr(LocalFiles, "list", vanishing)
    assert Topology.load(local, str(root)) == Topology({"Real": (0, 2, 10)}, {}, [])


def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    root: Path, local: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_folder = LocalFiles.list

    def failing(self: LocalFiles, path: str, *, sizes: bool = True) -> Listing:
        if path.endswith("/Real"):
            raise RmqStoreError("the disk is broken")
        return list_folder(self, path, sizes=sizes)

    monkeypatch.setattr(LocalFiles, "list", failing)
    with pytest.raises(RmqStoreError, match="broken"):
        Topology.load(local, str(root))
