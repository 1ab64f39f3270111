"""Three members of RocketMQ lose their power at the same moment, and acknowledged messages.

These were in the page cache. `tests.fault` does the same to three of ours.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import message
from tests.fault.power import PoweredDisk, why_no_loop_mounts
from tests.fault.rounds.groups.rounds import body_of
from tests.rocketmq.groups import Group
from tests.rocketmq.processes import RocketMq

CUTS = 5
CLIENTS = 16
MESSAGES = 2000


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts())
def test_a_group_of_rocketmq_alone_loses_what_it_has_acknowledged(
    rocketmq: RocketMq, name_server: str, tmp_path: Path
) -> None:
    assert any(
        lost_by_a_power_cut(rocketmq, name_server, tmp_path / str(cut)) for cut in range(CUTS)
    )


def lost_by_a_power_cut(rocketmq: RocketMq, name_server: str, folder: Path) -> list[str]:
    """Send to a group until its power is cut; return what was acknowledged and no member has."""
    folder.mkdir()
    with ExitStack() as ends:
        disk = ends.enter_context(PoweredDisk(folder, 1 << 30))
        group = Group(rocketmq, name_server, disk.path, ())
        ends.callback(group.close)
        group.send(["first"])
        leader = group.leading(group.theirs)

        def cut() -> None:
            for me in sorted(group.members, key=lambda me: me != leader):
                group.signal(me, signal.SIGSTOP)
            disk.lose_power()

        acknowledged = asyncio.run(sent(f"127.0.0.1:{group.ports[leader]}", cut))
        group.close()
        disk.start_again()
        kept = {body_of(entry) for me in group.members for entry in group.entries(me)}
    return [text for text in acknowledged if text not in kept]


async def sent(address: str, cut: Callable[[], None]) -> list[str]:
    """Send messages, and cut the power between two answers; return what was acknowledged."""
    acknowledged: list[str] = []
    is_over = False

    async def send(number: int) -> None:
        nonlocal is_over
        async with RemotingClient(address) as client:
            while not is_over:
                text = f"message {number} {len(acknowledged)}"
                answer = await client.ask(message(text.encode()))
                if answer.code != ResponseCode.SUCCESS or is_over:
                    continue
                acknowledged.append(text)
                if len(acknowledged) == MESSAGES:
                    is_over = True
                    cut()

    await asyncio.gather(*map(send, range(CLIENTS)), return_exceptions=True)
    return acknowledged
