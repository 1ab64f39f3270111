"""The tutorials work: each prints what it shows, in a fresh folder."""

from __future__ import annotations

from pathlib import Path

from tests.pipelines.processes import ROOT
from tests.tutorials.following import follow

PAGES = ROOT / "docs" / "tutorials"


def test_investigate(tmp_path: Path) -> None:
    follow(PAGES / "investigate.md", tmp_path)
