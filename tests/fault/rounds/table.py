"""The table of rounds: what is killed or broken, on what, and which promises must hold then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.broker.clients.real_client import cpp_command, node_command
from tests.fault.power import why_no_loop_mounts
from tests.fault.rounds.delays import ClockBackAccount, DelayAccount
from tests.fault.rounds.disk import FullDisk
from tests.fault.rounds.driver import Row
from tests.fault.rounds.expiry import ExpiryAccount
from tests.fault.rounds.groups.rounds import GroupRounds
from tests.fault.rounds.lives import (
    CALLS,
    COUNTS,
    EIO,
    AtACall,
    AtAPlace,
    Lives,
    WriterAccount,
)
from tests.fault.rounds.lost_end import LostEnds
from tests.fault.rounds.remoting.clients import KilledClients
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.consuming import ConsumingLives, OrderlyLives
from tests.fault.rounds.remoting.lives import ClientLives
from tests.fault.rounds.remoting.plain import Application
from tests.fault.rounds.remoting.transacting import TransactingLives
from tests.fault.rounds.replication import Replication
from tests.fault.rounds.served import CutConnections, KilledUnderClients, LostAnswers
from tests.fault.rounds.simulated import SimulatedCrashes
from tests.fault.rounds.transactions import TransactionAccount
from tests.fault.traces import why_no_strace
from tests.rocketmq.processes import RocketMq
from tools.java import find_java

_FLUSHES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")
_OFTEN: Final = ("flushIntervalCommitLog=50",)
"""Under ASYNC_FLUSH: many flushes in a life."""
_STAGES: Final = {
    "in memory": "stagingMemoryBytes=400000000",
    "in files": "stagingMemoryBytes=2000",
}
"""All that clients stage stays in memory; hardly any of it does."""
_ACCOUNTS: Final = {
    "transactions": (TransactionAccount, "3 11"),
    "delayed messages": (DelayAccount, "3 10"),
    "delayed messages and a clock that goes back": (ClockBackAccount, "3 10"),
}
_PRODUCER: Final = [sys.executable, "-m", "tests.fault.rounds.remoting.producer"]


def _needs_root() -> str:
    return "mounting a tmpfs needs root" if os.geteuid() else ""


def power_cut(flush: str, mutant: str = "", commits: float = 0.3) -> Row:
    """The power of a writer's disk is cut."""
    scene = partial(
        Lives, account=partial(WriterAccount, commits), flush=flush, is_power_cut=True,
        settings=_OFTEN, mutant=mutant,
    )  # fmt: skip
    return Row(
        f"power cut at random, {flush}", scene, "1 2 3", share=2, tested=4,
        lacks=why_no_loop_mounts,
    )  # fmt: skip


def simulated(flush: str) -> Row:
    """The power of a simulated disk is cut under a writer."""
    return Row(
        f"simulated disk, power cut at any call, {flush}", partial(SimulatedCrashes, flush=flush),
        "1 2 3 9", on_one=100, tested=200,
    )  # fmt: skip


def killed_at(call: str, step: int) -> Row:
    """A writer is killed at the k-th call of the kernel."""
    return Row(
        f"killed at the k-th {call}, for every k", partial(AtACall, call=call), "1 2 3",
        on_one=1, share=0, tested=step, lacks=why_no_strace,
    )  # fmt: skip


def _clients() -> Iterator[tuple[str, bool, Callable[[Cluster], ClientLives]]]:
    """RocketMQ's clients that are installed: name, whether tests kill it, what makes it."""
    yield "transactions", True, partial(TransactingLives, command=_PRODUCER)
    if (cpp := cpp_command()) is not None:
        yield "C++ client", True, partial(ConsumingLives, command=cpp, refuses=False)
        yield "orderly C++ client", False, partial(OrderlyLives, command=cpp)
    if (node := node_command()) is not None:
        yield "Node client", False, partial(ConsumingLives, command=node, refuses=True)
    if home := os.environ.get("ROCKETMQ_HOME"):
        for name, kind in (
            ("Java client", partial(ConsumingLives, refuses=True)),
            ("orderly Java client", OrderlyLives),
            ("transactions of the Java client", TransactingLives),
        ):
            yield name, False, partial(_java, home, kind)


