"""The options of a read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.columns import COLUMNS


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading messages.

    Args:
        columns: names from COLUMNS, in the order of the result; all of them by default.
        body_as_text: return the body as a string; bytes that are not UTF-8 become U+FFFD.
        decompress: decompress compressed bodies.
        check_crc: check each body against its bodyCRC when `body` is among the columns, and each
            record against the CRC of the whole record if RocketMQ 5.x wrote one.
        mode: how to handle a damaged record: FAILFAST raises, DROPMALFORMED skips and counts it.
        fail_on_data_loss: raise if messages of the range have expired; otherwise skip and log them.
        tags: read only messages with one of these tags; None for all.
        keys: read only messages with one of these keys; None for all.
        batch_rows: maximum number of rows in a batch.
        batch_bytes: approximate number of bytes of the log that go into a batch.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    body_as_text: bool = False
    decompress: bool = True
    check_crc: bool = True
    mode: Literal["FAILFAST", "DROPMALFORMED"] = "FAILFAST"
    fail_on_data_loss: bool = True
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    batch_rows: int = 10_000
    batch_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise OptionError(
                f"Unknown columns: {', '.join(unknown)}. The columns are {', '.join(COLUMNS)}."
            )
        for name in ("tags", "keys"):
            if isinstance(getattr(self, name), str):
                raise OptionError(
                    f"{name} must be a set of {name}, not a text. Parse a text with "
                    f"reader.filters.parse_{name}."
                )
        if self.batch_rows < 1 or self.batch_bytes < 1:
            raise OptionError("batch_rows and batch_bytes must be at least 1.")
        if self.mode not in ("FAILFAST", "DROPMALFORMED"):
            raise OptionError(f"mode must be FAILFAST or DROPMALFORMED, not {self.mode!r}.")
