"""docs/cli.md knows every command and every option."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from rmqstore_spark.cli.app import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_page_knows_all_options() -> None:
    described = set(re.findall(r"--[a-z][a-z-]*", PAGE))
    known = {"--help"}
    root = typer.main.get_command(app)
    commands = root.commands  # type: ignore[attr-defined]
    for name in commands:
        assert f"\n## {name}\n" in PAGE
    for command in (root, *commands.values()):
        known |= {opt for param in command.params for opt in param.opts if opt.startswith("--")}
    assert described == known


def test_commands_say_what_they_do_in_a_line() -> None:
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        first = command.help.split("\n\n")[0].strip()
        assert len(first) <= 60
        assert first.endswith(".")
