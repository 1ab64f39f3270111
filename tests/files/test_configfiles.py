from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import join
from rmqstore_spark.files.configfiles import read_config
from rmqstore_spark.files.local import LocalFiles
from tests.files.conftest import Publish


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    return folder


def test_a_brokers_own_files(golden: Callable[[str], Path], publish: Publish) -> None:
    files, path = publish(golden("live") / "store")
    topics = read_config(files, join(path, "config", "topics.json"))
    assert topics is not None
    assert all("readQueueNums" in topic for topic in topics["topicConfigTable"].values())
    offsets = read_config(files, join(path, "config", "consumerOffset.json"))
    assert offsets is not None
    assert offsets["offsetTable"]


def test_unquoted_keys(config: Path, local: LocalFiles) -> None:
    (config / "delayOffset.json").write_text('{"offsetTable":{1:5,3:12}}')
    found = read_config(local, str(config / "delayOffset.json"))
    assert found is not None
    assert {str(key): value for key, value in found["offsetTable"].items()} == {"1": 5, "3": 12}


def test_neither_file_is_no_configuration(config: Path, publish: Publish) -> None:
    (config / "other.json").write_text("{}")
    files, path = publish(config)
    assert read_config(files, join(path, "topics.json")) is None


@pytest.mark.parametrize("damage", [None, "", "  \n", "{", '{"a":', "\x00\x00", "{]}"])
def test_the_backup_stands_in(
    config: Path, publish: Publish, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is not None:
        (config / "topics.json").write_text(damage)
    (config / "topics.json.bak").write_text('{"a":1}')
    files, path = publish(config)
    with caplog.at_level(logging.WARNING):
        assert read_config(files, join(path, "topics.json")) == {"a": 1}
    assert bool(caplog.records) == bool(damage and damage.strip())
    assert all("topics.json.bak" in record.getMessage() for record in caplog.records)


def test_a_good_file_hides_a_bad_backup(config: Path, local: LocalFiles) -> None:
    (config / "topics.json").write_text('{"a":1}')
    (config / "topics.json.bak").write_text("{")
    assert read_config(local, str(config / "topics.json")) == {"a": 1}


def test_an_empty_file_alone_says_nothing(config: Path, local: LocalFiles) -> None:
    (config / "topics.json").write_text("")
    assert read_config(local, str(config / "topics.json")) is None


@pytest.mark.parametrize("backup", [None, "", "{"])
def test_damage_without_a_backup_is_told(
    config: Path, local: LocalFiles, backup: str | None
) -> None:
    (config / "topics.json").write_bytes(b'{"a":"\xff\xfe')
    if backup is not None:
        (config / "topics.json.bak").write_text(backup)
    with pytest.raises(CorruptStoreError) as caught:
        read_config(local, str(config / "topics.json"))
    assert caught.value.file == str(config / "topics.json")


@pytest.mark.threat("Lengths are checked before allocation")
@pytest.mark.parametrize("size", [(64 << 20) + 1, 1 << 40])
def test_a_file_of_absurd_size_is_not_read(config: Path, local: LocalFiles, size: int) -> None:
    with open(config / "topics.json", "wb") as file:
        file.truncate(size)
    with pytest.raises(CorruptStoreError, match=f"has {size} bytes, more than 67108864"):
        read_config(local, str(config / "topics.json"))


def test_every_cut_of_a_brokers_file_is_damage_or_the_backup(
    golden: Callable[[str], Path], config: Path, local: LocalFiles
) -> None:
    whole = (golden("live") / "store/config/consumerOffset.json").read_bytes().rstrip()
    target = config / "consumerOffset.json"
    for length in range(1, len(whole)):
        target.write_bytes(whole[:length])
        with pytest.raises(CorruptStoreError):
            read_config(local, str(target))
