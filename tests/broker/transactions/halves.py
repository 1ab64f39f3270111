"""What producers of transactional messages send, as Java does."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import message
from tests.support.messages.spans import decode_properties

__all__ = ["COMMIT", "ROLLBACK", "UNKNOWN", "alive", "answer_to", "end", "half", "half_of"]

COMMIT: Final = 8
ROLLBACK: Final = 12
UNKNOWN: Final = 0


def half(body: bytes, key: str = "", group: str = "pg", more: str = "", **others: Any) -> Command:
    """A request to send a transactional message, as Java makes it."""
    properties = f"KEYS\x01k\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{key or body.decode()}"
    text = f"{properties}\x02WAIT\x01true\x02PGROUP\x01{group}\x02TAGS\x01t{more}"
    return message(body, **{"a": group, "f": "4", "i": text, "queue": 2, **others})


def end(sent: Command, outcome: int, group: str = "pg", **others: Any) -> Command:
    """A request to end the transaction of a half message, by the answer to its sending."""
    fields = {
        "producerGroup": group, "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": outcome,
        "fromTransactionCheck": "false", "msgId": "id", **others,
    }  # fmt: skip
    return Command(RequestCode.END_TRANSACTION, {k: str(v) for k, v in fields.items()})


def answer_to(check: Command, outcome: int, group: str = "pg") -> Command:
    """What a client says when it is asked: one-way."""
    told = {
        **check.ext, "producerGroup": group, "commitOrRollback": str(outcome),
        "fromTransactionCheck": "true",
    }  # fmt: skip
    return Command(RequestCode.END_TRANSACTION, told)


def alive(client: str, *groups: str) -> Command:
    """The heartbeat of producers."""
    told = {"clientID": client, "producerDataSet": [{"groupName": each} for each in groups]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(told).encode())


def half_of(check: Command) -> tuple[Records, dict[str, str]]:
    """The one message in the body of a check, and its properties."""
    data = np.frombuffer(check.body, np.uint8)
    record = decode_records(data, np.zeros(1, np.int64), np.array([len(data)], np.int32))
    assert record.status.tolist() == [0]
    assert record.store_size.tolist() == [len(data)]
    return record, dict(decode_properties(record.properties)[0].as_py())
