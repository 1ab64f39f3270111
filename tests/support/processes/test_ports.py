"""Ports that are given to tests are given to no others."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.processes.ports import CONNECT_PORT, free_port, holding
from tests.support.waiting import PATIENCE, eventually

PROGRAM = """
from tests.support.processes.ports import free_port
print(*(free_port(around=(1,)) for _ in range(60)), flush=True)
input()
"""


def test_no_two_processes_get_the_same() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    given = [free_port(around=(1,)) for _ in range(60)]
    for other in others:
        assert other.stdout is not None
        given += map(int, other.stdout.readline().split())
    for other in others:
        other.communicate(b"\n")
    assert len(given) == 300
    around = [port + distance for port in given for distance in (-2, -1, 0, 1)]
    assert len(around) == len(set(around))


def test_one_that_is_in_use_is_not_given() -> None:
    first = free_port()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", first + 1))
        assert free_port() != first + 1


def test_a_port_that_cannot_be_chosen_is_held_by_one_process_at_a_time() -> None:
    program = """
from tests.support.processes.ports import CONNECT_PORT, holding
with holding(CONNECT_PORT):
    print("holds")
"""
    with holding(CONNECT_PORT):
        other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        eventually(lambda: _waits_for_a_lock(other.pid))
    said, _ = other.communicate(timeout=PATIENCE)
    assert said == "holds\n"


def _waits_for_a_lock(pid: int) -> bool:
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(line[1:3] == ["->", "FLOCK"] and line[5] == str(pid) for line in lines)
