"""Untrusted text is escaped on the terminal, and no damage ends in a traceback."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.cli.shared.tables import is_text, json_text, text_pieces
from rmqstore_spark.engine import StoreWriter
from tests.cli.conftest import Golden, Rmqstore
from tests.support.messages.batches import rows_block, small_segments
from tests.support.stores.golden import load_records
from tests.support.stores.storebuilder import StoreBuilder

CLEAR = "\x1b[2J\x1b[31mgone\x07\x9b1A\u202ereversed\x7f"
HOSTILE_TOPIC = "t\x1b[31m"


def is_printable(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def assert_harmless(texts: Iterable[str]) -> None:
    for text in texts:
        assert all(char == "\n" or is_printable(char) for char in text), text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose messages try to control the terminal."""
    path = tmp_path_factory.mktemp("hostile") / "store"
    properties = f"TAGS\x01{CLEAR}\x02KEYS\x01{CLEAR}\x02UNIQ_KEY\x01{CLEAR}\x02{CLEAR}\x01{CLEAR}"
    bodies = [CLEAR.encode(), b"\x00\xff\xfe", b"two\nlines\tof[bold]markup[/bold] :smile:"]
    with StoreBuilder(path, segment_size=1 << 16) as builder:
        builder.append(
            pa.RecordBatch.from_pydict(
                {
                    "topic": ["plain"] * 3,
                    "body": pa.array(bodies, pa.binary()),
                    "properties": pa.array([properties.encode()] * 3, pa.binary()),
                }
            )
        )
    (path / "consumequeue" / HOSTILE_TOPIC / "0").mkdir(parents=True)
    (path / "commitlog" / "\x1b[31mcore").write_text("stray")
    groups = {f"{HOSTILE_TOPIC}@{CLEAR}": {"0": 1}}
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": groups}))
    return path


COMMANDS = [
    ["info"], ["topics", "-a"], ["topics", "-a", "--queues"], ["groups"],
    ["offsets", "-a"], ["offsets", "--group", CLEAR],
    ["read"], ["read", "-c", "topic,properties,keys,tags,uniqKey,body"], ["tail"],
    ["query", "--key", "no" + CLEAR], ["read", "--scan"], ["verify"],
]  # fmt: skip


@pytest.mark.threat("Only printable text reaches a terminal")
@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("command", COMMANDS)
def test_only_printable_characters_come_out(
    command: list[str], form: list[str], rmqstore: Rmqstore, hostile: Path
) -> None:
    ended = rmqstore(*command, *form, hostile)
    assert_harmless([ended.text, ended.stderr])


@pytest.mark.threat("Only printable text reaches a terminal")
@pytest.mark.parametrize(
    "command",
    [
        ["read", "-t", "no" + CLEAR],
        ["read", "-c", CLEAR],
        ["read", "--from", CLEAR],
        ["query", "--id", CLEAR],
        ["groups", "-g", "no" + CLEAR],
    ],
)
def test_errors_are_printable_too(command: list[str], rmqstore: Rmqstore, hostile: Path) -> None:
    ended = rmqstore(*command, hostile, code=2)
    assert_harmless([ended.stderr])
    assert "\\x1b[" in ended.stderr


def test_values_survive_json(rmqstore: Rmqstore, hostile: Path) -> None:
    messages = rmqstore("read", "--json", hostile).messages
    assert messages[0]["tags"] == CLEAR
    assert messages[0]["properties"][CLEAR] == CLEAR
    # A body that is not text is base64, and is marked as such.
    assert [message["bodyEncoding"] for message in messages] == ["base64", "base64", "utf-8"]
    assert messages[1]["body"] == "AP/+"
    assert messages[2]["body"] == "two\nlines\tof[bold]markup[/bold] :smile:"


def test_bodies_in_a_table(rmqstore: Rmqstore, hostile: Path) -> None:
    lines = rmqstore("read", "-c", "body", hostile).lines
    assert lines[1:] == [
        "hex:" + CLEAR.encode().hex(),
        "hex:00fffe",
        r"two\nlines\tof[bold]markup[/bold] :smile:",
    ]


def test_raw_is_raw(rmqstore: Rmqstore, hostile: Path) -> None:
    assert rmqstore("read", "--raw", "-n", "1", hostile).stdout == CLEAR.encode()


