"""The two implementations of the loops over requests to send, and what each answer decodes to."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqstore_spark.broker.faces.remoting.headers import named_topic
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.kernel.reference.answers import QUEUE, ROWS, SIZE
from rmqstore_spark.layout.record.block import check_block, index_hashes
from rmqstore_spark.remoting.codec.command import VERSION, Command, Form
from rmqstore_spark.remoting.codec.frames import command_of, encode_frame
from rmqstore_spark.remoting.codec.plain import PlainSend, arrived
from tests.broker.broker import LONG_NAMES, batch
from tests.support.recordings import exchanges

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
USUAL = {"a": "g", "b": "t", "e": "1", "f": "0", "g": "1700000000000", "h": "7", "i": "KEYS\x01k",
         "j": "2"}  # fmt: skip

BATCH = batch([b"one", b"two"], b"k\x01v\x02").body


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames of requests to send, plain and odd; some are damaged, and some are written oddly."""
    ext = draw(st.one_of(FIELDS, st.just(USUAL)))
    code = draw(st.sampled_from([310] * 3 + [320] * 3 + [10] * 3 + [0]))
    if (code == 10) is draw(st.sampled_from([True, True, True, False])):
        ext = {LONG_NAMES.get(name, name): value for name, value in ext.items()}
    if draw(st.sampled_from([False, False, False, True])):
        ext["e"] = "1"  # another name of a field that is there, or the same
    command = Command(
        code, ext, draw(BODIES), draw(st.sampled_from([None, None, "", "r"])),
        draw(st.integers(-(1 << 31), (1 << 31) - 1)), draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
        form=draw(st.sampled_from(list(Form))),
    )  # fmt: skip
    found = bytearray(encode_frame(command))
    if command.form is Form.JSON and draw(st.booleans()):
        header = json.loads(found[8 : len(found) - len(command.body)])
        for name, value in header["extFields"].items():
            header["extFields"][name] = draw(
                st.sampled_from([value, value, *_without_quotes(value)])
            )
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


def _without_quotes(text: str) -> list[Any]:
    """What clients in other languages write for a text."""
    is_number = text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()
    return [int(text), True, False] if is_number else [True]


def outcome(
    module: ModuleType,
    given: list[bytes],
    room: int = 4096,
    texts: int = 40_000,
    most: int = 99,
    keys: int = 99,
) -> Any:
    count = len(given)
    counts, asked = np.zeros(2, np.int32), np.zeros(2, np.int32)
    requests, marks = np.zeros((count, 5), np.int32), np.zeros(10, np.int32)
    text, out = (np.zeros(n, np.uint8) for n in (texts, room))
    hosts = b"".join(
        (bytes([row] * (16 if row % 2 else 4)) + bytes([0, 0, row, row])).ljust(20, b"\0")
        + bytes([row % 2])
        for row in range(count)
    )
    starts, tags = (np.zeros(most, np.int64) for _ in range(2))
    sizes, route_of, places = (np.zeros(most, np.int32) for _ in range(3))
    key_hash, key_rows = (np.zeros(keys, np.int32) for _ in range(2))
    try:
        written, taken, rows, routes, found, compressed = module.write_sends(
            given, {b"t": 0, b"topic": 1}, 99, 0x701, np.array([2, 8], np.int32), marks, hosts,
            bytes(8), b"CLUSTER\1c", counts, asked, requests, starts, tags, sizes, route_of,
            places, key_hash, key_rows, text, out,
        )  # fmt: skip
    except ValueError as error:
        assert not marks.any()
        return str(error)
    assert not marks.any()
    bytes_of, rows_of = requests[:, SIZE], requests[:, ROWS]
    assert (taken, rows) == (np.count_nonzero(bytes_of), rows_of.sum())
    arrays = (
        bytes_of, rows_of, counts, asked, requests[bytes_of > 0], starts[:rows], tags[:rows],
        sizes[:rows], route_of[:rows], places[:routes], key_hash[:found], key_rows[:found],
    )  # fmt: skip
    return bytes(out[:written]), [each.tolist() for each in arrays], compressed


STORED_V4, STORED_V6 = bytes([10, 0, 0, 1, 0, 0, 42, 159]), bytes(15) + b"\1" + bytes(4)


def alone(module: ModuleType, frame: bytes, store_host: bytes) -> Any:
    """What becomes of a frame that comes alone: its record when it is stamped, and its answer."""
    peer = STORED_V4.ljust(20, b"\0") + b"\0"
    found = module.write_send(frame, 99, 0x701, 8, peer, store_host, b"CLUSTER\1c")
    if found is None:
        return None
    record, queue_id, tags, keys = found
    module.stamp_record(record, 2**40 + 1, 2**41 + 2, 1_700_000_000_000, store_host)
    request = PlainSend(*module.plain_sends(frame, len(frame))[0][0])
    answer = module.write_answer(
        409, store_host, request.opaque, request.form, queue_id, 2**40 + 1, 2**41 + 2
    )
    return bytes(record), queue_id, tags, keys, answer


