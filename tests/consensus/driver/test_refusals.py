"""What a member says of requests that it refuses: enough, and no more, whatever they say."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.consensus.driver.protection import request_to
from rmqstore_spark.consensus.driver.wire import DLedgerRequest, Status
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.remoting.client import RemotingClient
from tests.consensus.driver.members import (
    GROUP,
    SEGMENT,
    GroupClient,
    MemberProcess,
    addresses,
    record,
)
from tests.support.waiting import eventually

LONG = "x" * (7 << 20)
SHORTER = "x" * 1_000_000
"""Fits into a message without entries."""
HUGE = 10**4000
MOST_LINE = 500
COMMON = {"localId": "n1", "leaderId": "n1", "term": 1}
ENTRY = {"magic": 1, "size": 48, "index": 0, "term": 1, "pos": 0}


@pytest.mark.parametrize(
    ("code", "said", "text"),
    [
        (DLedgerRequest.VOTE, {"group": LONG}, "is larger than any VoteRequest"),
        (DLedgerRequest.VOTE, {"group": SHORTER}, "all members need the same dLegerGroup"),
        (DLedgerRequest.VOTE, {"remoteId": SHORTER}, "all members need the same dLegerPeers"),
        (DLedgerRequest.METADATA, {"group": "bills"}, "METADATA of 127.0.0.1"),
        (DLedgerRequest.QUEUE_ENDS, {"group": "bills"}, "it is for the group 'bills'"),
        (DLedgerRequest.GET, {"remoteId": "n9"}, "it is for the member 'n9'"),
        (
            DLedgerRequest.GET,
            {"remoteId": "\U000e0001\x1b" * 200},
            "it is for the member '\\U000e0001",
        ),
        (DLedgerRequest.VOTE, {"group": None}, "it is for the group of no name"),
        (DLedgerRequest.PUSH, {"type": LONG}, "a push is of type 'xxx"),
        (DLedgerRequest.HEART_BEAT, {"term": HUGE}, "a term is 1000"),
        (DLedgerRequest.GET, {"term": HUGE}, "a term is 1000"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "pos": HUGE}}, "1000"),
        (DLedgerRequest.PUSH, {"batchEntry": 1}, "bytes is not PushEntryRequest: Expected `array`"),
        (DLedgerRequest.VOTE, {"term": "x"}, "bytes is not VoteRequest: Expected `int`"),
        (DLedgerRequest.HEART_BEAT, {"term": "x"}, "bytes is not RequestOrResponse: Expected"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "magic": 7}}, "entry 0 has the magic 7, not 1"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "size": 9}}, "it has 9 bytes, and has 48"),
        (
            DLedgerRequest.PUSH,
            {"type": "TRUNCATE", "entry": {**ENTRY, "pos": SEGMENT - 10}},
            "is not where this log would have it; all members need the same mappedFileSizeCommit",
        ),
    ],
)
def test_a_line_says_what_is_wrong_and_repeats_little_of_it(
    tmp_path: Path, code: int, said: dict[str, Any], text: str
) -> None:
    members = addresses(3)
    with MemberProcess(tmp_path, "n0", members) as member:
        eventually(lambda: "rmqstore: member" in member.output, 60)
        assert GroupClient(members).ask("n0", code, **{**COMMON, **said})["code"] >= 400
        (line,) = [each for each in member.output.splitlines() if "is refused" in each]
    assert text in line
    assert len(line) < MOST_LINE


def test_what_is_refused_keeps_nothing_else_out_of_the_log(tmp_path: Path) -> None:
    members = addresses(3)
    asked: list[tuple[int, dict[str, Any]]] = [
        (DLedgerRequest.METADATA, {"group": "bills"}),
        (DLedgerRequest.HEART_BEAT, {"group": "bills"}),
        (DLedgerRequest.HEART_BEAT, {"localId": "n0"}),
        (DLedgerRequest.HEART_BEAT, {"term": "x"}),
    ]
    with MemberProcess(tmp_path, "n0", members) as member:
        eventually(lambda: "rmqstore: member" in member.output, 60)
        for _ in range(2):
            for code, said in asked:
                assert GroupClient(members).ask("n0", code, **{**COMMON, **said})["code"] >= 400
        lines = [line for line in member.output.splitlines() if "is refused" in line]
    assert len(lines) == len(asked)  # once a minute each
    assert any("each needs a dLegerSelfId of its own" in line for line in lines)


def test_a_record_with_a_zero_byte_in_its_texts_is_refused(tmp_path: Path) -> None:
    """A start could not tell it from what has not reached the disk."""
    members = addresses(1)
    client = GroupClient(members)

    def append(made: bytes) -> int:
        body = base64.b64encode(made).decode()
        return int(client.ask("n0", DLedgerRequest.APPEND, body=body)["code"])

    with MemberProcess(tmp_path, "n0", members) as member:
        first = client.append(record("one", properties=b""))[0]
        assert append(record("two", properties=b"k\x01v\0")) == Status.UNEXPECTED_ARGUMENT
        assert append(record("two", topic="or\0ders")) == Status.UNEXPECTED_ARGUMENT
        assert client.append(record("\0")) == [first + 1]
        told = member.output  # the second time is not told
    assert (
        "is refused (UNEXPECTED_ARGUMENT): topic or properties of the record hold a zero byte"
        in told
    )


@pytest.mark.threat("Members of a group")
def test_only_the_leader_makes_a_member_wait_for_entries_and_once_at_a_time(
    tmp_path: Path,
) -> None:
    """Each request to lead made the member look for its entry, 100 times a second for a second."""
    members = addresses(3)
    answers: list[tuple[int, int]] = []

    async def ask(client: RemotingClient, number: int, **fields: Any) -> None:
        asked = {
            "group": GROUP, "remoteId": "n0", "localId": "n1", "term": 1, "transferId": "n1",
            "transfereeId": "n0", "takeLeadershipLedgerIndex": 900, **fields,
        }  # fmt: skip
        request = request_to(DLedgerRequest.LEADERSHIP_TRANSFER, json.dumps(asked).encode())
        answer = await client.ask(request, 30)
        answers.append((number, json.loads(answer.body)["code"]))

    async def ask_together() -> None:
        async with await RemotingClient.connect(members["n0"], seconds=30) as client:
            await asyncio.gather(
                ask(client, 0),
                ask(client, 1),
                ask(client, 2, takeLeadershipLedgerIndex=1 << 50),
                ask(client, 3, transferId="n2"),
                ask(client, 4, term=7),
            )

    with MemberProcess(tmp_path, "n0", members) as member:
        eventually(lambda: "rmqstore: member" in member.output, 60)
        GroupClient(members).ask("n0", DLedgerRequest.HEART_BEAT, **COMMON)
        asyncio.run(ask_together())
    assert answers == [
        (1, Status.TAKE_LEADERSHIP_FAILED),
        (2, Status.FALL_BEHIND_TOO_MUCH),
        (3, MemberCode.INCONSISTENT_LEADER),
        (4, Status.INCONSISTENT_TERM),
        (0, Status.TAKE_LEADERSHIP_FAILED),  # when it has waited for its entry
    ]
