"""What a store process says: a line for each event."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import logging, sys
from rmqstore_spark.cli.shared.terminal import configure_logging
configure_logging(sys.argv[1])
log = logging.getLogger("rmqstore_spark.server.x")
log.debug("not said")
log.info("topic %s: %d queues", "a\\n2026 ERROR forged \\x1b[31m\\u202e", 4)
try:
    {}["missing"]
except KeyError:
    log.exception("failed")
logging.getLogger("other").warning("of somebody else")
"""


def said(form: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if line != "of somebody else"]


def test_text_is_a_line_for_each_event() -> None:
    first, second = said("text")
    assert first.endswith(r"Z INFO topic a\n2026 ERROR forged \x1b[31m\u202e: 4 queues")
    assert " ERROR failed" in second
    assert "KeyError" in second


@pytest.mark.parametrize("field", ["time", "level", "logger", "message"])
def test_json_has_the_fields(field: str) -> None:
    assert all(json.loads(line)[field] for line in said("json"))


def test_json_says_the_same() -> None:
    first, second = map(json.loads, said("json"))
    assert first["message"] == "topic a\n2026 ERROR forged \x1b[31m\u202e: 4 queues"
    assert (first["level"], first["logger"]) == ("INFO", "rmqstore_spark.server.x")
    assert (second["level"], second["message"]) == ("ERROR", "failed")
    assert "KeyError" in second["exception"]
