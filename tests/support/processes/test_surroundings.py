"""The suite does not depend on who started it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from rmqstore_spark.cli.shared.terminal import configure_logging
from tests.support.processes.surroundings import log_restored

ROOT = Path(__file__).resolve().parents[3]

TELL = """
import json, os, signal
signals = [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT]
ignored = [number.name for number in signals if signal.getsignal(number) == signal.SIG_IGN]
settings = [name for name in os.environ if name.startswith(("RMQSTORE_", "PYTHONDONT"))]
print(json.dumps([ignored, sorted(signal.pthread_sigmask(0, ())), os.umask(0), settings]))
"""
SETTLED = f"""
import subprocess, sys
from tests.support.processes.surroundings import settle_surroundings
settle_surroundings()
subprocess.run([sys.executable, "-c", {TELL!r}], check=True)
"""
STARTED_BADLY = f"""
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.umask(0o077)
os.execv(sys.executable, [sys.executable, "-c", {SETTLED!r}])
"""


def test_children_start_as_from_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED_BADLY], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "RMQSTORE_LISTEN_PORT": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "RMQSTORE_KERNEL": "plain"},
    )  # fmt: skip
    assert json.loads(done.stdout) == [[], [], 0o022, ["RMQSTORE_KERNEL"]]


def test_this_process_is_settled() -> None:
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_the_log_of_a_command_ends_with_it() -> None:
    log = logging.getLogger("rmqstore_spark")
    before = (log.handlers[:], log.propagate, log.level)
    with log_restored():
        configure_logging("text")
        assert (log.handlers[:], log.propagate, log.level) != before
    assert (log.handlers[:], log.propagate, log.level) == before
