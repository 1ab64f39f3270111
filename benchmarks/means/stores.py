"""The stores that are measured: made when they are first asked for, and kept for the next run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.messages.traffic import Traffic
from tests.support.stores.storebuilder import build_store

__all__ = ["BODY_SIZES", "Shape", "Stores", "record_size"]

BODY_SIZES: Final = (100, 1024, 4096)
_STORE_BYTES: Final = 640 << 20
_TAGS: Final = tuple(f"Tag{n:02}" for n in range(100))
_MAKING: Final = ".making"


def record_size(body_size: int) -> int:
    """Bytes of a record of `Shape`'s messages."""
    return 91 + len("orders") + 104 + body_size


@dataclass(frozen=True)
class Shape:
    """What a store holds: messages with UNIQ_KEY, TAGS (one of 100), KEYS and WAIT.

    Attributes:
        body_size: bytes.
        queues: how many, of all topics together; messages take turns.
        messages: how many; the default gives a log of 640 MiB.
        topics: name to number of queues; one topic by default.
    """

    body_size: int
    queues: int = 1
    messages: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many messages."""
        return self.messages or _STORE_BYTES // record_size(self.body_size) // 1000 * 1000

    @property
    def name(self) -> str:
        """What its folder is called."""
        topics = f"-{len(self.topics)}topics" if self.topics else ""
        return f"{self.body_size}B-{self.queues}q-{self.count}{topics}"


class Stores:
    """Makes stores below one folder.

    Args:
        folder: made when needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, shape: Shape) -> Path:
        """The store of a shape."""
        path = self.folder / shape.name
        if not path.is_dir():
            making = path.with_name(shape.name + _MAKING)
            shutil.rmtree(making, ignore_errors=True)
            print(f"Making {shape.count:,} messages: {shape.name} ...", flush=True)
            traffic = Traffic(
                shape.count,
                topics=shape.topics or {"orders": shape.queues},
                body_size=shape.body_size,
                tags=_TAGS,
            )
            build_store(making, traffic)
            making.rename(path)
        return path

    def remove(self, shape: Shape) -> None:
        """Remove the store of a shape."""
        shutil.rmtree(self.folder / shape.name)
