"""Attacks by plain clients on the ports of RocketMQ's protocol, a part of each.

`python -m tests.fault.port_attacks` does all of each, and prints the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.port_attacks import (
    MOST_AFTER,
    MOST_DURING,
    PORT_ATTACKS,
    PortOutcome,
    Ports,
    attack_ports,
    half_small_sends,
    serving,
    unread_pulls,
)

pytestmark = pytest.mark.fault

SCALE = 0.2


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("how", PORT_ATTACKS, ids=lambda how: how.__name__)
def test_an_attack_takes_little_memory_and_keeps_nobody_out(
    tmp_path: Path, how: Callable[[Ports], None]
) -> None:
    with serving(tmp_path, SCALE) as ports:
        require_harmless(attack_ports(how, ports))


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("how", [half_small_sends, unread_pulls], ids=lambda how: how.__name__)
def test_tls_takes_little_more(tmp_path: Path, how: Callable[[Ports], None]) -> None:
    with serving(tmp_path, SCALE, tls=True) as ports:
        require_harmless(attack_ports(how, ports))


def require_harmless(found: PortOutcome) -> None:
    assert found.peak < MOST_DURING
    assert found.after < MOST_AFTER
    assert found.asked > 10 * len(found.failed)  # on a machine that is busy with others
