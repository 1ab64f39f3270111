"""The table of request codes."""

from __future__ import annotations

from rmqstore_spark.broker.faces.remoting.table import ROWS
from tools.codes import FEATURES_PAGE, features_page


def test_a_code_has_one_row() -> None:
    codes = [row.code for row in ROWS]
    assert len(codes) == len(set(codes))


def test_the_page_has_the_table() -> None:
    hint = "run `python -m tools.docs`"
    assert FEATURES_PAGE.read_text(encoding="utf-8") == features_page(), hint
