"""The arguments of the job backfill."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from rmqstore_spark.datasource.options.option import STREAM
from rmqstore_spark.datasource.options.values import parse_bytes, parse_paths
from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.open import local_path
from rmqstore_spark.pipelines.arguments import Job, Schema, as_parser
from rmqstore_spark.pipelines.parquet.files import CODECS, FileFormat
from rmqstore_spark.pipelines.tables.arguments import PARQUET, TableArguments

_size = as_parser(parse_bytes)


@dataclass(frozen=True, kw_only=True)
class BackfillArguments(TableArguments):
    """The arguments of the job."""

    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="new folder, or that of an interrupted run to continue; or a table, see --to",
        ),
    ]
    schema: Schema = None
    compression: Annotated[
        str | None,
        typer.Option("--compression", metavar="CODEC", help=", ".join(CODECS), show_default="zstd"),
    ] = None
    target_file_size: Annotated[
        int,
        typer.Option(
            "--target-file-size",
            metavar="SIZE",
            parser=_size,
            help="close a file when it reaches this size  [default: 512m]",
            show_default=False,
        ),
    ] = 512 << 20
    row_group_size: Annotated[
        int,
        typer.Option(
            "--row-group-size",
            metavar="SIZE",
            parser=_size,
            help="approximate uncompressed size of a row group  [default: 64m]",
            show_default=False,
        ),
    ] = 64 << 20
    through_dataframe: Annotated[
        str | None,
        typer.Option(
            "--through-dataframe",
            metavar="[FORMAT]",
            help="let Spark write, in any format that it supports (parquet, orc, json, ...); "
            "slower, and an interrupted run starts over",
        ),
    ] = None

    def identity(self) -> dict[str, Any]:
        """Return the arguments that must be the same for a run to continue another one."""
        options = self.source_options()
        if "path" in options:
            options["path"] = json.dumps([_absolute(path) for path in parse_paths(options["path"])])
        return {
            **options,
            "schema": self.schema,
            "compression": self.compression or "zstd",
            "target-file-size": self.target_file_size,
            "row-group-size": self.row_group_size,
        }

    def file_format(self) -> FileFormat:
        """Return the format of the files."""
        return FileFormat(self.compression or "zstd", self.row_group_size, self.target_file_size)

    def check(self) -> None:
        """Check the arguments that need neither a store nor Spark.

        Raises:
            OptionError: one is wrong, or two exclude each other.
        """
        if (self.compression or "zstd") not in CODECS and not self.through_dataframe:
            raise OptionError(f"--compression must be one of {', '.join(CODECS)}.")
        if self.through_dataframe and self.to != PARQUET:
            raise OptionError(
                f"--to {self.to} excludes --through-dataframe, which lets Spark write folders of "
                "files."
            )
        self.check_table()


def _absolute(path: str) -> str:
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


JOB: Final = Job(
    "backfill",
    BackfillArguments,
    "Copy RocketMQ stores to Parquet, or to a Delta or Iceberg table, by topic and date.",
    without=STREAM,
    optional_value=("--through-dataframe", "parquet"),
)
