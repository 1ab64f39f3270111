"""Requests that brokers send to a name server."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["ask_json", "compressed", "registration", "topic", "unregistration"]


def topic(name: str, queues: int = 4, perm: int = 6, flag: int = 0) -> dict[str, Any]:
    """A topic as a broker writes it."""
    return {
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": flag,
        "writeQueueNums": queues,
    }


def registration(
    topics: Iterable[dict[str, Any] | str] = (),
    *,
    name: str = "broker-a",
    cluster: str = "DefaultCluster",
    broker_id: int = 0,
    address: str = "127.0.0.1:10911",
    ha: str = "127.0.0.1:10912",
    version: tuple[int, int] = (1, 1),
    filter_servers: Iterable[str] = (),
) -> Command:
    """A registration."""
    told = [topic(each) if isinstance(each, str) else each for each in topics]
    body = {
        "filterServerList": list(filter_servers),
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": version[0], "timestamp": version[1]},
            "topicConfigTable": {each["topicName"]: each for each in told},
        },
    }
    ext = {
        "brokerId": str(broker_id),
        "clusterName": cluster,
        "brokerAddr": address,
        "haServerAddr": ha,
        "compressed": "false",
        "brokerName": name,
    }
    return _with_checksum(Command(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode()))


def compressed(request: Command) -> Command:
    """The same registration, compressed as a broker with compressedRegister does."""
    body = json.loads(request.body)
    wrapper = body["topicConfigSerializeWrapper"]
    parts = [json.dumps(wrapper["dataVersion"]).encode()]
    table = wrapper["topicConfigTable"].values()
    parts += [
        f"{t['topicName']} {t['readQueueNums']} {t['writeQueueNums']} {t['perm']} "
        f"{t['topicFilterType']}".encode()
        for t in table
    ]
    parts.append(json.dumps(body["filterServerList"]).encode())
    sized = [struct.pack(">i", len(part)) + part for part in parts]
    sized.insert(1, struct.pack(">i", len(table)))
    ext = {**request.ext, "compressed": "true"}
    return _with_checksum(Command(request.code, ext, zlib.compress(b"".join(sized))))


def unregistration(request: Command) -> Command:
    """What the broker of a registration sends when it ends."""
    return Command(RequestCode.UNREGISTER_BROKER, dict(request.ext))


async def ask_json(client: RemotingClient, code: int, **ext: str) -> Any:
    """Ask, and parse the answer as JSON with any parser."""
    return json.loads((await client.ask_for(Command(code, ext))).body)


def _with_checksum(request: Command) -> Command:
    request.ext["bodyCrc32"] = str(zlib.crc32(request.body) & 0x7FFFFFFF)
    return request
