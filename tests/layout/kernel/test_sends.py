"""The two implementations of the loops over requests to send, and what each answer decodes to."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.remoting.codec.command import VERSION, Command, Form
from rmqstore_spark.remoting.codec.frames import command_of, encode_frame
from rmqstore_spark.remoting.codec.plain import PlainSend, arrived
from tests.broker.broker import batch

ASCII = st.text(st.characters(max_codepoint=127), max_size=12)
NUMBERS = st.one_of(
    st.integers(-5, 5).map(str),
    st.integers(-(1 << 64), 1 << 64).map(str),
    st.sampled_from(["", "+1", "-", "01", "-0", "1e3", "9" * 18, "9" * 19, " 1"]),
)
PROPERTIES = st.lists(
    st.one_of(
        st.sampled_from(
            ["", "KEYS\x01k", "WAIT\x01true", "WAITS\x01x", "CLUSTER\x01c", "CLUSTER", "TAGS\x01",
             "DELAY\x013", "TRAN_MSG\x01true", "DELAY", 'a"\\/\b\f\n\r\t\x00\x01b']
        ),
        ASCII,
        st.text(max_size=3),
    ),
    max_size=5,
).map("\x02".join)  # fmt: skip
FIELDS = st.fixed_dictionaries(
    {"a": ASCII, "b": st.sampled_from(["t", "topic", "unknown", "", "über"]), "e": NUMBERS,
     "f": NUMBERS, "g": NUMBERS, "h": NUMBERS, "i": PROPERTIES},
    optional={"c": ASCII, "d": NUMBERS, "j": NUMBERS, "k": ASCII, "l": NUMBERS, "n": ASCII,
              "bname": ASCII, "z": ASCII},
)  # fmt: skip
ENTRIES = st.lists(
    st.tuples(
        st.binary(max_size=5),
        st.sampled_from([b"", b"k\x01v", b"k\x01v\x02\x02", b"\x02", b"TRAN_MSG\x01true", b"\xff"]),
    ),
    max_size=4,
)
BODIES = st.one_of(
    st.binary(max_size=20),
    ENTRIES.map(lambda each: b"".join(batch([body], own).body for body, own in each)),
)
USUAL = {"a": "g", "b": "t", "e": "1", "f": "0", "g": "1700000000000", "h": "7", "i": "KEYS\x01k"}

BATCH = batch([b"one", b"two"], b"k\x01v\x02").body


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames of requests to send, plain and odd; some are damaged, and some are written oddly."""
    ext = draw(st.one_of(FIELDS, st.just(USUAL)))
    command = Command(
        draw(st.sampled_from([310] * 3 + [320] * 3 + [10, 0])), ext, draw(BODIES),
        draw(st.sampled_from([None, None, None, "r"])),
        draw(st.integers(-(1 << 31), (1 << 31) - 1)), draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
        form=draw(st.sampled_from(list(Form))),
    )  # fmt: skip
    found = bytearray(encode_frame(command))
    if command.form is Form.JSON and draw(st.booleans()):
        header = json.loads(found[8 : len(found) - len(command.body)])
        indent, ascii_only = draw(st.sampled_from([None, 1])), draw(st.booleans())
        written = json.dumps(header, indent=indent, ensure_ascii=ascii_only).encode()
        size = 4 + len(written) + len(command.body)
        found[:] = size.to_bytes(4, "big") + len(written).to_bytes(4, "big") + written
        found += command.body
    damage = st.tuples(st.integers(4, 400), st.integers(0, 255))
    for at, value in draw(st.lists(damage, max_size=2)):
        if draw(st.booleans()) and at < len(found):
            found[at] = value
    return bytes(found)


