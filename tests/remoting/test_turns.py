"""Who has its turn when many connections have requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmqstore_spark.remoting.turns import Turns


class Source:
    """A connection whose requests never end."""

    is_ready = True

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.next_size = size

    def take(self, most: int) -> Sequence[str]:
        return [self.name] * min(most, 1)

    def flush(self) -> None:
        pass


class Taker:
    """Notes what it gets."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    def requests(self, requests: Sequence[str]) -> None:
        self.groups.append(list(requests))


def test_a_large_request_has_its_turn_however_many_others_have_small_ones() -> None:
    async def test() -> None:
        taker = Taker()
        turns: Turns[str] = Turns(taker, 8)
        sources = [Source(f"small-{number}", 200) for number in range(20)]
        sources.insert(5, Source("large", 256 << 10))
        for source in sources:
            turns.ready(source)
        for _ in range(9):
            turns.take()
        met = [name for group in taker.groups for name in group]
        assert {met.count(source.name) for source in sources} <= {3, 4}
        (first,) = [group for group in taker.groups[:3] if "large" in group]
        assert first[-1] == "large"  # those with it do not wait for it

    asyncio.run(test())
