"""Real clients' conversations with a real broker, played to ours and compared field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqstore_spark.layout.fastjson import ObjectKey
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from tests.broker.broker import broker, records_in
from tests.broker.clients.conversation import SENDS, Clock, Conversation, Said
from tests.broker.clients.records import StoredRecord, read_record

_CLIENTS = [
    *("java-send", "java-push", "java-orderly", "java-pull", "java-delay", "java-broadcast"),
    *("java-errors", "js-send-push", "cpp-send-push", "java-binary"),
]
_ORDER = [*_CLIENTS[:8], "mqadmin", *_CLIENTS[8:]]
"""As they were recorded, with one broker."""

_OF_THE_LOG = {"msgId", "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
"""Where something lies in a log, and when a broker wrote its index."""
_OF_THE_MOMENT = {"clientAddr", "brokerAddr", "consumeTps"}
"""Fields of bodies: addresses with ports that were free, and how fast something was."""
_TIMES = {"lastTimestamp", "lastUpdateTimestamp"}
_NEAR_MS = 100
"""How far apart two brokers' times for the same event may be."""
_NOT_PLAYED = {
    *("RecTran", "cg_tx", "RecRpc", "cg_rpc"),  # test_transactions and test_relaying do
    *("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"),  # our half messages have no such reader
}
"""Topics and groups of other recordings."""
_ONLY_THEIRS = {
    *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL"),
    *("FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"),
}
"""Groups that a broker creates when it starts."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversation]:
    places: dict[int, int] = {}
    conversations = [Conversation(name, places) for name in _ORDER]
    clock = Clock()
    clock.advance(conversations[0].begin)
    path = tmp_path_factory.mktemp("conversations") / "store"
    with broker(path, clock, default_topic_queue_nums=4) as served:
        for each in conversations:
            each.play(served, clock)
    return {each.name: each for each in conversations}


def test_real_clients_are_answered_alike(played: dict[str, Conversation]) -> None:
    codes = set()
    for name in _CLIENTS:
        conversation = played[name]
        assert not conversation.surplus, name
        for said in conversation.said:
            _same(said, conversation)
            codes.add(said.request.code if said.request is not None else said.theirs.code)
    # Also 15, where a client wants an answer, and 40, which the broker tells.
    assert codes == {
        *(10, 11, 12, 14, 15, 29, 30, 31, 32, 34, 35, 36, 38, 40, 41, 42, 46, 310, 320),
    }  # fmt: skip


def test_mqadmin_is_answered_alike(played: dict[str, Conversation]) -> None:
    conversation = played["mqadmin"]
    assert not conversation.surplus
    codes = set()
    for said in conversation.said:
        assert said.request is not None
        codes.add(said.request.code)
        if said.request.code in (
            RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG,
        ):  # fmt: skip
            assert said.ours.code == said.theirs.code
            assert said.ours.ext.keys() == said.theirs.ext.keys()
        elif not _NOT_PLAYED & set(said.request.ext.values()):
            _same(said, conversation)
    assert codes == {
        *(11, 12, 15, 17, 26, 28, 29, 30, 31, 33, 35, 200, 202, 203, 204, 207, 208, 215, 222, 300),
        *(317, 321),
    }  # fmt: skip


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
        assert _comparable(ours.body, conversation) == _comparable(theirs.body, conversation), said
    else:
        _same_records(said, conversation)


def _of_what_waits(said: Said) -> set[str]:
    """Fields that say how many delayed messages there are: theirs had some of earlier ones."""
    if said.request is None:
        return set()
    if said.request.code in SENDS:
        fields = " ".join(said.request.ext.values())
        return {"queueOffset"} if "DELAY\x01" in fields else set()
    return {"nextBeginOffset", "maxOffset"} if _came_late(said) else set()


def _came_late(said: Said) -> bool:
    """Whether a pull waited for delayed messages: ours may come together that came one by one."""
    return said.waited and b"REAL_TOPIC\x01" in said.theirs.body


def _first_line(remark: str | None) -> str:
    """What a remark says first, without the settings of a topic and the client's address."""
    line = (remark or "").split("\n")[0].strip()
    for detail in (" consumer:", ", TopicConfig ["):
        line = line.partition(detail)[0]
    return line.replace("not set any response code", "")  # so they say of some successes


def _comparable(body: bytes, conversation: Conversation) -> Any:
    """A JSON body without an order of what has none, and of times only whether there is one."""
    told = parse_body(body, object_keys=True) if body else {}
    return json.dumps(_plain(told), sort_keys=True)


def _plain(told: Any) -> Any:
    if isinstance(told, list):
        found = [_plain(each) for each in told]
        kept = [each for each in found if not _is_of_others(each)]
        return sorted(json.dumps(each, sort_keys=True) for each in kept)
    if not isinstance(told, dict):
        return told
    return {
        json.dumps(dict(name), sort_keys=True) if isinstance(name, ObjectKey) else name: (
            bool(value) if name in _TIMES else _plain(value)
        )
        for name, value in told.items()
        if name not in _OF_THE_MOMENT
    }


def _is_of_others(entry: Any) -> bool:
    """Whether an entry is that of a group that only theirs has."""
    return isinstance(entry, dict) and bool(entry.keys() & (_ONLY_THEIRS | _NOT_PLAYED))


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
