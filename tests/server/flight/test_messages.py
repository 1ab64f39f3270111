"""Flight's protobuf messages: what is written is read again, and any bytes are read or refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from rmqstore_spark.server.flight.messages import (
    flight_data_head,
    read_action,
    read_flight_data,
    read_ticket,
    result_head,
)
from rmqstore_spark.wire.codec import MessageError


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_flight_data_is_read_as_it_was_written(header: bytes, metadata: bytes, body: bytes) -> None:
    written = flight_data_head(header, metadata, len(body)) + body
    read = read_flight_data(memoryview(written))
    assert (read.command, bytes(read.header), read.metadata) == (None, header, metadata)
    assert bytes(read.body) == body
    assert written[read.body_at : read.body_at + len(body)] == body


@given(st.binary(max_size=500))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_flight_data, read_action, read_ticket):
        try:
            read(memoryview(data))
        except MessageError:
            continue


@given(st.binary(max_size=300))
def test_arrow_and_we_agree_on_tickets_and_results(data: bytes) -> None:
    assert bytes(read_ticket(memoryview(flight.Ticket(data).serialize()))) == data
    result = result_head(len(data)) + data
    assert flight.Result.deserialize(result).body.to_pybytes() == data


def test_arrow_and_we_agree_on_actions() -> None:
    name, body = read_action(memoryview(flight.Action("commit", b"{}").serialize()))
    assert (name, bytes(body)) == ("commit", b"{}")


def test_unknown_fields_are_passed_over() -> None:
    # A varint, 8 bytes, 4 bytes and a string, with numbers that no message of Flight has.
    strange = b"\x98\x06\x05" + b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4) + b"\x9a\x06\x01x"
    assert bytes(read_ticket(memoryview(strange + b"\x0a\x02ab" + strange))) == b"ab"
