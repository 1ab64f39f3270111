"""The arguments of the job replay, whether it reads stores or Parquet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from rmqstore_spark.pipelines.arguments import Endpoint, StoreArguments, as_parser
from rmqstore_spark.pipelines.pacing import RATE_SECONDS
from rmqstore_spark.pipelines.targets import target_options, write_option


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0
    if not 1 <= rate < float("inf"):
        raise ValueError(f"must be a number of 1 or more, not {text!r}")
    return rate


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(StoreArguments):
    """The arguments of the job."""

    endpoint: Endpoint
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="FOLDER", help="folder for the replay's progress"),
    ]
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet",
            help="STORE is a folder of Parquet files, as the jobs backfill and stream_to_parquet "
            "write them",
        ),
    ] = False
    map: Annotated[
        list[str],
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="write topic OLD as NEW; * stands for any text, as in '*=copy_*'; repeat it for "
            "several, the first match counts",
            show_default=False,
        ),
    ] = field(default_factory=list)
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            parser=as_parser(_rate),
            help="at most N messages a second, 1 or more; one task then reads and writes all of "
            f"them, and commits {RATE_SECONDS} seconds' worth together",
        ),
    ] = None
    write: Annotated[list[str], write_option(streaming=True)] = field(default_factory=list)

    def target_options(self) -> dict[str, str]:
        """Return the sink's options, its endpoint included.

        Raises:
            OptionError: an option is unknown or wrong.
        """
        return target_options(self.endpoint, self.write, streaming=True)
