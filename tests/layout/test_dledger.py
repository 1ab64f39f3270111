from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout import dledger
from tests.support.messages.strategies import BYTES, INT32, INT64
from tests.support.stores.dledger import encode_entry_headers, encode_index_units
from tests.support.stores.golden import load_records


@pytest.fixture(scope="module")
def folder(golden: Callable[[str], Path]) -> Path:
    return golden("dledger") / "store" / "dledger-n0"


@pytest.fixture(scope="module")
def units_bytes(folder: Path) -> bytes:
    """The written part of the index, and a little of what is not."""
    with (folder / "index" / f"{0:020}").open("rb") as file:
        return file.read(1560 * dledger.INDEX_UNIT_SIZE)


@pytest.fixture(scope="module")
def log(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "data").iterdir()))


def test_entries_lie_where_rocketmq_reads_their_records(
    golden: Callable[[str], Path], folder: Path, units_bytes: bytes, log: bytes
) -> None:
    records = load_records(golden("dledger"))
    committed = dledger.parse_committed_index((folder / "checkpoint").read_text())
    assert committed == len(records) - 1

    units = dledger.decode_index_units(units_bytes)[: committed + 1]
    headers, valid = dledger.decode_entry_headers(log, units["position"].astype(np.int64))
    assert valid.all()
    for field in ("position", "size", "index", "term"):
        assert headers[field].tolist() == units[field].tolist()
    assert headers["index"].tolist() == list(range(len(records)))
    bodies = headers["position"] + dledger.ENTRY_HEADER_SIZE
    assert bodies.tolist() == [record.physical_offset for record in records]
    assert headers["bodyLength"].tolist() == [record.store_size for record in records]
    last = dledger.decode_index_unit(
        units_bytes[dledger.index_unit_position(committed) :], committed
    )
    assert last.end == records[-1].physical_offset + records[-1].store_size


def test_headers_and_units_are_written_as_rocketmq_writes_them(
    golden: Callable[[str], Path], units_bytes: bytes, log: bytes
) -> None:
    records = load_records(golden("dledger"))
    positions = np.array([record.physical_offset for record in records]) - 48
    lengths = np.array([record.store_size for record in records])
    numbers = np.arange(len(records))
    headers = encode_entry_headers(numbers, 0, positions, lengths)
    assert headers == b"".join(log[at : at + 48] for at in positions.tolist())
    units = encode_index_units(positions, lengths + 48, numbers, 0)
    assert units_bytes.startswith(units)


def test_what_is_not_written_yet_is_no_entry(units_bytes: bytes, log: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="DLedger entry 1551 in f at offset 49632"):
        dledger.decode_index_unit(units_bytes[1551 * 32 :], 1551, file="f")
    blank = 1_048_316
    assert dledger.decode_entry_headers(log, np.array([blank, 2_135_828]))[1].tolist() == [
        False,
        False,
    ]
    assert np.frombuffer(log, ">i4", 2, blank).tolist() == [
        -1,
        1_048_576 - blank,
    ]


@given(st.lists(st.tuples(INT64, INT64, INT64, st.integers(0, 2**31 - 49)), max_size=20))
def test_headers_round_trip(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    data = encode_entry_headers(*(columns or [np.empty(0, np.int64)] * 4))
    headers, valid = dledger.decode_entry_headers(data, np.arange(len(rows)) * 48)
    assert valid.all()
    assert headers[["index", "term", "position", "bodyLength"]].tolist() == rows


@given(st.lists(st.tuples(INT64, INT32, INT64, INT64), max_size=20))
def test_units_round_trip(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    units = encode_index_units(*(columns or [np.empty(0, np.int64)] * 4))
    decoded = dledger.decode_index_units(units + b"part of a unit")
    assert decoded[["position", "size", "index", "term"]].tolist() == rows


@given(BYTES, st.lists(INT64 | st.integers(-2, 300), max_size=8), INT64)
def test_any_bytes_decode_or_are_refused(data: bytes, offsets: list[int], index: int) -> None:
    headers, valid = dledger.decode_entry_headers(data, np.array(offsets, np.int64))
    for header, ok in zip(headers, valid.tolist(), strict=True):
        assert not ok or header["size"] == header["bodyLength"] + 48
    assert len(dledger.decode_index_units(data)) == len(data) // 32
    try:
        unit = dledger.decode_index_unit(data, index)
    except CorruptStoreError:
        return
    assert unit.index == index


@given(INT64)
def test_only_the_right_unit_of_an_entry_is_taken(index: int) -> None:
    data = encode_index_units([0], [100], [5], 0)
    if index == 5:
        assert dledger.decode_index_unit(data, 5) == dledger.IndexUnit(0, 100, 5, 0)
    else:
        with pytest.raises(CorruptStoreError):
            dledger.decode_index_unit(data, index)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("committedIndex=1550\nendIndex=1550\n", 1550),
        ("#Fri Nov 21\r\nendIndex = 9\r\ncommittedIndex = 7\r\n", 7),
        ("committedIndex=-1\n", -1),
        ("committedIndex:3\n", 3),
    ],
)
def test_committed_index(text: str, index: int) -> None:
    assert dledger.parse_committed_index(text) == index


@given(st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1), st.data())
def test_a_text_that_is_half_another_one_is_not_read(
    old: int, new: int, data: st.DataObject
) -> None:
    texts = [dledger.encode_committed_index(number, number) for number in (old, new)]
    assert [dledger.parse_committed_index(text.decode()) for text in texts] == [old, new]
    assert len(texts[0]) == len(texts[1])
    at = data.draw(st.integers(0, len(texts[0])))
    torn = (texts[0][:at] + texts[1][at:]).decode()
    if torn.encode() in texts:
        return
    with pytest.raises(CorruptStoreError):
        dledger.parse_committed_index(torn)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "endIndex=7",
        "committedIndex=",
        "committedIndex=x",
        "committedIndex=15",  # cut: it may have been 1550
        "committedIndex=-2\n",
        "committedIndex=9223372036854775808\n",
        "committedIndex=" + "9" * 5000 + "\n",
        "lastcommittedIndex=4\n",
        "committedIndex=1\n" * 100_000,
    ],
)
def test_a_checkpoint_that_does_not_say_is_an_error(text: str) -> None:
    with pytest.raises(CorruptStoreError, match="no line committedIndex=NUMBER in f") as raised:
        dledger.parse_committed_index(text, file="f")
    told = str(raised.value)
    assert "If there is a checkpoint.bak" in told  # a member of this project makes none
    assert told.endswith(dledger.REPAIR)


@given(st.text(max_size=60))
def test_any_text_is_a_checkpoint_or_refused(text: str) -> None:
    try:
        index = dledger.parse_committed_index(text)
    except CorruptStoreError:
        return
    assert f"{index}" in text
