"""The tutorials work: each prints what it shows, in a fresh folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pipelines.processes import ROOT
from tests.tutorials.following import follow

PAGES = ROOT / "docs" / "tutorials"


@pytest.mark.slow
@pytest.mark.fault
def test_lake(tmp_path: Path) -> None:
    """Promise 3: the stream is killed, and the table has each message once."""
    follow(PAGES / "lake.md", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("rocketmq") is None, reason="no C++ client for this platform")
def test_consumers(tmp_path: Path) -> None:
    follow(PAGES / "consumers.md", tmp_path)


@pytest.mark.slow
@pytest.mark.fault
def test_production(tmp_path: Path) -> None:
    follow(PAGES / "production.md", tmp_path)


@pytest.mark.slow
@pytest.mark.fault
def test_pair(tmp_path: Path) -> None:
    """A master is killed in the middle of a stream, and the copy has each number once."""
    follow(PAGES / "pair.md", tmp_path)


def test_investigate(tmp_path: Path) -> None:
    follow(PAGES / "investigate.md", tmp_path)
