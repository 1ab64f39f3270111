"""Slaves in processes of their own: followers, and ones that throw away what they are sent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from benchmarks.means.child import ROOT
from rmqstore_spark.ha.frames import HEADER_SIZE, MOST_FRAME_BYTES, decode_header, encode_report
from rmqstore_spark.ha.master import Master

__all__ = ["cpu_seconds", "following", "taking"]

_ONLY_COUNT: Final = socket.MSG_WAITALL | socket.MSG_TRUNC


@contextmanager
def following(master: Master, path: Path, *settings: str) -> Iterator[psutil.Popen]:
    """Run a follower with a store at a path; it writes, checks and dispatches what it is sent."""
    module = "rmqstore_spark.cli"
    with _running(module, "follow", master.address, str(path), *settings) as process:
        yield process


@contextmanager
def taking(master: Master) -> Iterator[psutil.Popen]:
    """Run a slave that reports what it is sent, and does not even copy it out of the socket."""
    with _running("benchmarks.network.slaves", master.address) as process:
        yield process


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that all threads of a process have used."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _running(module: str, *arguments: str) -> Iterator[psutil.Popen]:
    command = [sys.executable, "-m", module, *arguments]
    null = subprocess.DEVNULL
    with psutil.Popen(command, cwd=ROOT, stdout=null, stderr=null) as process:
        try:
            yield process
        finally:
            process.terminate()


def _take(address: str) -> None:
    host, _, port = address.rpartition(":")
    ignored = bytearray(MOST_FRAME_BYTES)  # nothing is written to it, so it takes no memory
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(encode_report(1))
        while len(header := connection.recv(HEADER_SIZE, socket.MSG_WAITALL)) == HEADER_SIZE:
            offset, left = decode_header(header)
            end = offset + left
            while left:
                left -= connection.recv_into(ignored, left, _ONLY_COUNT)
            connection.sendall(encode_report(end))


if __name__ == "__main__":
    _take(sys.argv[1])
