"""Attacks by plain clients, and crowds of honest ones, a part of each: promise 8.

`python -m tests.fault.attacks` does all of each, and prints the figures. How few writes and notices
a crowd takes is in tests/broker/test_gathering.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.attacks.driver import MOST_AFTER, MOST_DURING, attacked, run
from tests.fault.attacks.table import ATTACKS, Row

pytestmark = pytest.mark.fault

SCALE = 0.2
SECONDS = 1.5
BUSY = {"OS_PAGECACHE_BUSY"}
"""What a store tells on a machine that is busy with others."""
ROWS = {row.name: row for row in ATTACKS}
OTHER_WAYS = [
    *[("without_a_login", "tls"), ("stages_of_32", "tls"), ("stages_of_32", "socket")],
    *[(name, "tls") for name in ("half_small_sends", "unread_pulls")],
]


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: row.name)
def test_an_attack_takes_little_memory_and_keeps_nobody_out(tmp_path: Path, row: Row) -> None:
    require_harmless(tmp_path, row, "tcp", row.told)


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize(("name", "how"), OTHER_WAYS)
def test_another_way_in_is_no_wider(tmp_path: Path, name: str, how: str) -> None:
    # Over TLS, a stranger that sends on may not see why.
    assert "accepted" not in require_harmless(tmp_path, ROWS[name], how, "")


def require_harmless(folder: Path, row: Row, how: str, told: str) -> str:
    with attacked(folder, row.on, SCALE, how, SECONDS) as target:
        found = run(row.does, target)
    assert found.peak < MOST_DURING
    assert found.after < MOST_AFTER
    assert found.told.startswith(told), found.told
    if row.on == "broker":  # nobody is an enemy
        assert not found.failed
        assert found.asked > 1
    elif row.on == "ports":
        assert found.asked > 10 * len(found.failed), found.failed
    else:
        assert found.asked > 2 * len(found.failed)
        assert set(found.failed) <= BUSY
    return found.told
