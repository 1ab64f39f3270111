"""Bodies of megabytes: the command prints them as they are, in bounded memory."""

from __future__ import annotations

import base64
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from rmqstore_spark.engine import StoreConfig, StoreWriter
from tests.cli.conftest import Rmqstore
from tests.cli.processes import ROOT

MIB = 1 << 20
# One character of four bytes makes a Python string take four bytes for each of its characters.
LONG_TEXT = b"a" * (64 * MIB - 4) + "\U0001f600".encode()
BOUND = 400 * MIB
# The kernel's own figure for a child that has ended counts what its parent had when it forked.
MEASURED = """
import atexit, runpy, sys
atexit.register(lambda: print(open("/proc/self/status").read(), file=sys.stderr))
runpy.run_module("rmqstore_spark.cli", run_name="__main__")
"""


def write(path: Path, bodies: list[bytes], flags: list[int]) -> Path:
    rows = {
        "topic": pa.array(["T"] * len(bodies)),
        "body": pa.array(bodies, pa.binary()),
        "properties": pa.array([b"KEYS\x01k\x02"] * len(bodies), pa.binary()),
        "sysFlag": pa.array(flags, pa.int32()),
    }
    with StoreWriter.open(path, StoreConfig(mapped_file_size_commit_log=16 * MIB)) as store:
        batch = pa.RecordBatch.from_pydict(rows)
        for row in range(len(bodies)):  # a block that unpacks to more is refused
            assert store.put_batch(batch.slice(row, 1)).ok
    return path


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eight small bodies that unpack to 64 MiB each: text and binary."""
    packed = [zlib.compress(LONG_TEXT), zstandard.compress(bytes(64 * MIB))]
    return write(tmp_path_factory.mktemp("bombs") / "store", packed * 4, [0x301, 0x201] * 4)


@pytest.mark.threat("Compressed bodies are bounded")
@pytest.mark.parametrize(
    "command",
    [
        ["read", "--limit", "0"],
        ["read", "--raw"],
        ["read", "--json"],
        ["read", "--scan", "--json", "--columns", "body"],
        ["tail", "--limit", "8", "--raw"],
        ["query", "--key", "k"],
        ["query", "--from", "2020-01-01", "--raw"],
        ["verify"],
    ],
    ids=" ".join,
)
def test_memory_is_bounded(bombs: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command, str(bombs)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.partition("VmHWM:")[2].split()[0]) << 10 < BOUND


def test_large_bodies_are_printed_as_they_are(tmp_path: Path, rmqstore: Rmqstore) -> None:
    text = "x" + "\u00e9\U0001f600\n" * 400_000  # pieces of 1 MiB end within characters
    binary = bytes(range(256)) * 10_000
    packed = [zlib.compress(text.encode()), zlib.compress(binary), b"small"]
    store = write(tmp_path / "store", packed, [0x301, 0x301, 0])
    first, second, third = rmqstore("read", store, "--json").messages
    assert (first["body"], first["bodyEncoding"]) == (text, "utf-8")
    assert (base64.b64decode(second["body"]), second["bodyEncoding"]) == (binary, "base64")
    assert (third["body"], third["bodyEncoding"], third["topic"]) == ("small", "utf-8", "T")
    assert rmqstore("read", store, "--raw").stdout == text.encode() + binary + b"small"
    assert [list(m) for m in rmqstore("read", store, "--json", "-c", "body").messages] == [
        ["body", "bodyEncoding"]
    ] * 3
