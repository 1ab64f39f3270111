from __future__ import annotations

from tools.docs import OPTIONS_PAGE, options_page


def test_the_reference_of_options_is_up_to_date() -> None:
    assert OPTIONS_PAGE.read_text(encoding="utf-8") == options_page(), "run `python -m tools.docs`"
