"""Memory that a task frees is there for what it allocates next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """\
import resource

from rmqstore_spark.datasource.sink.memory import keep_freed_memory

if {kept}:
    keep_freed_memory()


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


for _ in range(3):
    bytearray(48 << 20)
before = faults()
for _ in range(10):
    bytearray(48 << 20)
print(faults() - before)
"""


def faults_of_ten_blocks(*, kept: bool) -> int:
    """Pages that a process takes from the system for ten blocks, one after the other."""
    command = [sys.executable, "-c", FAULTS.format(kept=kept)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep it")
def test_a_large_block_gets_the_pages_of_the_one_before() -> None:
    pages = 48 << 20 >> 12
    assert faults_of_ten_blocks(kept=True) < pages
    assert faults_of_ten_blocks(kept=False) >= 10 * pages
