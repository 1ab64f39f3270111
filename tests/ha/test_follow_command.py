"""`rmqstore follow`, as a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from rmqstore_spark.client import StoreClient
from rmqstore_spark.reader import Store
from tests.cli.processes import ROOT, run
from tests.ha.peers import log_bytes, mastering, queue_files
from tests.support.certificates import make_certificates
from tests.support.messages.batches import rows_block
from tests.support.waiting import PATIENCE, eventually

SMALL = (
    "--set=mappedFileSizeCommitLog=8192", "--set=mappedFileSizeConsumeQueue=600",
    "--set=maxHashSlotNum=500", "--set=maxIndexNum=2000",
)  # fmt: skip


def test_it_copies_refuses_a_fork_and_begins_anew(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with mastering(tmp_path / "one") as (source, master):
        source.put(rows_block([b"one%d" % n for n in range(100)]))
        done = run("follow", master.address, store, "--until-caught-up", *SMALL)
        assert done.returncode == 0, done.stderr
        assert "nothing missing" in done.stderr
        end = source.published_end
    log = log_bytes(tmp_path / "one", 0, end)
    assert log_bytes(store, 0, end) == log
    assert queue_files(store) == queue_files(tmp_path / "one")

    with mastering(tmp_path / "two") as (source, master):
        source.put(rows_block([b"two%d" % n for n in range(300)]))
        done = run("follow", master.address, store, *SMALL)
        assert done.returncode == 1
        assert "master's log differs at physical offset" in done.stderr
        assert "--restart-from earliest" in done.stderr
        assert log_bytes(store, 0, end) == log

        again = ("--restart-from", "earliest", "--until-caught-up")
        done = run("follow", master.address, store, *again, *SMALL)
        assert done.returncode == 0, done.stderr
        other_end = source.published_end
    assert log_bytes(store, 0, other_end) == log_bytes(tmp_path / "two", 0, other_end)
    (aside,) = (store / "rmqstore" / "aside").iterdir()
    assert str(aside) in done.stderr
    assert log_bytes(aside, 0, end) == log
    assert queue_files(aside) == queue_files(tmp_path / "one")
    done = run("verify", store)
    assert done.returncode == 0, done.stdout


def test_it_runs_over_tls_until_it_is_stopped_and_serves_readers(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    given = make_certificates(tmp_path / "tls")
    files = {"tls_server_cert_path": given.server_cert, "tls_server_key_path": given.server_key}
    with mastering(tmp_path / "one", ha_tls_enable=True, **files) as (source, master):
        source.put(rows_block([b"one"], ("orders",)))
        command = ["follow", master.address, str(tmp_path / "store"), "--ready-file", str(ready)]
        command += ["--tls-ca", given.ca]
        process = subprocess.Popen(
            [sys.executable, "-m", "rmqstore_spark.cli", *command, *SMALL],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        try:
            eventually(ready.exists, 120)
            endpoint = json.loads(ready.read_text())["endpoint"]
            source.put(rows_block([b"two"], ("orders",)))

            def served() -> int:
                with Store.open(endpoint) as copy:
                    return sum(queue.max_offset for queue in copy.queues(["orders"]))

            eventually(lambda: (tmp_path / "store/consumequeue/orders").exists())
            eventually(lambda: served() == 2)
            with StoreClient(endpoint) as client:
                eventually(lambda: client.stats()["replicationComplete"])
            shown = run("stats", endpoint).stdout
            assert re.search(r"\nreplication +FOLLOWING, nothing missing\n", shown), shown
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.communicate()


def test_a_master_that_is_no_address_is_told(tmp_path: Path) -> None:
    done = run("follow", "broker-1", tmp_path / "store")
    assert done.returncode == 2
    assert "host:port" in done.stderr
    assert not (tmp_path / "store").exists()
