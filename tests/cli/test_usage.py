"""Mistakes in the command's arguments are reported in two lines."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Rmqstore


@pytest.mark.parametrize(
    ("words", "error", "command"),
    [
        (["read", "x", "--jsn"], "No such option: --jsn. Did you mean --json?", "rmqstore read"),
        (["read", "x", "--zzz"], "No such option: --zzz", "rmqstore read"),
        (["red", "x"], "No such command 'red'. Did you mean 'read'?", "rmqstore"),
        (["info"], "Missing argument 'STORE'.", "rmqstore info"),
        (["put", "--queu", "1", "x"], "No such option: --queu. Did you mean --queue?",
         "rmqstore put"),
        (["info", "x", "\x1b[1m"], r"Got unexpected extra argument(s) (\x1b[1m)", "rmqstore info"),
    ],
)  # fmt: skip
def test_mistakes(words: list[str], error: str, command: str, rmqstore: Rmqstore) -> None:
    ended = rmqstore(*words, code=2)
    assert ended.text == ""
    assert ended.stderr.splitlines() == [f"rmqstore: {error}", f"Try '{command} --help'."]


def test_without_arguments_it_shows_its_help(rmqstore: Rmqstore) -> None:
    assert "Usage: rmqstore" in rmqstore(code=2).stderr
