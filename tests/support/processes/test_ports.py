"""Ports that are given to tests are given to no others."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.support.processes.ports import free_port

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
