from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.datasource.sink.serving import Served


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Give `serve(name="store", **settings)`: a store and its process, until the test ends."""
    started: list[Served] = []

    def start(name: str = "store", **settings: str | int | bool) -> Served:
        made = Served(tmp_path / name, **settings)
        started.append(made)
        return made

    yield start
    for made in started:
        made.process.stop()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A store with its process."""
    return serve()
