"""docs/kafka.md and docs/migration.md name options and columns that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.sink_table import SINK_OWN
from rmqstore_spark.datasource.options.table import OWN
from rmqstore_spark.datasource.schema import COLUMN_TYPES
from rmqstore_spark.datasource.sink.columns import SINK_COLUMNS
from rmqstore_spark.errors import OptionError
from tests.datasource.driving import plan_batch

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
NAMES: Final = {
    *(option.name for option in settings_of(ConnectionOptions)),
    *(option.name for option in (*OWN.options, *SINK_OWN.options)),
    *COLUMN_TYPES,
    *(column.name for column in SINK_COLUMNS),
    "path",
}
VALUES: Final = {"column", "earliest", "group:NAME", "hash", "latest", "roundrobin"}


def counterparts(page: str) -> list[str]:
    """What the tables have in code as the other tool's name, and in the column "here"."""
    rows = re.findall(r"^\| (.+?) \| (.*?) \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    heads = [number for number, (_, here) in enumerate(rows) if here == "here"]
    return [code for _, here in rows[heads[0] :] for code in re.findall(r"`([^`]+)`", here)]


@pytest.mark.parametrize("page", ["kafka.md", "migration.md"])
def test_what_is_here_exists(page: str) -> None:
    found = [each for each in counterparts(page) if re.fullmatch(r"[\w:]+", each)]
    assert len(found) > 20
    others = {"read", "readStream"}  # of Spark
    assert {each for each in found if each not in NAMES | VALUES | others} == set()


def test_the_table_has_the_options_that_both_sources_have() -> None:
    """Those of Spark's guide, as of 4.3, that begin with no `kafka`."""
    text = (DOCS / "kafka.md").read_text(encoding="utf-8")
    for option in OWN.options:
        if re.search(
            "Offsets|Timestamp|subscribe|^assign$|minPartitions|TriggerDelay", option.name
        ):
            assert f"`{option.name}` |" in text, option.name


def test_an_option_of_kafka_is_refused(tmp_path: Path) -> None:
    for name in ("kafka.bootstrap.servers", "groupIdPrefix", "includeHeaders"):
        with pytest.raises(OptionError, match="Unknown option"):
            plan_batch(tmp_path, None, **{name: "x"})
