"""A slave becomes the master while its process runs, and a master a slave; processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.errors import RefusedError
from tests.cli.processes import run
from tests.ha.pairs import bodies_of, members

pytestmark = pytest.mark.slow


def test_a_slave_whose_master_was_killed_is_promoted_and_stays_the_master(tmp_path: Path) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1", b"2") == "PUT_OK"
        end = slave.has_caught_up(master)
        done = run("promote", slave.endpoint)
        assert done.returncode == 2
        assert "is connected" in done.stderr
        with pytest.raises(RefusedError, match="is a slave"):
            slave.put(b"not yet")
        master.kill()
        slave.is_alone()
        done = run("promote", slave.endpoint)
        assert done.returncode == 0, done.stderr
        assert f"its log continues at physical offset {end}\n" in done.stdout
        assert f"slaves can follow {slave.address}\n" in done.stdout
        assert slave.put(b"3") == "PUT_OK"

        done = run("promote", slave.endpoint)
        assert done.returncode == 2
        assert "is a master already (ASYNC_MASTER)" in done.stderr

        slave.kill()
        slave.start()  # its configuration still says SLAVE
        assert slave.stats()["state"] == "RUNNING"
        assert "as `rmqstore promote` made it" in slave.process.output
        assert slave.put(b"4") == "PUT_OK"
        assert bodies_of(slave.endpoint) == [b"1", b"2", b"3", b"4"]
