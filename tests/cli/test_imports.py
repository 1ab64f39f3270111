"""What a command puts off: `pyarrow.compute`, made once whichever thread uses it first; `rich`."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import Golden
from tests.cli.processes import PATIENCE, modules_of

_MADE_BY = "pyarrow.vendored.docscrape"
"""What pyarrow reads the functions' documentation with when it makes them."""

_THREADS = """
import sys, threading
from rmqstore_spark.cli.imports import spare_slow_imports
spare_slow_imports()
import pyarrow as pa, pyarrow.compute as pc
assert "MADE_BY" not in sys.modules
start = threading.Barrier(16)
found = []
def use():
    start.wait()
    found.append(pc.sum(pa.array([1, 2])).as_py() + pc.max(pa.array([3])).as_py())
threads = [threading.Thread(target=use) for _ in range(16)]
for each in threads: each.start()
for each in threads: each.join()
assert found == [6] * 16, found
assert "MADE_BY" in sys.modules
assert not hasattr(pc, "no_such_function")
assert isinstance(pc.field("a") == 1, pc.Expression)
""".replace("MADE_BY", _MADE_BY)


def test_many_threads_use_functions_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert not done.stderr
    assert done.returncode == 0


def test_commands_without_a_use_for_functions_do_not_make_them(golden: Golden) -> None:
    store = golden("tiny") / "store"
    for command in (("topics",), ("info",), ("read", "--limit", "1")):
        _, modules = modules_of(command[0], store, *command[1:])
        assert "pyarrow.lib" in modules
        assert _MADE_BY not in modules, command
    _, modules = modules_of("query", store, "--key", "k0")
    assert _MADE_BY in modules


def test_only_terminals_and_letters_of_any_width_need_rich(golden: Golden) -> None:
    for command in (("topics",), ("topics", "--queues"), ("info",)):
        printed, modules = modules_of(command[0], golden("tiny") / "store", *command[1:])
        assert printed
        assert "rich" not in modules, command
    _, modules = modules_of("read", golden("tiny") / "store", "--limit", "1")
    assert "rich" in modules
