"""Commands, headers and frames: against what real clients and servers sent, and by properties."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec import frames as frames_module
from rmqstore_spark.remoting.codec.command import (
    LANGUAGES,
    MAX_FIELDS,
    Command,
    Form,
    decode_header,
)
from rmqstore_spark.remoting.codec.frames import (
    HEAD_BYTES,
    MAX_FRAME,
    MAX_HEADER,
    FrameReader,
    encode_frame,
    frame_head,
    frame_lengths,
)
from tests.remoting.reading import read_frames
from tests.support.recordings import RECORDINGS, Frame, frames

_INT = st.integers(-(2**31), 2**31 - 1)
_SHORT = st.integers(-(2**15), 2**15 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _commands(form: Form) -> st.SearchStrategy[Command]:
    # A binary header cannot tell an empty remark from none, and has numbers of 16 bits.
    small = _SHORT if form == Form.ROCKETMQ else _INT
    return st.builds(
        Command,
        code=small,
        ext=st.dictionaries(_TEXT, _TEXT, max_size=5),
        body=st.binary(max_size=50),
        remark=st.none() | _TEXT.filter(lambda text: form == Form.JSON or bool(text)),
        opaque=_INT,
        flag=_INT,
        language=st.sampled_from(LANGUAGES),
        version=small,
        form=st.just(form),
    )


_ANY = _commands(Form.JSON) | _commands(Form.ROCKETMQ)


def _expected(frame: Frame) -> Command:
    """A recorded frame, from the header as another decoder saw it."""
    header = frame.header
    language = header["language"]  # a number in a binary header
    return Command(
        code=header["code"],
        ext={key: _as_text(value) for key, value in (header.get("extFields") or {}).items()},
        body=frame.body,
        remark=header.get("remark") or None,
        opaque=header["opaque"],
        flag=header["flag"],
        language=LANGUAGES[language] if isinstance(language, int) else language,
        version=header["version"],
        form=Form(frame.form),
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@given(_commands(Form.JSON))
def test_a_header_says_the_same_whatever_json_a_client_writes(command: Command) -> None:
    header = json.loads(command.encode_header())
    header["extFields"] = command.ext | {"a number": 1}  # Java's clients write texts only
    found = decode_header(Form.JSON, json.dumps(header).encode())
    assert found.ext.pop("a number") == "1"
    assert found == replace(command, body=b"")


def test_half_a_character_becomes_a_question_mark() -> None:
    header = Command(1, {"key": "a\ud800"}, remark="\udc00").encode_header()
    assert decode_header(Form.JSON, header) == Command(1, {"key": "a?"}, remark="?")


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_frame_is_decoded_and_encoded_again(name: str) -> None:
    seen = 0
    for frame in frames(name):
        if frame.form == Form.JSON and not isinstance(frame.header.get("language"), str):
            continue  # made by hand; the test of languages has such headers
        (found,) = read_frames(frame.wire)
        expected = _expected(frame)
        if expected.language not in LANGUAGES:
            expected.language = "OTHER"
        found.remark = found.remark or None
        assert found == expected
        (again,) = read_frames(encode_frame(found))
        assert again == expected
        seen += 1
    assert seen


@pytest.mark.parametrize("name", ["cpp-send-push", "java-binary", "js-send-push"])
def test_frames_arrive_in_any_pieces(name: str) -> None:
    recorded = list(frames(name))[:150]
    stream = b"".join(frame.wire for frame in recorded)
    given = random.Random(name)
    found: list[Command] = []
    reader, at = FrameReader(), 0
    while at < len(stream):
        piece = given.choice((1, 2, 7, 100, 5000))
        found += read_frames(stream[at : at + piece], reader)
        at += piece
    assert [command.body for command in found] == [frame.body for frame in recorded]
    assert [command.opaque for command in found] == [frame.header["opaque"] for frame in recorded]
    assert reader.held == 0


@given(_ANY)
def test_a_command_comes_back_as_it_was(command: Command) -> None:
    (found,) = read_frames(encode_frame(command))
    assert found == command


@settings(max_examples=50)
@given(st.lists(_ANY, max_size=3), st.data())
def test_commands_come_back_from_any_two_pieces(commands: list[Command], data: Any) -> None:
    stream = b"".join(map(encode_frame, commands))
    at = data.draw(st.integers(0, len(stream)))
    reader = FrameReader()
    assert read_frames(stream[:at], reader) + read_frames(stream[at:], reader) == commands


def test_a_frame_cut_at_every_byte_is_kept_until_it_is_whole() -> None:
    wire = encode_frame(Command(105, {"topic": "T"}, b"body"))
    for at in range(len(wire)):
        reader = FrameReader()
        assert read_frames(wire[:at], reader) == []
        assert reader.held == at
        assert len(read_frames(wire[at:], reader)) == 1


def test_numbers_and_booleans_in_the_fields_are_texts_as_written() -> None:
    header = b'{"code":"10","extFields":{"a":0,"b":true,"c":-1.50,"d":null,"e":"x"},"flag":2}\n'
    found = decode_header(Form.JSON, header)
    assert found.ext == {"a": "0", "b": "true", "c": "-1.50", "e": "x"}
    assert (found.code, found.is_one_way, found.is_response) == (10, True, False)


@pytest.mark.parametrize(
    ("language", "expected"),
    [('"GO"', "GO"), ("9", "GO"), ('"KLINGON"', "OTHER"), ("99", "OTHER"), ("{}", "OTHER")],
)
def test_any_language_is_accepted(language: str, expected: str) -> None:
    header = f'{{"code":1,"language":{language}}}'.encode()
    assert decode_header(Form.JSON, header).language == expected


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"code":1.5}',
        b'{"code":2147483648}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":NaN}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"remark":{}}',
        b"[" * 100_000,
        b'{"extFields":' + b'{"a":' * 50_000,
        json.dumps({"extFields": {str(n): "" for n in range(MAX_FIELDS + 1)}}).encode(),
    ],
)
def test_what_is_no_json_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(Form.JSON, header)


def test_a_binary_header_that_is_cut_anywhere_is_refused() -> None:
    command = Command(1, {"key": "value"}, remark="remark", form=Form.ROCKETMQ)
    header = command.encode_header()
    for at in range(len(header)):
        with pytest.raises(FrameError):
            decode_header(Form.ROCKETMQ, header[:at])


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 1000])
def test_a_binary_header_with_lengths_that_lie_is_refused(length: int) -> None:
    header = bytearray(Command(1, {"key": "value"}, form=Form.ROCKETMQ).encode_header())
    for at in (13, 17):
        lying = (
            bytes(header[:at]) + length.to_bytes(4, "big", signed=True) + bytes(header[at + 4 :])
        )
        with pytest.raises(FrameError):
            decode_header(Form.ROCKETMQ, bytes(lying))


@pytest.mark.parametrize(
    ("length", "mark"),
    [
        (-1, 0),
        (3, 0),
        (MAX_FRAME - 3, 0),
        (2**31 - 1, 0),
        (10, 7),
        (MAX_FRAME - 4, MAX_HEADER + 1),
        (6, 2 << 24 | 2),
        (6, 0x16 << 24 | 2),
    ],
)
def test_a_head_that_lies_ends_the_stream(length: int, mark: int) -> None:
    head = length.to_bytes(4, "big", signed=True) + mark.to_bytes(4, "big") + b"{}"
    good = encode_frame(Command(1))
    reader = FrameReader()
    found, error = reader.feed(good + good + head)
    assert isinstance(error, FrameError)
    assert [command.code for command in found] == [1, 1]
    assert reader.held == 0


@given(_ANY, st.integers(0, 1 << 31), st.integers(0, 1 << 31))
def test_a_head_says_how_long_header_and_body_are(command: Command, size: int, most: int) -> None:
    """A body may be larger than one that RocketMQ takes, where both sides say so."""
    whole = HEAD_BYTES + len(command.encode_header()) + size
    if whole > most:
        with pytest.raises(FrameError):
            frame_head(command, size, most)
        return
    head = frame_head(command, size, most)
    form, header, body = frame_lengths(memoryview(b"x" + head), 1, most)
    assert (form, header, body) == (command.form, len(head) - HEAD_BYTES, size)
    assert decode_header(form, head[HEAD_BYTES:]) == replace(command, body=b"")
    if whole - 1 >= HEAD_BYTES:
        with pytest.raises(FrameError):
            frame_lengths(memoryview(head), 0, whole - 1)


@given(st.binary(min_size=8, max_size=8), st.integers(8, 1 << 31))
def test_any_head_has_lengths_that_fit_or_is_refused(head: bytes, most: int) -> None:
    try:
        form, header, body = frame_lengths(memoryview(head), 0, most)
    except FrameError:
        return
    assert 0 <= form < 256
    assert 0 <= header <= MAX_HEADER
    assert body >= 0
    assert HEAD_BYTES + header + body <= most


def test_a_command_that_fits_no_frame_is_refused() -> None:
    with pytest.raises(FrameError, match="does not fit"):
        encode_frame(Command(1, body=bytes(MAX_FRAME)))
    with pytest.raises(FrameError, match="does not fit"):
        encode_frame(Command(1, {"a": "b" * MAX_HEADER}))
    for wrong in (Command(1, {"n" * 40_000: ""}), Command(1 << 20), Command(1, version=1 << 20)):
        wrong.form = Form.ROCKETMQ
        with pytest.raises(FrameError, match="fit"):
            encode_frame(wrong)


def test_the_largest_frame_passes() -> None:
    room = MAX_FRAME - len(encode_frame(Command(1)))
    (found,) = read_frames(encode_frame(Command(1, body=bytes(room))))
    assert len(found.body) == room


def test_half_a_character_does_not_stop_an_answer() -> None:
    request = decode_header(Form.JSON, b'{"code":105,"extFields":{"topic":"a\\ud800"}}')
    answer = request.answer(17, f"no {request.ext['topic']}")
    assert b"no a?" in encode_frame(answer)


def test_an_answer_repeats_number_and_form_of_its_request() -> None:
    request = Command(105, opaque=-7, language="CPP", version=63, form=Form.ROCKETMQ)
    answer = request.answer()
    assert (answer.opaque, answer.form, answer.is_response) == (-7, Form.ROCKETMQ, True)
    assert (answer.language, answer.version) == ("JAVA", 409)
    assert frames_module.frame_parts(answer)[1] is answer.body
