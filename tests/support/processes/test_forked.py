"""A fork is what a process would be that a user starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.processes.forked import Forked, is_stopped, run, start
from tests.support.waiting import eventually

TELL = """
    import os, sys
    from rmqstore_spark.engine import failpoints
    print(sys.argv[1:], os.getcwd(), os.environ["TOLD"], os.getsid(0) == os.getpid(), __name__)
    print(sys.stdin.read(), file=sys.stderr)
    failpoints.reach("put.before_write")
    print("is here", flush=True)
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program), *arguments]


def told(**more: str) -> dict[str, str]:
    return {**os.environ, "TOLD": "something", **more}


def test_it_has_what_it_was_given(tmp_path: Path) -> None:
    done = run(python(TELL, "a", "b"), input="given", cwd=tmp_path, env=told())
    assert done.stdout.splitlines() == [
        f"['a', 'b'] {tmp_path} something True __main__",
        "is here",
    ]
    assert (done.stderr, done.returncode) == ("given\n", 0)


def test_it_is_killed_where_it_was_told(tmp_path: Path) -> None:
    failpoint = told(RMQSTORE_FAILPOINT="put.before_write")
    done = run(python(TELL), cwd=tmp_path, env=failpoint)
    assert done.returncode == -signal.SIGKILL
    assert "is here" not in done.stdout
    stopping = told(RMQSTORE_FAILPOINT="put.before_write:1:stop")
    stopped = start(python(TELL), env=stopping, stdout=subprocess.PIPE)
    eventually(lambda: is_stopped(stopped.pid))
    assert stopped.poll() is None
    stopped.send_signal(signal.SIGCONT)
    assert stopped.communicate()[0].endswith(b"is here\n")
    assert stopped.wait() == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('said')", 1),
        ("1 / 0", 1),
        ("import atexit; atexit.register(print, 'at the end')", 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_any_python(program: str, code: int) -> None:
    mine = run(python(program))
    theirs = subprocess.run(python(program), capture_output=True, text=True, check=False)
    assert (mine.returncode, mine.stdout) == (theirs.returncode, theirs.stdout)
    assert mine.returncode == code
    assert mine.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]


def test_a_module_is_run_as_the_program() -> None:
    command = [sys.executable, "-m", "rmqstore_spark.cli", "--help"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run(command).stdout == theirs.stdout


def test_who_waits_in_vain_can_go_on_waiting() -> None:
    process = start(python("print('begun', flush=True); input()"), stdout=subprocess.PIPE,
                    stdin=subprocess.PIPE)  # fmt: skip
    if isinstance(process, Forked):
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.communicate()
