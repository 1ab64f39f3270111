"""Hashes of contents: both kernels against the formula of docs/format.md, in Python's integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import block as plain_block
from rmqstore_spark.layout.kernel.reference import hashing as reference
from rmqstore_spark.layout.record import block
from rmqstore_spark.layout.record.block import Block, read_block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from tests.layout.kernel.test_block_kernels import MESSAGE
from tests.support.messages.strategies import client_records
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def model(text: bytes) -> int:
    words = [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
    total = sum(mix(word + place * GOLDEN & WORD) for place, word in enumerate(words, 1))
    return mix(total + len(text) & WORD)


def model_of_record(message: RecordReport) -> int:
    properties = [
        model(one)
        for one in message.properties_raw.split(b"\2")
        if one and not one.startswith(b"UNIQ_KEY\1")
    ]
    numbers = message.flag % (1 << 32) + (message.reconsume_times % (1 << 32) << 32)
    kinds = message.sys_flag & ~0x30 & 0xFFFFFFFF
    h = mix(model(message.body) + model(message.topic.encode()) & WORD)
    h = mix(h + sum(properties) & WORD)
    h = mix(h + numbers & WORD)
    return mix(h + kinds + GOLDEN & WORD)


def hashes(texts: Sequence[bytes]) -> list[int]:
    buffer = np.frombuffer(b"".join(texts), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    out = np.ones(len(texts), np.uint64)
    kernel.active.content_hashes(buffer, starts, lengths, out)
    return [int(one) for one in out]


@both_kernels
@given(texts=st.lists(st.binary(max_size=40), max_size=100))
def test_hashes_are_those_of_the_formula(texts: list[bytes], each_kernel: str) -> None:
    assert hashes(texts) == [model(text) for text in texts]


def test_spans_that_are_mixed_in_several_parts(
    monkeypatch: pytest.MonkeyPatch, each_kernel: str
) -> None:
    monkeypatch.setattr(reference, "_AT_ONCE", 64)
    texts = [bytes([n]) * (n * 7 % 200) for n in range(100)]
    assert hashes(texts) == [model(text) for text in texts]


def test_a_null_counts_as_no_bytes_and_a_span_must_lie_in_its_buffer(each_kernel: str) -> None:
    out = np.ones(1, np.uint64)
    one, buffer = np.zeros(1, np.int64), np.zeros(4, np.uint8)
    kernel.active.content_hashes(buffer, one, np.array([-1], np.int32), out)
    assert out.tolist() == [0]
    for start, length in ((0, 5), (-1, 2), (2**62, 1)):
        with pytest.raises(ValueError, match="outside its buffer"):
            kernel.active.content_hashes(
                buffer, np.array([start], np.int64), np.array([length], np.int32), out
            )
    with pytest.raises(ValueError, match="too small"):
        kernel.active.content_hashes(buffer, one, np.zeros(1, np.int32), np.empty(2, np.uint64))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 1000])
def test_each_changed_bit_and_each_moved_word_is_another_hash(
    length: int, each_kernel: str
) -> None:
    text = bytes(n * 89 % 251 for n in range(length))
    others = {text, text + b"\0", b"\0" + text, text[:-1], text[8:] + text[:8]}
    for at in range(length * 8):
        changed = bytearray(text)
        changed[at // 8] ^= 1 << at % 8
        others.add(bytes(changed))
    assert len(set(hashes(list(others)))) == len(others)


@both_kernels
@given(messages=st.lists(client_records(), max_size=12))
def test_a_digest_adds_up_the_hashes_of_records(
    messages: list[RecordReport], each_kernel: str
) -> None:
    one = [model_of_record(message) for message in messages]
    other = [mix(h + GOLDEN & WORD) for h in one]
    found = checked(encode_records(record_batch(messages)).data)
    assert found.sums == (sum(one) & WORD, sum(other) & WORD)


def test_no_digest_is_made_where_none_is_wanted(each_kernel: str) -> None:
    data = encode_records(record_batch([MESSAGE])).data
    assert read_block(data).sums == (0, 0)
    assert checked(data).sums != (0, 0)


def checked(data: U1) -> Block:
    """Records of any kind, also such as no client may send."""
    rules = plain_block.RULE_DIGEST
    return block._split(data, rules, 1 << 20, plain_block.ANY_STORE_HOST, 0, block.MAX_ROWS)