def outcome(
    module: ModuleType, given: list[bytes], room: int = 4096, texts: int = 40_000, most: int = 99
) -> Any:
    count = len(given)
    counts, asked = np.zeros(2, np.int32), np.zeros(2, np.int32)
    sizes, rows, opaques, queues = (np.zeros(count, np.int32) for _ in range(4))
    forms, text, out = (np.zeros(n, np.uint8) for n in (count, texts, room))
    hosts = b"".join(bytes([row] * 20) for row in range(count))
    wide = bytes(row % 2 for row in range(count))
    try:
        written = module.write_sends(
            given, {b"t": 0, b"topic": 1}, 99, most, np.array([2, 8], np.int32), hosts, wide,
            bytes(8), b"CLUSTER\1c", counts, asked, opaques, forms, queues, sizes, rows, text, out,
        )  # fmt: skip
    except ValueError as error:
        return str(error)
    arrays = (sizes, rows, counts, asked, *(each[sizes > 0] for each in (opaques, queues, forms)))
    return bytes(out[:written]), [each.tolist() for each in arrays]


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(
    st.lists(frames(), max_size=4),
    st.sampled_from([4096, 4096, 4096, 400, 200, 30]),
    st.sampled_from([40_000, 40_000, 200, 20]),
    st.sampled_from([99, 99, 3, 0]),
)
@example([encode_frame(Command(310, USUAL, b"x", form=form)) for form in Form], 4096, 40_000, 9)
@example([encode_frame(Command(320, USUAL, BATCH, form=form)) for form in Form], 4096, 40_000, 9)
def test_both_kernels_make_the_same_of_frames(
    given_frames: list[bytes], room: int, texts: int, most: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    modules = kernel._choose(), plain
    for frame in given_frames:
        one, other = (module.plain_send(frame) for module in modules)
        assert one == other
    one, other = (outcome(module, given_frames, room, texts, most) for module in modules)
    assert one == other


def written(header: bytes, form: Form = Form.JSON) -> bytes:
    """A frame without a body."""
    return (
        (4 + len(header)).to_bytes(4, "big")
        + bytes([form])
        + len(header).to_bytes(3, "big")
        + header
    )


NO_ESCAPE = (
    rb'{"code":310,"opaque":1,"flag":0,'
    rb'"extFields":{"a":"\q","b":"t","e":"0","f":"0","g":"1","h":"0"}}'
)
LONG_NAME = encode_frame(Command(310, USUAL, form=Form.ROCKETMQ))[8:]
LONG_NAME = (
    LONG_NAME[:17]
    + (len(LONG_NAME) - 21 + 40_006).to_bytes(4, "big")
    + LONG_NAME[21:]
    + (40_000).to_bytes(2, "big")
    + b"x" * 40_000
    + bytes(4)
)


@given(frames())
@example(encode_frame(Command(310, USUAL, b"x")))
@example(written(NO_ESCAPE))
@example(written(NO_ESCAPE.replace(rb"\q", rb"\u12")))
@example(written(NO_ESCAPE.replace(rb"\q", rb"\ud800")))
@example(written(LONG_NAME, Form.ROCKETMQ))
def test_a_plain_request_says_what_its_header_says(frame: bytes) -> None:
    for module in {kernel.active, plain}:
        found = module.plain_send(frame)
        if found is None:
            continue
        request = PlainSend(frame, *found)
        decoded = command_of(memoryview(frame))  # which raises nothing
        assert request.code == decoded.code
        for name in ("opaque", "flag", "form", "ext", "body", "remark", "language", "version"):
            assert getattr(request, name) == getattr(decoded, name), name
        assert request.topic == decoded.ext["b"]
        assert request.size == len(frame)


def test_what_has_no_room_is_odd() -> None:
    """A batch must not take the room of a request behind it, and fail both."""
    given_frames = [
        encode_frame(Command(320, USUAL, BATCH)),
        encode_frame(Command(310, USUAL, b"x")),
    ]
    for module in {kernel.active, plain}:
        data, (sizes, rows, *_) = outcome(module, given_frames, room=260)
        assert rows == [2, 0]
        assert len(data) == sum(sizes)


def test_usual_requests_are_plain() -> None:
    """Or the tests here would show nothing."""
    for form in Form:
        frame = encode_frame(Command(310, USUAL, b"x", opaque=5, form=form))
        assert isinstance(arrived(memoryview(frame)), PlainSend)
        for module in {kernel.active, plain}:
            assert outcome(module, [frame])[1][1:3] == [[1], [1, 0]]
        frame = encode_frame(Command(320, USUAL, BATCH, opaque=5, form=form))
        assert isinstance(arrived(memoryview(frame)), PlainSend)
        for module in {kernel.active, plain}:
            assert outcome(module, [frame])[1][1:3] == [[2], [2, 0]]


@given(
    st.lists(
        st.tuples(
            st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([0, 1]),
            st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1),
            st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=3),
        ),
        max_size=4,
    ),
    st.sampled_from([8, 20]),
)  # fmt: skip
def test_answers_are_those_of_commands(
    rows: list[tuple[int, int, int, int, list[int]]], width: int
) -> None:
    host = bytes(range(200, 200 + width))
    opaques, forms, queues, counts = (
        np.array(column, kind)
        for column, kind in (
            ([row[0] for row in rows], "i4"), ([row[1] for row in rows], "u1"),
            ([row[2] for row in rows], "i4"), ([len(row[4]) for row in rows], "i4"),
        )
    )  # fmt: skip
    places = np.array([place for row in rows for place in row[4]], np.int64)
    offsets = np.array([row[3] for row in rows for _ in row[4]], np.int64)
    for module in {kernel.active, plain}:
        ends = np.zeros(len(rows), np.int64)
        out = np.zeros(384 * len(rows) + 57 * len(places), np.uint8)
        module.write_answers(
            VERSION, host, opaques, forms, queues, counts, offsets, places, ends, out
        )
        begin = 0
        for (opaque, form, queue, offset, at), end in zip(rows, ends.tolist(), strict=True):
            ids = [f"{host.hex().upper()}{place:016X}" for place in at]
            ext = {
                "msgId": ",".join(ids), "queueId": str(queue),
                "queueOffset": str(offset), "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
            }  # fmt: skip
            expected = Command(0, ext, opaque=opaque, flag=1, form=Form(form))
            assert out[begin:end].tobytes() == encode_frame(expected)
            begin = end
