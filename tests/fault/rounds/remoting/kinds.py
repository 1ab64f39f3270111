"""The clients that rounds kill, as far as they are installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.broker.clients.real_client import cpp_command, node_command
from tests.fault.rounds.remoting.cluster import Cluster
from tests.fault.rounds.remoting.consuming import ConsumingLives, OrderlyLives
from tests.fault.rounds.remoting.lives import Lives
from tests.fault.rounds.remoting.transacting import TransactingLives
from tests.rocketmq.processes import RocketMq
from tools.java import find_java

__all__ = ["TRANSACTIONS", "kinds"]

TRANSACTIONS: Final = "transactions"
_PRODUCER: Final = [sys.executable, "-m", "tests.fault.rounds.remoting.producer"]


def kinds() -> dict[str, Callable[[Cluster], Lives]]:
    """What makes the client of a cluster, by the client's name."""
    found: dict[str, Callable[[Cluster], Lives]] = {
        TRANSACTIONS: partial(TransactingLives, command=_PRODUCER)
    }
    if (cpp := cpp_command()) is not None:
        found["C++ client"] = partial(ConsumingLives, command=cpp, refuses=False)
        found["orderly C++ client"] = partial(OrderlyLives, command=cpp)
    if (node := node_command()) is not None:
        found["Node client"] = partial(ConsumingLives, command=node, refuses=True)
    if home := os.environ.get("ROCKETMQ_HOME"):
        found["Java client"] = partial(_java, home, partial(ConsumingLives, refuses=True))
        found["orderly Java client"] = partial(_java, home, OrderlyLives)
        found["transactions of the Java client"] = partial(_java, home, TransactingLives)
    return found


def _java(home: str, kind: Callable[[Cluster, list[str]], Lives], cluster: Cluster) -> Lives:
    rocketmq = RocketMq(Path(home), find_java(), cluster.folder)
    return kind(cluster, rocketmq.application())
