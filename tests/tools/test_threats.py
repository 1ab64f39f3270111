from __future__ import annotations

from tools.threats import THREAT_PAGE, threat_page


def test_the_table_of_the_threat_model_is_up_to_date() -> None:
    assert THREAT_PAGE.read_text(encoding="utf-8") == threat_page(), "run `python -m tools.docs`"
