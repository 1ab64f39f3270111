"""A commit that stops on its way, for what others do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rmqstore_spark.engine.batches import batch_block, writing


@contextmanager
def stopped_commit(
    monkeypatch: pytest.MonkeyPatch, commit: Callable[[], object]
) -> Iterator[threading.Event]:
    """Commit a batch, however small, as a large one, in a thread that stops with its block hidden.

    Args:
        monkeypatch: of the test.
        commit: commits it.

    Yields:
        Lets it continue, at the latest when the context ends. That waits for it.
    """
    is_there, go = threading.Event(), threading.Event()

    def reach(name: str) -> None:
        if name == "commit.after_head":
            is_there.set()
            assert go.wait(60)

    monkeypatch.setattr(writing, "_LARGE", 0)
    monkeypatch.setattr(writing, "_ROOM_PART", 1)
    monkeypatch.setattr(batch_block, "reach", reach)
    thread = threading.Thread(target=commit)
    thread.start()
    try:
        assert is_there.wait(30)
        yield go
    finally:
        go.set()
        thread.join(60)
