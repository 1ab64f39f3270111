"""Decoders of RocketMQ's protocol: frames, headers and bodies from clients and servers."""

from __future__ import annotations

from typing import Any, Final

from rmqstore_spark.broker.core.messages import (
    is_transactional,
    split_batch,
    stored_properties,
)
from rmqstore_spark.broker.faces.remoting.headers import long_send, short_send
from rmqstore_spark.broker.faces.remoting.membership import read_heartbeat
from rmqstore_spark.client.brokers.answers import (
    read_brokers,
    read_names,
    read_route,
    read_topics,
)
from rmqstore_spark.namesrv.registration import read_registration
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame

__all__ = ["frames", "heartbeat", "registration", "route", "sends"]

_MOST: Final = 100


def frames(data: bytes) -> Any:
    """Frames of RocketMQ's protocol; what was understood must come back as it is."""
    found, error = FrameReader().feed(data)
    for command in found:
        assert FrameReader().feed(encode_frame(command)) == ([command], None)
    return repr(found), str(error)


def registration(data: bytes) -> Any:
    """A broker's registration, by its first byte plain, of an old broker, or compressed."""
    ext = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "h:1"}
    ext["compressed"] = str(data[:1] == b"\x02")
    version = 1 if data[:1] == b"\x01" else 409
    return repr(read_registration(Command(103, ext, data[1:], version=version)))


def route(data: bytes) -> Any:
    """What a name server or a broker answers: a route, brokers, topics, or names."""
    read = (read_route, read_brokers, read_topics, read_names)[data[0] % 4 if data else 0]
    return repr(read(Command(0, body=data[1:]), "it"))


def sends(data: bytes) -> Any:
    """Requests to send: their headers, what is stored of their properties, and batches."""
    found, _ = FrameReader().feed(data)
    return [_sent(command) for command in found]


def _sent(request: Command) -> Any:
    read = long_send if request.code == RequestCode.SEND_MESSAGE else short_send
    header = read(request)
    is_half = is_transactional(header.properties)
    is_dead = bool(header.flag & 1)
    given = header.properties
    properties = stored_properties(given, "c", 1 << 22, is_dead=is_dead, is_half=is_half)
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return repr(header), properties
    batch = split_batch(request.body, _MOST)
    for spans in (batch.bodies, batch.properties):
        assert (spans.starts >= 0).all()
        assert (spans.starts + spans.lengths <= len(request.body)).all()
    return repr(header), properties, batch.bodies.starts, batch.properties.starts, batch.flags


def heartbeat(data: bytes) -> Any:
    """What a client says of itself."""
    return repr(read_heartbeat(Command(RequestCode.HEART_BEAT, body=data)))
