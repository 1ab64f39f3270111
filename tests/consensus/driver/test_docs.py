"""docs/dledger.md has the keys as they are."""

from __future__ import annotations

from pathlib import Path

from rmqstore_spark.server.member.config import KEYS
from tools.settings import row

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "dledger.md").read_text(encoding="utf-8")


def test_the_page_has_all_keys() -> None:
    for key in KEYS:
        assert f"\n{row(key)}\n" in PAGE
