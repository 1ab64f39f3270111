"""docs/namesrv.md has the keys as they are."""

from __future__ import annotations

import re
from pathlib import Path

from rmqstore_spark.namesrv.config import CHANGEABLE, KEYS
from tools.settings import row

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "namesrv.md").read_text(encoding="utf-8")


def test_the_page_has_all_keys() -> None:
    for key in KEYS:
        assert f"\n{row(key)}\n" in PAGE


def test_the_page_says_what_may_be_changed() -> None:
    told = PAGE.partition("`updateNamesrvConfig` changes")[2].partition(" of a running")[0]
    assert set(re.findall(r"`(\w+)`", told)) == CHANGEABLE
