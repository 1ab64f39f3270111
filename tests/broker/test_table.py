"""The table of request codes."""

from __future__ import annotations

from rmqstore_spark.broker.faces.remoting.table import ROWS
from rmqstore_spark.server.table import ROWS as CLIENT_ROWS
from rmqstore_spark.wire.protocol import Code
from tools.codes import FEATURES_PAGE, features_page


def test_a_code_has_one_row() -> None:
    codes = [row.code for row in ROWS]
    assert len(codes) == len(set(codes))


def test_each_code_of_spark_has_one_row() -> None:
    assert sorted(row.code for row in CLIENT_ROWS) == sorted(Code)


def test_the_page_has_the_table() -> None:
    hint = "run `python -m tools.docs`"
    assert FEATURES_PAGE.read_text(encoding="utf-8") == features_page(), hint
