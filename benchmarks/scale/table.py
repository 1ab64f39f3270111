"""All curves of docs/scale.md."""

from __future__ import annotations

from typing import Final

from benchmarks.scale.connections import measure_connections, measure_senders
from benchmarks.scale.curves import Curve, Panel
from benchmarks.scale.followers import measure_followers
from benchmarks.scale.messages import measure_messages
from benchmarks.scale.queues import measure_queues
from benchmarks.scale.segments import measure_segments
from benchmarks.scale.sources import measure_sources
from benchmarks.scale.topics import measure_topics

__all__ = ["CURVES"]

_OPEN: Final = ("open, closed cleanly", "plan of a query")
_LOOKS: Final = ("a stream looks at all queues", "a stream looks at the log")
_FINDS: Final = (
    "open to read", "open to read, find a key", "open to read, find an id",
    "open to read, find a time",
)  # fmt: skip
_PROCESS: Final = Panel("Memory of a store process that has opened it", "B", ("store process",))

CURVES: Final = (
    Curve(
        "messages", "Messages in a store", "messages",
        (100_000, 1_000_000, 10_000_000), 10_000_000_000,
        (
            Panel(
                "Time of what is done with the store", "s",
                (*_OPEN, "open, killed", "close", *_LOOKS),
            ),
            Panel("Time to find a message", "s", _FINDS),
            Panel("Time of a message", "s", ("a message that is appended",), is_bounded=True),
            Panel(
                "Memory of a process", "B", ("store process", "a process that reads all"),
                is_bounded=True,
            ),
        ),
        measure_messages,
        "Messages of 100 B in eight queues, put in blocks of 20,000. The process that puts is "
        "killed a tenth of them after a flush.",
    ),
    Curve(
        "queues", "Queues", "queues",
        (1, 100, 1_000, 10_000, 100_000), 1_000_000,
        (
            Panel(
                "Time of what is done with the store", "s",
                (*_OPEN, "open, killed", "close", *_LOOKS),
            ),
            Panel(
                "Time of a message", "s",
                (
                    "the first message of a queue", "a message that is appended",
                    "a message that is appended: CPU",
                ),
                is_bounded=True,
            ),
            _PROCESS,
        ),
        measure_queues,
        "Topics of ten queues. After a message in each queue, and a flush, 200,000 of 100 B take "
        "turns over all queues, in blocks of 20,000. Then the process is killed.",
    ),
    Curve(
        "topics", "Topics", "topics",
        (100, 1_000, 10_000), 1_000_000,
        (
            Panel(
                "Time of what is done with the store", "s",
                (*_OPEN, "create one more", "open to read, list topics"),
            ),
            _PROCESS,
        ),
        measure_topics,
        "Topics of eight queues, of which one has messages and files.",
    ),
    Curve(
        "sources", "Stores in one query", "stores",
        (1, 10, 50, 200), 1_000,
        (
            Panel(
                "Time of a query, and of a stream", "s",
                ("plan of a query", "plan and first rows", "plan and all rows", *_LOOKS),
            ),
            Panel("Memory of a process", "B", ("a process that plans and reads",)),
        ),
        measure_sources,
        "Each store has two topics of eight queues, 1,600 messages and ten segments of 1 GiB, most "
        "of which are holes. All is done in one process, as a driver plans; Spark is not in it.",
    ),
    Curve(
        "connections", "Connections", "connections",
        (1, 1_000, 5_000, 10_000), 100_000,
        (
            Panel("Memory of the store process", "B", ("remoting: memory", "endpoint: memory")),
            Panel("CPU of the store process, of a core", "%", ("remoting: CPU", "endpoint: CPU")),
        ),
        measure_connections,
        "Connections that have asked once, and wait. The endpoint takes 5,000 here: each is a "
        "thread of the store process.",
    ),
    Curve(
        "senders", "Clients that send", "clients",
        (1, 4, 16, 64, 256), 1_024,
        (
            Panel(
                "Sends a second, each with 100 B", "/s",
                ("remoting: sends", "remoting, beside 5,000 idle: sends", "endpoint: sends"),
            ),
            Panel(
                "CPU of the store process, a send", "s",
                (
                    "remoting: CPU of a send", "remoting, beside 5,000 idle: CPU of a send",
                    "endpoint: CPU of a send",
                ),
                is_bounded=True,
            ),
        ),
        measure_senders,
        "Each client waits for an answer before it sends again. All are in one process. The rates "
        "stay from 64 clients on: both cores are busy.",
    ),
    Curve(
        "followers", "Followers", "stores that have the log",
        (1, 2, 3, 5, 9), 17,
        (
            Panel("Bytes a second", "B/s", ("puts", "puts, until all have them")),
            Panel("CPU of a gigabyte", "s", ("the master", "a follower")),
        ),
        measure_followers,
        "A master, and followers on the same machine. 192 MiB of messages of 1 KiB are put as fast "
        "as the master takes them. The last two rows are CPU for a gigabyte.",
    ),
    Curve(
        "segments", "Segments of a log", "segments of 1 GiB",
        (100, 1_000, 10_000), 1_000_000,
        (
            Panel("Time of what is done with the store", "s", (*_OPEN, *_LOOKS)),
            Panel("Time to find a message", "s", _FINDS),
            Panel(
                "Time of expiry", "s", ("see which segments are due", "expire a segment"),
            ),
            _PROCESS,
        ),
        measure_segments,
        "Each segment has 24 messages, some three files of queues, and a tenth of an index file; "
        "the rest is a hole. 10,000 segments are as long as a log of 10.7 TB.",
    ),
)  # fmt: skip
