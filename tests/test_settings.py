"""Settings that are declared as fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rmqstore_spark.base.settings import (
    Declaration,
    as_text,
    declare,
    nearest,
    parse_boolean,
    settings_of,
)


@dataclass(frozen=True)
class Base:
    many_words: int = declare(Declaration("number", int, "7", "Counts.", "A", least=1, most=9))
    plain: int = 0


@dataclass(frozen=True)
class Derived(Base):
    place: str | None = declare(Declaration("path", str, None, "Says where.", "B", name="where"))
    others: tuple[str, ...] = declare(Declaration("names", str, None, "", "B"), unset=())


def test_a_field_has_the_value_that_the_text_of_its_default_gives() -> None:
    assert Base() == Base(many_words=7, plain=0)
    assert (Derived().place, Derived().others) == (None, ())


def test_settings_come_in_the_order_of_the_fields_and_leave_out_other_fields() -> None:
    found = [(each.name, each.attribute) for each in settings_of(Derived)]
    assert found == [("manyWords", "many_words"), ("where", "place"), ("others", "others")]
    assert settings_of(Derived)[0] == settings_of(Base)[0]


def test_a_default_that_its_own_parser_refuses_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="must be true or false"):
        declare(Declaration("boolean", parse_boolean, "yes", "", ""))


@pytest.mark.parametrize(
    ("least", "most", "values"),
    [
        (None, None, "number"),
        (0, None, "number, 0 or more"),
        (1, 2**63 - 1, "number, 1 or more"),
        (-1, 65_535, "number, -1 to 65535"),
    ],
)
def test_values_name_the_range(least: int | None, most: int | None, values: str) -> None:
    assert Declaration("number", int, None, "", "", least=least, most=most).values == values


def test_a_text_gives_the_value_again() -> None:
    assert [as_text(value) for value in (True, False, 0.85, 17, "/a")] == [
        *("true", "false", "0.85", "17", "/a")
    ]


def test_the_nearest_name() -> None:
    assert nearest("FLUSHDISKTYP", ["flushDiskType", "flushInterval"]) == "flushDiskType"
    assert nearest("zzz", ["flushDiskType"]) is None