@given(frames())
@example(encode_frame(Command(310, USUAL, b"x")))
@example(encode_frame(Command(310, {**USUAL, "i": "KEYS\1a b\2TAGS\1t"}, b"x", form=Form.ROCKETMQ)))
def test_a_request_alone_gets_what_it_gets_among_others(frame: bytes) -> None:
    for module in {kernel.active, plain}:
        one = alone(module, frame, bytes(8))
        request = module.plain_sends(frame, len(frame))[0]
        if one is None or request[0][5] not in ("t", "topic"):
            continue
        peer = STORED_V4.ljust(20, b"\0") + b"\0"
        requests, out = np.zeros((1, 5), np.int32), np.zeros(4096, np.uint8)
        starts, tags = np.zeros(1, np.int64), np.zeros(1, np.int64)
        sizes, route_of, places = (np.zeros(1, np.int32) for _ in range(3))
        key_hash, key_rows = (np.zeros(99, np.int32) for _ in range(2))
        written, taken, rows, _, keys, compressed = module.write_sends(
            [frame], {b"t": 0, b"topic": 1}, 99, 0x701, np.array([8, 8], np.int32),
            np.zeros(16, np.int32), peer, bytes(8), b"CLUSTER\1c", np.zeros(2, np.int32),
            np.zeros(2, np.int32), requests, starts, tags, sizes, route_of, places, key_hash,
            key_rows, np.zeros(40_000, np.uint8), out,
        )  # fmt: skip
        assert (taken, rows, compressed, written) == (1, 1, 0, len(one[0]))
        queue_offset, physical = np.array([2**40 + 1]), np.array([2**41 + 2])
        module.stamp_records(
            out[:written], starts, queue_offset, physical, 1_700_000_000_000, bytes(8)
        )
        (answer,) = module.write_answers(409, bytes(8), requests, queue_offset, physical)
        assert one == (
            out[:written].tobytes(), requests[0, QUEUE], tags[0], tuple(key_hash[:keys].tolist()),
            answer,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "code"), [("cpp-send-push", 10), ("js-send-push", 310), ("java-push", 310)]
)
def test_what_clients_send_is_plain(name: str, code: int) -> None:
    """Clients in C++ use long names and an empty remark, and those in JavaScript no texts."""
    sent = [
        each.request for each in exchanges(name, "broker") if each.request.header["code"] == code
    ]
    assert len(sent) > 9
    for request in sent:
        for module in {kernel.active, plain}:
            found, end = module.plain_sends(request.wire, len(request.wire))
            fields = request.header["extFields"]
            assert end == len(request.wire)
            assert found[0][5] == fields.get("b", fields.get("topic"))


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(
    st.lists(frames(), max_size=4),
    st.sampled_from([4096, 4096, 4096, 400, 200, 30]),
    st.sampled_from([40_000, 40_000, 200, 20]),
    st.sampled_from([99, 99, 3, 0]),
    st.sampled_from([99, 99, 3, 0]),
)
@example([encode_frame(Command(310, USUAL, b"x", form=form)) for form in Form], 4096, 40_000, 9, 9)
@example([encode_frame(Command(320, USUAL, BATCH, form=form)) for form in Form], 4096, 40_000, 9, 9)
def test_both_kernels_make_the_same_of_frames(
    given_frames: list[bytes], room: int, texts: int, most: int, keys: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    modules = kernel._choose(), plain
    for frame in given_frames:
        for data in (frame, frame[:-1], frame * 2 + given_frames[0] + b"abc", frame + frame[:9]):
            for longest in (1 << 24, len(frame), len(frame) - 1):
                one, other = (module.plain_sends(data, longest) for module in modules)
                assert one == other
        for stored in (STORED_V4, STORED_V6):
            one, other = (alone(module, frame, stored) for module in modules)
            assert one == other
    one, other = (outcome(module, given_frames, room, texts, most, keys) for module in modules)
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
        found, end = module.plain_sends(frame, len(frame))
        if not found:
            assert end == 0
            continue
        assert end == len(frame)
        request = PlainSend(*found[0])
        assert request.frame == frame
        decoded = command_of(memoryview(frame))  # which raises nothing
        assert request.code == decoded.code
        for name in ("opaque", "flag", "form", "ext", "body", "remark", "language", "version"):
            assert getattr(request, name) == getattr(decoded, name), name
        assert request.topic == named_topic(decoded)
        assert request.size == len(frame)


def test_what_has_no_room_is_odd() -> None:
    """A batch must not take the room of a request behind it, and fail both."""
    given_frames = [
        encode_frame(Command(320, USUAL, BATCH)),
        encode_frame(Command(310, USUAL, b"x")),
    ]
    for module in {kernel.active, plain}:
        data, (sizes, rows, *_), _ = outcome(module, given_frames, room=260)
        assert rows == [2, 0]
        assert len(data) == sum(sizes)


@pytest.mark.parametrize(
    "more",
    [
        {"i": "INNER_MULTI_DISPATCH\x01x"}, {"i": "DELAY\x011"}, {"f": "4"}, {"f": "32768"},
        {"i": "__CRC32#\x010123456789\x02"}, {"e": "2"}, {"i": "KEYS\x01" + "k " * 100},
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", [310, 320])
def test_what_a_block_must_not_hold_is_odd(more: dict[str, str], code: int) -> None:
    """It is decoded, and refused or handled as all such requests are."""
    body = b"x" if code == 310 else batch([b"one"], more.get("i", "k\x01v").encode()).body
    odd = encode_frame(Command(code, {**USUAL, **more}, body))
    usual = encode_frame(Command(310, USUAL, b"x"))
    for module in {kernel.active, plain}:
        _, (sizes, rows, _, _, _, starts, *_), _ = outcome(module, [usual, odd, usual])
        if "CRC" in more.get("i", ""):  # the cluster's property comes behind it
            assert rows == [1, 1, 1]
            continue
        assert rows == [1, 0, 1]
        assert starts == [0, sizes[0]]


def test_a_block_is_as_one_that_is_checked() -> None:
    frames_given = [
        encode_frame(Command(310, {**USUAL, "e": queue, "i": "TAGS\x01t\x02KEYS\x01a b"}, b"x"))
        for queue in "101"
    ]
    frames_given.append(encode_frame(Command(320, {**USUAL, "b": "topic"}, BATCH)))
    for module in {kernel.active, plain}:
        data, (*_, starts, tags, sizes, route_of, places, hashes, rows), _ = outcome(
            module, frames_given
        )
        block = check_block(
            np.frombuffer(data, np.uint8), max_body=99, store_host_v6=False, allowed_sys_flag=0
        )
        assert [starts, tags, sizes, route_of] == [
            each.tolist() for each in (block.starts, block.tags_code, block.sizes, block.route_of)
        ]
        queues = [("t", 0), ("t", 1), *(("topic", queue) for queue in range(8))]
        assert [queues[place] for place in places] == list(block.routes)
        keys = index_hashes(block.data, block.starts, block.sizes)
        assert [hashes, rows] == [each.tolist() for each in keys]


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
    odd, requests = (0, 0, 0, 0, 0), []
    for opaque, form, queue, _, at in rows:
        requests += [(opaque, form, queue, 1, len(at)), odd]
    told = np.array(requests, np.int32).reshape(-1, 5)
    places = np.array([place for row in rows for place in row[4]], np.int64)
    offsets = np.array([row[3] for row in rows for _ in row[4]], np.int64)
    expected = []
    for opaque, form, queue, offset, at in rows:
        ids = [f"{host.hex().upper()}{place:016X}" for place in at]
        ext = {
            "msgId": ",".join(ids), "queueId": str(queue),
            "queueOffset": str(offset), "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        }  # fmt: skip
        expected.append(encode_frame(Command(0, ext, opaque=opaque, flag=1, form=Form(form))))
    for module in {kernel.active, plain}:
        assert module.write_answers(VERSION, host, told, offsets, places) == expected


@pytest.mark.parametrize(("count", "rows"), [(1, [2]), (2, [1]), (1, [0]), (0, [1]), (1, [-1, 2])])
def test_answers_for_other_messages_are_refused(
    count: int, rows: list[int], each_kernel: str
) -> None:
    told = np.array([(1, 0, 0, 9, each) for each in rows], np.int32)
    places = np.zeros(count, np.int64)
    with pytest.raises(ValueError, match="differ in number"):
        kernel.active.write_answers(VERSION, bytes(8), told, places, places)


@given(
    frames(),
    st.integers(0, 0x7F),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
)
@example(encode_frame(Command(310, {**USUAL, "i": "KEYS\x01a b\x02TAGS\x01t"}, b"x")), 0, [])
def test_a_single_record_is_found_as_in_a_block(
    frame: bytes, flags: int, damage: list[tuple[int, int]]
) -> None:
    written = plain.write_send(frame, 99, 0x701, 8, STORED_V4.ljust(21, b"\0"), bytes(8), b"c\1c")
    if written is None:
        return
    data = np.frombuffer(written[0], np.uint8)
    data[39] ^= flags
    for at, value in damage:
        data[at % len(data)] ^= value
    outcomes = [module.check_single(data, 90, 0, 0x701) for module in (kernel.active, plain)]
    assert outcomes[0] == outcomes[1]
    if outcomes[0] is None:
        return
    topic, queue_id, tags, keys = outcomes[0]
    found = check_block(data, max_body=90, store_host_v6=False, allowed_sys_flag=0x701)
    assert (found.routes, found.tags_code.tolist()) == (((topic, queue_id),), [tags])
    assert (found.queued.tolist(), found.delayed, found.compressed) == ([True], 0, 0)
    assert index_hashes(data, found.starts, found.sizes)[0].tolist() == list(keys)
