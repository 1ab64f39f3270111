"""What RocketMQ's servers and clients said to each other (tests/golden/README.md)."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["RECORDINGS", "Closed", "Exchange", "Frame", "events", "exchanges", "frames"]

_FOLDER = Path(__file__).resolve().parents[1] / "golden" / "remoting"
RECORDINGS = sorted(path.name.removesuffix(".jsonl.gz") for path in _FOLDER.iterdir())
"""The names of all recordings."""


class Closed(NamedTuple):
    """A client closed its connection."""

    connection: int
    at: float


class Frame(NamedTuple):
    """A frame that was recorded, `at` seconds after the recording began."""

    connection: int
    at: float
    is_from_client: bool
    peer: str
    form: int
    header: dict[str, Any]
    raw_header: bytes
    body: bytes

    @property
    def wire(self) -> bytes:
        """The frame as it was sent."""
        length = 4 + len(self.raw_header) + len(self.body)
        mark = self.form << 24 | len(self.raw_header)
        return b"".join(
            (length.to_bytes(4, "big"), mark.to_bytes(4, "big"), self.raw_header, self.body)
        )


class Exchange(NamedTuple):
    """A request and its answer, if it had one."""

    request: Frame
    answer: Frame | None


def events(name: str, peer: str = "") -> Iterator[Frame | Closed]:
    """The frames of a recording that can be decoded, and what clients closed; of a peer or all."""
    with gzip.open(_FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            told = json.loads(line)
            if peer not in ("", told["peer"]):
                continue
            if "event" in told:
                if told["event"] == "close" and told["by"] == "client":
                    yield Closed(told["conn"], told["t"])
                continue
            if told["header"] is None:
                continue
            yield Frame(
                told["conn"], told["t"], told["from"] == "client", told["peer"],
                ("JSON", "ROCKETMQ").index(told["serialize"]), told["header"],
                base64.b64decode(told["headerRaw"]), base64.b64decode(told.get("body") or ""),
            )  # fmt: skip


def frames(name: str, peer: str = "") -> Iterator[Frame]:
    """The frames of a recording that can be decoded, of one peer or all."""
    return (event for event in events(name, peer) if isinstance(event, Frame))


def exchanges(name: str, peer: str) -> list[Exchange]:
    """The requests that clients sent to a peer, each with its answer."""
    found: list[Exchange] = []
    open_ones: dict[tuple[int, int], int] = {}
    for frame in frames(name, peer):
        key = frame.connection, frame.header["opaque"]
        is_answer = bool(frame.header["flag"] & 1)
        if frame.is_from_client and not is_answer:
            open_ones[key] = len(found)
            found.append(Exchange(frame, None))
        elif not frame.is_from_client and is_answer and key in open_ones:
            at = open_ones.pop(key)
            found[at] = Exchange(found[at].request, frame)
    return found