def _java(home: str, kind: Callable[[Cluster, list[str]], ClientLives], on: Cluster) -> ClientLives:
    return kind(on, RocketMq(Path(home), find_java(), on.folder).application())


def _groups() -> Iterator[Row]:
    """Groups of three: of ours, and with one or two brokers of RocketMQ if it is there."""
    for ours, name in (
        (("n0", "n1", "n2"), "three of ours"),
        (("n1", "n2"), "two of ours, one of RocketMQ's"),
        (("n2",), "one of ours, two of RocketMQ's"),
    ):
        if len(ours) == 3 or os.environ.get("ROCKETMQ_HOME"):
            yield Row(
                f"members of a group killed, stopped or cut off: {name}",
                partial(GroupRounds, ours=ours), "1 2 3", tested=3, is_slow=True,
            )  # fmt: skip
    yield Row(
        "power of all members of a group cut: three of ours",
        partial(GroupRounds, ours=("n0", "n1", "n2"), loses_power=True), "1 2 3", tested=2,
        is_slow=True, lacks=why_no_loop_mounts,
    )  # fmt: skip


AT_PLACES: Final = Row("killed at each named place", AtAPlace, "1 2 3", on_one=len(COUNTS), share=0)

ROWS: Final[tuple[Row, ...]] = (
    *(
        Row(f"killed at random, {flush}", partial(Lives, account=WriterAccount, flush=flush),
            "1 2 3", tested=6)
        for flush in _FLUSHES
    ),
    AT_PLACES,
    *map(power_cut, _FLUSHES),
    *map(simulated, _FLUSHES),
    Row("the end of the log damaged in each form, after a kill or a clean close", LostEnds,
        "1 3 4", on_one=10, tested=12),
    *(
        Row(f"store process killed under a client, {flush}",
            partial(KilledUnderClients, setting=f"flushDiskType={flush}"), "1 2", tested=3)
        for flush in _FLUSHES
    ),
    Row("master, follower or both killed under a client", Replication,
        "1 2 3", tested=3, is_slow=True),
    Row("the same, and the master's segments go to an archive and expire",
        partial(Replication, expires=True), "1 2 3 9", tested=3, is_slow=True),
    *_groups(),
    Row("answers to commits and puts lost", LostAnswers, "1 2", tested=5),
    Row("connections cut after any number of bytes", CutConnections, "1 2", tested=8),
    Row("disk full at any fill level", FullDisk, "6",
        on_one=1, share=2, tested=4, lacks=_needs_root),
    *(
        Row(f"store process killed under several clients, stages {where}",
            partial(KilledUnderClients, setting=setting, clients=3), "2 3", share=2, tested=2)
        for where, setting in _STAGES.items()
    ),
    *(
        Row(f"{what}, killed at random and at named places", partial(Lives, account=account),
            promises, tested=2)
        for what, (account, promises) in _ACCOUNTS.items()
    ),
    Row("expiry beside a reader, killed at random and at named places",
        partial(Lives, account=ExpiryAccount), "1 3 9", tested=2),
    *(
        Row(f"{what}, power cut",
            partial(Lives, account=account, flush="SYNC_FLUSH", is_power_cut=True),
            promises, share=4, lacks=why_no_loop_mounts)
        for what, (account, promises) in _ACCOUNTS.items()
    ),
    Row("broker, name server or application killed, RocketMQ's protocol",
        partial(KilledClients, make=Application), "1 3", tested=2),
    *(
        Row(f"{client}, broker or name server killed in each phase",
            partial(KilledClients, make=make), "1 3 11",
            share=4, tested=2 * is_tested, is_slow=True)
        for client, is_tested, make in _clients()
    ),
    *map(killed_at, CALLS, (8, 13, 29, 9, 6)),
    *(
        Row(f"the k-th {call} fails, for every k", partial(AtACall, call=call, fault=EIO),
            "1 2 3 5", on_one=1, share=0, lacks=why_no_strace)
        for call in CALLS
    ),
)  # fmt: skip
