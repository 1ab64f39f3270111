from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.configfiles import SHAPES, read_config
from rmqstore_spark.files.systems.base import join
from rmqstore_spark.files.systems.local import LocalFiles
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


WHOLE = '{"topicConfigTable":{}}'


def told_of(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The warnings that name a file."""
    return [r.getMessage() for r in caplog.records if name in r.getMessage()]


@pytest.mark.parametrize(
    "damage", [None, "", "  \n", "{", '{"a":', "\x00\x00", "{]}", "[]", "null", "0", '"x"', "{}",
               '{"topicConfigTable":null}', '{"topicConfigTable":[]}'],
)  # fmt: skip
def test_the_backup_stands_in_and_this_is_told(
    config: Path, publish: Publish, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is not None:
        (config / "topics.json").write_text(damage)
    (config / "topics.json.bak").write_text('{"topicConfigTable":{"T":{}}}')
    files, path = publish(config)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # a file that is read often is not told of often
            found = read_config(files, join(path, "topics.json"))
            assert found == {"topicConfigTable": {"T": {}}}
    (told,) = told_of(caplog, "topics.json")
    assert "topics.json.bak is used, so the settings of topics may be older" in told


def test_a_file_that_is_sound_again_and_then_damaged_is_told_of_again(
    config: Path, local: LocalFiles, caplog: pytest.LogCaptureFixture
) -> None:
    file = config / "topics.json"
    (config / "topics.json.bak").write_text(WHOLE)
    for text in ("[]", WHOLE, "[]"):
        file.write_text(text)
        read_config(local, str(file))
    assert len(told_of(caplog, "topics.json.bak is used")) == 2


def test_a_good_file_hides_a_bad_backup(
    config: Path, local: LocalFiles, caplog: pytest.LogCaptureFixture
) -> None:
    (config / "topics.json").write_text(WHOLE)
    (config / "topics.json.bak").write_text("{")
    assert read_config(local, str(config / "topics.json")) == {"topicConfigTable": {}}
    assert not caplog.records


OFFSETS = '{"offsetTable":%s}'
WRONG = {
    "topics.json": [
        *(f'{{"topicConfigTable":{each}}}' for each in (
            "[]", "1", '{"T":[]}', '{"T":1}', '{"T":null}', '{"T":{"readQueueNums":"4"}}',
            '{"T":{"writeQueueNums":1.5}}', '{"T":{"perm":true}}', '{"T":{"order":1}}',
        )),
        '{"topicConfigTable":{},"dataVersion":1}',
        '{"topicConfigTable":{},"dataVersion":{"counter":"1"}}',
    ],
    "consumerOffset.json": [
        OFFSETS % each for each in (
            "[]", '{"T":{0:1}}', '{"T@g":[]}', '{"T@g":7}', '{"T@g":null}', '{"T@g":{0:-2}}',
            '{"T@g":{0:1.5}}', '{"T@g":{0:"x"}}', '{"T@g":{0:true}}', '{"T@g":{0:null}}',
            '{"T@g":{0:9223372036854775808}}', '{"T@g":{-1:5}}', '{"T@g":{x:5}}', '{"T@g":{"":5}}',
            '{"T@g":{2147483648:5}}', '{"good@g":{0:5},"T@g":{1:{}}}',
        )
    ],
    "lmqConsumerOffset.json": [
        '{"offsetTable":{}}', '{"lmqOffsetTable":[],"offsetTable":{}}',
        '{"lmqOffsetTable":{"%LMQ%a@g":-2},"offsetTable":{}}',
        '{"lmqOffsetTable":{"%LMQ%a":1},"offsetTable":{}}',
        '{"lmqOffsetTable":{},"offsetTable":{"T@g":{0:"x"}}}',
    ],
    "subscriptionGroup.json": [
        *(f'{{"subscriptionGroupTable":{each}}}' for each in (
            "[]", '{"g":7}', '{"g":{"retryQueueNums":"x"}}', '{"g":{"consumeEnable":1}}',
            '{"g":{"brokerId":1.5}}',
        )),
        '{"subscriptionGroupTable":{},"dataVersion":[]}',
    ],
    "delayOffset.json": [OFFSETS % "[]", OFFSETS % "null", OFFSETS % '"x"'],
    "consumerFilter.json": ['{"filterDataByTopic":[]}', '{"filterDataByTopic":{"T":1}}'],
    "transactionChecks.json": [
        '{"checks":[]}', '{"checks":{"x":1}}', '{"checks":{"1":-1}}', '{"checks":{"1":"2"}}',
        '{"checks":{},"logOffset":-1}', '{"checks":{},"logOffset":"x"}',
    ],
    "kvConfig.json": [
        '{"configTable":[]}', '{"configTable":{"n":[]}}', '{"configTable":{"n":{"k":1}}}',
    ],
}  # fmt: skip
ANY_WRONG = ["", " \n", "{", "[]", "null", "0", '"x"', "true", "{}", '{"other":{}}', "[{}]"]


def test_all_files_have_their_wrong_shapes_here() -> None:
    assert WRONG.keys() == SHAPES.keys()


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in WRONG for text in ANY_WRONG + WRONG[name]]
)
def test_another_shape_is_damage(config: Path, local: LocalFiles, name: str, text: str) -> None:
    file = config / name
    file.write_text(text)
    for backup in (None, text):
        if backup is not None:
            file.with_name(f"{name}.bak").write_text(backup)
        with pytest.raises(CorruptStoreError) as caught:
            read_config(local, str(file))
        assert caught.value.file == str(file)
        assert "Restore it from a copy" in str(caught.value)


def test_what_a_broker_writes_is_sound(golden: Callable[[str], Path], local: LocalFiles) -> None:
    found = 0
    for name in ("live", "delayed", "lmq", "transactions", "v5basic"):
        for file in (golden(name) / "store/config").glob("*.json"):
            assert read_config(local, str(file)) is not None, file
            found += 1
    assert found >= 8


@pytest.mark.parametrize("backup", [None, "", "{", "[]"])
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


@pytest.mark.parametrize("kind", ["zip"])
def test_files_of_the_same_path_in_two_archives_are_both_told_of(
    config: Path, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    (config / "topics.json.bak").write_text(WHOLE)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            files, path = publish(config)
            for _ in range(2):
                read_config(files, join(path, "topics.json"))
    assert len(told_of(caplog, "topics.json.bak is used")) == 2
