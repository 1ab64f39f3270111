"""Limits on the memory, the number and the idle time of connections."""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore_spark.remoting.codec.frames import MAX_FRAME


@dataclass(frozen=True)
class Limits:
    """The bounds of a server's connections, or of a client's one.

    Attributes:
        frame: most bytes of a frame with its length.
        connections: most connections of a server; others are closed at once.
        held: most bytes of requests in memory, over all connections of a server; and half of that
            is the most of answers that the other ends do not read. See `room` and `answers`.
        connection_held: most bytes of requests of a connection that are being handled; with more,
            it is not read. Answers that its other end does not read stop it sooner.
        group: most requests, of all connections, that are handled before answers are written.
        in_flight: most requests of a connection that are being handled; with more, it is not
            read. Also the most that this side asks at a time.
        idle_seconds: a connection on which nothing comes or goes for this time is closed.
        frame_seconds: a connection is ended on which a frame takes longer to arrive.
        write_seconds: a connection is ended whose other end does not read answers for this time.
    """

    frame: int = MAX_FRAME
    connections: int = 20_000
    held: int = 256 << 20
    connection_held: int = 64 << 20
    group: int = 128
    in_flight: int = 65_535
    idle_seconds: float = 120.0
    frame_seconds: float = 60.0
    write_seconds: float = 30.0
