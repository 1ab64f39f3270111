from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.hosts import OffsetMsgId, decode_msg_id, encode_host
from tests.support.messages.strategies import HOSTS
from tests.support.stores.golden import load_records


def offset_msg_id(host: str, offset: int) -> str:
    return (encode_host(host) + offset.to_bytes(8, "big")).hex().upper()


@pytest.mark.parametrize("name", ["ipv6", "live", "multipath"])
def test_ids_are_those_that_rocketmq_makes(golden: Callable[[str], Path], name: str) -> None:
    for record in load_records(golden(name)):
        host, offset = record.store_host, record.physical_offset
        assert offset_msg_id(host, offset) == record.msg_id
        assert decode_msg_id(record.msg_id) == OffsetMsgId(host, offset)


@given(HOSTS, st.integers(0, 2**63 - 1))
def test_round_trip(host: str, offset: int) -> None:
    text = offset_msg_id(host, offset)
    assert decode_msg_id(text) == OffsetMsgId(host, offset)
    assert decode_msg_id(text.lower()) == OffsetMsgId(host, offset)


def test_hosts_may_be_written_short() -> None:
    assert offset_msg_id("[::1]:10911", 7) == offset_msg_id("[0:0:0:0:0:0:0:1]:10911", 7)


@given(st.one_of(st.text(max_size=60), st.text("0123456789abcdefABCDEF ", max_size=60)))
def test_any_text_is_an_id_or_an_option_error(text: str) -> None:
    try:
        found = decode_msg_id(text)
    except OptionError:
        return
    assert offset_msg_id(found.host, found.physical_offset) == text.upper()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100002A9F000000000000000",
        "7F00000100002A9F00000000000000000",
        "7F 00 00 01 00 00 2A 9F 00 00 00",
        "7F00000100002A9FFFFFFFFFFFFFFFFF",
        "000002157F000001000000233A5A1869",
        "G" * 32,
        "\u0667" * 32,
        "0" * 100_000,
    ],
)
def test_what_is_no_id_is_refused_with_what_it_should_look_like(text: str) -> None:
    with pytest.raises(OptionError, match="not an offset message id") as error:
        decode_msg_id(text)
    assert len(str(error.value)) < 400