@given(st.text())
def test_escaped_text_is_printable(text: str) -> None:
    assert all(map(is_printable, escaped(text)))
    if all(map(is_printable, text)):
        assert escaped(text) == text


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_printable_and_whole(value: object) -> None:
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert all(char == "\n" or is_printable(char) for char in text)
    assert "\n" not in json_text(value)


@given(st.binary())
def test_a_body_is_text_or_not(body: bytes) -> None:
    if is_text(memoryview(body)):
        text = "".join(text_pieces(memoryview(body)))
        assert text.encode() == body
        assert not any(unicodedata.category(c) == "Cc" for c in text if c not in "\n\r\t")


@pytest.fixture
def damaged(golden: Golden, tmp_path: Path) -> Path:
    """A store in which the body of the tenth record does not match its CRC."""
    store = tmp_path / "store"
    shutil.copytree(golden("tiny") / "store", store)
    record = load_records(golden("tiny"))[9]
    folder = store / "commitlog"
    path = max(p for p in folder.iterdir() if int(p.name) <= record.physical_offset)
    data = bytearray(path.read_bytes())
    at = data.index(record.body, record.physical_offset - int(path.name))
    data[at] ^= 0xFF
    path.write_bytes(data)
    return store


def test_damage_ends_a_read_with_its_place(
    damaged: Path, rmqstore: Rmqstore, golden: Golden
) -> None:
    record = load_records(golden("tiny"))[9]
    ended = rmqstore("read", "--json", "--all", damaged, code=2)
    assert len(ended.stderr.splitlines()) == 1
    assert "bodyCRC" in ended.stderr
    assert "commitlog/" in ended.stderr
    offsets = [message["physicalOffset"] for message in ended.messages]
    assert record.physical_offset not in offsets


def test_damage_can_be_skipped(damaged: Path, rmqstore: Rmqstore, golden: Golden) -> None:
    records = load_records(golden("tiny"))
    ended = rmqstore("read", "--json", "--all", "--skip-damaged", damaged)
    expected = [r.physical_offset for r in records if r is not records[9]]
    assert [message["physicalOffset"] for message in ended.messages] == expected
    assert "left out 1 record" in ended.stderr


def test_damage_can_be_skipped_in_a_search(
    damaged: Path, rmqstore: Rmqstore, golden: Golden
) -> None:
    records = load_records(golden("tiny"))
    search = ("query", "--json", "--all", "--from", "1970-01-01", damaged)
    assert "--skip-damaged" in rmqstore(*search, code=2).stderr
    ended = rmqstore(*search, "--skip-damaged")
    expected = [r.physical_offset for r in records if r is not records[9]]
    assert sorted(message["physicalOffset"] for message in ended.messages) == expected
    assert "left out 1 record" in ended.stderr


def test_a_missing_file_can_be_skipped(rmqstore: Rmqstore, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with StoreWriter.open(store, small_segments()) as writer:
        assert writer.put(rows_block([bytes(500)] * 100)).ok
    names = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    begin, end = int(names[2].name), int(names[3].name)
    names[2].unlink()
    for how in ((), ("--scan",)):
        ended = rmqstore("read", "--json", "--all", *how, store, code=2)
        assert "no file of the CommitLog holds offset" in ended.stderr
        assert "--skip-damaged" in ended.stderr
        ended = rmqstore("read", "--json", "--all", *how, "--skip-damaged", store)
        offsets = [message["physicalOffset"] for message in ended.messages]
        assert 50 < len(offsets) < 100
        assert not any(begin <= offset < end for offset in offsets)
        assert "failOnDataLoss=false: skipped" in ended.stderr


@pytest.mark.parametrize(
    "command",
    [["info"], ["topics"], ["groups"], ["offsets"], ["read"], ["tail"], ["query", "--key", "k"]],
)
def test_what_is_no_store(command: list[str], rmqstore: Rmqstore, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", ""):
        ended = rmqstore(*command, path, code=2)
        assert len(ended.stderr.splitlines()) == 1
        assert ended.stdout == b""


def test_configuration_that_is_no_json(rmqstore: Rmqstore, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("tiny") / "store", store)
    (store / "config").mkdir(exist_ok=True)
    for name in ("consumerOffset.json", "topics.json"):
        (store / "config" / name).write_text('{"offsetTable":{"a')
    assert "consumerOffset.json" in rmqstore("groups", store, code=2).stderr
    assert "topics.json" in rmqstore("topics", store, code=2).stderr
    # Everything that does not need them works.
    for command in (["info"], ["offsets"], ["read"], ["tail"], ["query", "--key", "k"]):
        rmqstore(*command, store)
