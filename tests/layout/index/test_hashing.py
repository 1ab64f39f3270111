from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.index import hashing
from rmqstore_spark.layout.spans import Spans
from tests.support.messages.spans import spans_of
from tests.support.messages.strategies import TEXTS
from tests.support.stores.golden import load_entries, load_records

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

CUT = st.sampled_from([b"\xf0\x9f", b"\x94\x91", b"\xe9\x8d", b"\xb5"])
"""Halves of characters: next to each other in a column, they are none all the same."""


def _hash_by_definition(text: str) -> int:
    """`s[0]*31^(n-1) + ... + s[n-1]` over UTF-16 code units, as Java's documentation has it."""
    raw = text.encode("utf-16-be")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    total = sum(unit * pow(31, len(units) - 1 - i, 2**32) for i, unit in enumerate(units))
    return (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("Hello", 69609650),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        ("\U0001f511", 55357 * 31 + 56593),
    ],
)
def test_hashes_that_java_gives(text: str, code: int, each_kernel: str) -> None:
    assert hashing.java_hash_code_str(text) == code
    assert hashing.java_hash_code(pa.array([text])).tolist() == [code]


@both_kernels
@given(texts=st.lists(st.one_of(st.none(), TEXTS), max_size=30))
@example(texts=["x" * 70_000, "", "\U0001f511" * 70_000, None, "tail"])
@example(texts=["y" * 200_000])
def test_columns_hash_like_each_string_alone(texts: list[str | None], each_kernel: str) -> None:
    expected = [0 if text is None else _hash_by_definition(text) for text in texts]
    assert hashing.java_hash_code(pa.array(texts, pa.string())).tolist() == expected
    assert [0 if text is None else hashing.java_hash_code_str(text) for text in texts] == expected


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_any_string_type_sliced_or_in_chunks(kind: pa.DataType, each_kernel: str) -> None:
    texts = ["Tag-A", None, "", "鍵\U0001f5119", "Tag-A", "z" * 100]
    column = pa.array(texts).cast(kind)
    expected = [0 if text is None else _hash_by_definition(text) for text in texts]
    assert hashing.java_hash_code(column).tolist() == expected
    assert hashing.java_hash_code(column[2:5]).tolist() == expected[2:5]
    chunked = pa.chunked_array([column[:1], column[1:1], column[1:]], kind)
    assert hashing.java_hash_code(chunked).tolist() == expected
    assert hashing.java_hash_code(pa.chunked_array([], kind)).tolist() == []


def test_many_blocks_of_strings(each_kernel: str) -> None:
    texts = [f"{'é' if i % 7 == 0 else ''}key-{i}" for i in range(40_000)]
    hashes = hashing.java_hash_code(pa.array(texts)).tolist()
    assert hashes == [hashing.java_hash_code_str(text) for text in texts]


@both_kernels
@given(raw=st.lists(st.one_of(st.binary(max_size=12), CUT), max_size=20))
def test_bytes_that_are_no_utf8_hash_as_java_decodes_them(
    raw: list[bytes], each_kernel: str
) -> None:
    raw.append(b"ends in half a character \xe6\xbc")
    offsets, data = pa.array(raw, pa.binary()).buffers()[1:]
    strings = pa.Array.from_buffers(pa.string(), len(raw), [None, offsets, data])
    expected = [_hash_by_definition(text.decode("utf-8", "replace")) for text in raw]
    assert hashing.java_hash_code(strings).tolist() == expected


@pytest.mark.parametrize("offsets", [[-1, 2], [0, 3], [2, 0, 2], [0, 2**62], [0, 1, 0]])
def test_places_outside_of_the_text_are_refused(offsets: list[int], each_kernel: str) -> None:
    out = np.empty(len(offsets) - 1, np.int32)
    with pytest.raises(ValueError, match="a span lies outside its buffer"):
        kernel.active.hash_texts(np.array(offsets), np.zeros(2, np.uint8), out)
    with pytest.raises(ValueError, match="differ in number"):
        kernel.active.hash_texts(np.array([0]), np.zeros(2, np.uint8), np.empty(1, np.int32))


@pytest.mark.parametrize("name", ["basic", "live", "batch", "flags", "transactions"])
def test_tags_codes_are_those_of_rocketmqs_queues(golden: Callable[[str], Path], name: str) -> None:
    tags = {r.physical_offset: r.properties.get("TAGS") for r in load_records(golden(name))}
    entries = [
        entry
        for (topic, _), queue in load_entries(golden(name)).items()
        if topic != "SCHEDULE_TOPIC_XXXX"
        for entry in queue
    ]
    assert any(tags[entry.physical_offset] for entry in entries)
    hashes = hashing.java_hash_code(pa.array([tags[entry.physical_offset] for entry in entries]))
    assert hashes.tolist() == [entry.tags_code for entry in entries]


def test_index_keys_hash_to_what_is_not_negative() -> None:
    assert hashing.index_key_hash("T", ["k0", "k1"]).tolist() == [
        abs(_hash_by_definition("T#k0")),
        abs(_hash_by_definition("T#k1")),
    ]
    assert hashing.index_key_hash("T", []).tolist() == []
    assert hashing.index_key_hash(pa.array(["A", "B"]), ["k", "k"]).tolist() == [
        abs(_hash_by_definition("A#k")),
        abs(_hash_by_definition("B#k")),
    ]


def test_the_hash_whose_abs_overflows_is_zero() -> None:
    topic, key = _text_that_hashes_to(-(2**31)).split("#")
    assert hashing.java_hash_code_str(f"{topic}#{key}") == -(2**31)
    assert hashing.index_key_hash(topic, [key]).tolist() == [0]


def _text_that_hashes_to(code: int) -> str:
    """A text `t#key` with that hash: its last characters are the digits of what is missing."""
    missing = (code - _hash_by_definition("t#") * 31**7) % 2**32
    digits = []
    for _ in range(7):
        digits.append(chr(missing % 31))
        missing //= 31
    assert missing == 0
    return "t#" + "".join(reversed(digits))


# --- of spans -------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=200), max_size=30))
def test_hashes_of_spans_are_java_s(strings: list[str]) -> None:
    hashes, wide = hashing.hash_spans(spans_of(strings))
    assert hashes.view(np.int32).tolist() == [hashing.java_hash_code_str(s) for s in strings]
    assert wide.tolist() == [not s.isascii() for s in strings]


def test_a_missing_value_hashes_to_zero() -> None:
    spans = spans_of(["ab", "c"])
    missing = Spans(spans.buffer, spans.starts, np.array([2, -1], np.int32))
    assert hashing.hash_spans(missing)[0].tolist() == [31 * ord("a") + ord("b"), 0]


def test_the_hash_of_a_key_is_made_of_those_of_its_parts() -> None:
    topic, key = "orders", "order-0000000017"
    whole = (hashing.java_hash_code_str(topic + "#") & 0xFFFFFFFF) * int(hashing.POWERS[len(key)])
    whole = (whole + hashing.java_hash_code_str(key)) & 0xFFFFFFFF
    signed = whole - (1 << 32) if whole >> 31 else whole
    assert abs(signed) == hashing.index_key_hash(topic, [key])[0]


def test_arrow_s_hash_of_no_strings() -> None:
    hashes, wide = hashing.hash_spans(spans_of([]))
    assert len(hashes) == len(wide) == 0
    assert hashing.index_key_hash("a", pa.array([], pa.string())).tolist() == []
