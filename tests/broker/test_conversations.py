"""Real clients' conversations with a real broker, played to ours and compared field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.remoting.codec.bodies import parse_body
from tests.broker.broker import records_in
from tests.broker.conversation import SENDS, Conversation, Said
from tests.broker.records import StoredRecord, read_record
from tests.support.recordings import exchanges

_NAMES = [
    *("java-send", "java-binary", "java-push", "java-pull", "java-orderly", "java-broadcast"),
    *("java-delay", "java-errors", "cpp-send-push", "js-send-push"),
]
_OF_THE_LOG = {"msgId", "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
"""Where something lies in a log, and when a broker wrote its index: compared nowhere."""
_NEAR_MS = 100
"""How far apart two brokers' times for the same event may be."""


@pytest.mark.parametrize("name", _NAMES)
def test_real_clients_are_answered_alike(tmp_path: Path, name: str) -> None:
    conversation = Conversation(name)
    conversation.play(tmp_path / "store")
    assert len(conversation.said) > 15
    assert not conversation.surplus
    for said in conversation.said:
        _same(said, conversation)


def test_the_conversations_have_what_clients_ask() -> None:
    """If a recording were left out, what only it has would be missing here."""
    asked = {each.request.header["code"] for name in _NAMES for each in exchanges(name, "broker")}
    assert asked == {10, 11, 12, 14, 15, 29, 30, 31, 32, 34, 35, 36, 38, 41, 42, 46, 310, 320}


def _same(said: Said, conversation: Conversation) -> None:
    theirs, ours, request = said.theirs, said.ours, said.request
    assert ours.code == theirs.code, said
    assert _first_line(ours.remark) == _first_line(theirs.remark), said
    for name in ("version", "language", "flag", "form"):
        assert getattr(ours, name) == getattr(theirs, name), said
    assert ours.ext.keys() == theirs.ext.keys(), said
    passed_over = _OF_THE_LOG | _of_what_waits(said)
    for name, value in ours.ext.items():
        if name == "timestamp":
            assert abs(int(value) - int(theirs.ext[name])) < _NEAR_MS, said
        elif name not in passed_over:
            assert value == theirs.ext[name], (name, said)
    if theirs.body.startswith(b"{") or request is None:
        assert _comparable(ours.body) == _comparable(theirs.body), said
    else:
        _same_records(said, conversation)


def _of_what_waits(said: Said) -> set[str]:
    """Fields that say how many delayed messages there are: theirs had some of earlier ones."""
    if said.request is None:
        return set()
    if said.request.code in SENDS:
        fields = " ".join(said.request.ext.values())
        return {"queueOffset"} if "DELAY\x01" in fields else set()
    if _came_late(said):
        return {"nextBeginOffset", "maxOffset"}
    return set()


def _came_late(said: Said) -> bool:
    """Whether a pull waited for delayed messages: ours may come together that came one by one."""
    return said.request is not None and said.waited and b"REAL_TOPIC\x01" in said.theirs.body


def _first_line(remark: str | None) -> str:
    """What a remark says first, without the settings of a topic and the client's address."""
    line = (remark or "").split("\n")[0].strip()
    for detail in (" consumer:", ", TopicConfig ["):
        line = line.partition(detail)[0]
    return line


def _comparable(body: bytes) -> Any:
    """A JSON body without an order of what has none."""
    told = parse_body(body) if body else {}
    return {name: sorted(map(str, value)) for name, value in told.items()}


def _same_records(said: Said, conversation: Conversation) -> None:
    theirs, ours = (
        [read_record(record) for record in records_in(each.body)]
        for each in (said.theirs, said.ours)
    )
    assert len(ours) == len(theirs) or (_came_late(said) and len(ours) > len(theirs)), said
    for one, two in zip(theirs, ours, strict=False):
        assert conversation.places[one.physical_offset] == two.physical_offset
        was_before = two.physical_offset in conversation.before
        if not was_before and b"REAL_TOPIC\x01" not in one.properties:
            assert abs(two.store_timestamp - one.store_timestamp) < _NEAR_MS, said
        dropped = b"DELAY\x01" if was_before else b"\x00"  # it would wait again
        expected = _fields(one, conversation.places, dropped)
        assert _fields(two, {}, dropped) == expected, said


def _fields(record: StoredRecord, places: dict[int, int], dropped: bytes) -> dict[str, Any]:
    """What two brokers must store alike.

    Not where a record lies, and when it was stored; nor `prepared_transaction_offset`, which tells
    our broker where a delayed message had waited.
    """
    found = record._asdict()
    for name in ("physical_offset", "store_timestamp", "prepared_transaction_offset"):
        del found[name]
    # The order of properties is that of a hash table; an empty part is a separator too many.
    parts = sorted(record.properties.split(b"\x02"))
    found["properties"] = [_placed(part, places) for part in parts if not part.startswith(dropped)]
    return found


def _placed(part: bytes, places: dict[int, int]) -> bytes:
    """A property; of an id that says where a message lies, only where that is in our log."""
    name, _, value = part.partition(b"\x01")
    if name != b"ORIGIN_MESSAGE_ID":
        return part
    place = int(value[16:], 16)
    return b"%d" % places.get(place, place)
