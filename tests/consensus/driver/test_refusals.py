"""What a member says of requests that it refuses: enough, and no more, whatever they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from tests.consensus.driver.members import GroupClient, MemberProcess, addresses
from tests.support.waiting import eventually

LONG = "x" * (7 << 20)
HUGE = 10**4000
MOST_LINE = 500
COMMON = {"localId": "n1", "leaderId": "n1", "term": 1}
ENTRY = {"magic": 1, "size": 48, "index": 0, "term": 1, "pos": 0}


@pytest.mark.parametrize(
    ("code", "said", "text"),
    [
        (DLedgerRequest.VOTE, {"group": LONG}, "all members need the same dLegerGroup"),
        (DLedgerRequest.VOTE, {"remoteId": LONG}, "all members need the same dLegerPeers"),
        (DLedgerRequest.VOTE, {"group": None}, "it is for the group of no name"),
        (DLedgerRequest.PUSH, {"type": LONG}, "a push is of type 'xxx"),
        (DLedgerRequest.HEART_BEAT, {"term": HUGE}, "a term is 1000"),
        (DLedgerRequest.GET, {"term": HUGE}, "a term is 1000"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "pos": HUGE}}, "1000"),
        (DLedgerRequest.PUSH, {"batchEntry": 1}, "bytes is no PushEntryRequest: Expected `array`"),
        (DLedgerRequest.VOTE, {"term": "x"}, "bytes is no VoteRequest: Expected `int`"),
        (DLedgerRequest.HEART_BEAT, {"term": "x"}, "bytes is no RequestOrResponse: Expected"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "magic": 7}}, "entry 0 has the magic 7, not 1"),
        (DLedgerRequest.PUSH, {"entry": {**ENTRY, "size": 9}}, "it has 9 bytes, and has 48"),
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
