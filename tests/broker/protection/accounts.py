"""Files with accounts, and requests that are signed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served

__all__ = ["ADMIN", "APP", "RECORDED", "ask", "write_accounts"]

APP = SessionCredentials("RocketMQ", "12345678")
ADMIN = SessionCredentials("rocketmq2", "12345678")

RECORDED = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - RecAcl=PUB|SUB
      - RecSend=DENY
      - ReadOnly=SUB
      - WriteOnly=PUB
    groupPerms:
      - closed=DENY
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
"""The accounts of the recorded broker, and a few rights more."""


def write_accounts(path: Path, text: str = RECORDED) -> str:
    """Write a file that nobody else may read; return its path."""
    made = path.with_suffix(".new")
    made.write_text(text)
    made.chmod(0o600)
    made.rename(path)
    return str(path)


def ask(served: Served, *requests: Command, by: SessionCredentials | None = APP) -> list[Command]:
    """The answers to requests that are signed."""

    async def work() -> list[Command]:
        async with await RemotingClient.connect(
            served.address, seconds=30, credentials=by
        ) as client:
            return [await client.ask(request, 30) for request in requests]

    return asyncio.run(work())
