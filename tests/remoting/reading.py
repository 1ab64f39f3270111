"""Reads frames that must be right."""

from __future__ import annotations

from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader

__all__ = ["read_frames"]


def read_frames(data: bytes, reader: FrameReader | None = None) -> list[Command]:
    """Return the commands that are complete; fails if anything is wrong."""
    found, error = (reader or FrameReader()).feed(data)
    assert error is None
    return found
