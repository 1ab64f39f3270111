"""Completion in bash after `rmqstore --install-completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import PATIENCE, ROOT

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")

# What readline does at the Tab key: it sets these and calls the function that `complete` names.
COMPLETE = """
    COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
    $(complete -p rmqstore | sed 's/.*-F \\([^ ]*\\) .*/\\1/') rmqstore
    printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory, with `rmqstore` as an installation puts it on the path."""
    command = tmp_path / "bin" / "rmqstore"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqstore_spark.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def bash(home: Path, script: str, *options: str) -> list[str]:
    """Run a script in bash; returns the lines that it prints."""
    env = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", *options, "-c", f"{script}\n:"],  # `:` keeps bash there
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rmqstore st", {"stats", "stop"}),
        ("rmqstore --acl", {"--acl-file"}),
        ("rmqstore stats --t", {"--tls-ca", "--tls-cert", "--tls-key"}),
        ("rmqstore verify --nothing", set()),
    ],
)
def test_completion_that_is_shown(home: Path, words: str, offered: set[str]) -> None:
    script = 'eval "$(rmqstore --show-completion)"' + COMPLETE.format(words=words)
    assert {line for line in bash(home, script) if line} == offered


def test_completion_that_is_installed(home: Path) -> None:
    (installed, *_rest) = bash(home, "rmqstore --install-completion")
    assert str(home) in installed
    script = "source ~/.bashrc" + COMPLETE.format(words="rmqstore create")
    assert bash(home, script) == ["create-topic"]
