"""The options that say which table a job writes to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import typer

from rmqstore_spark.errors import InstallationError, OptionError
from rmqstore_spark.files.systems.schemes import local_path
from rmqstore_spark.pipelines.arguments import StoreArguments, as_parser
from rmqstore_spark.pipelines.tables.table import LakeTable, reported

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)

# Oldest versions, as pyproject.toml has them. deltalake 1.0 does not see which versions of an
# application others have committed since it opened a table.
_PACKAGES: Final[dict[str, dict[str, tuple[int, int]]]] = {
    PARQUET: {},
    DELTA: {"deltalake": (1, 6)},
    ICEBERG: {"pyiceberg": (0, 12), "sqlalchemy": (2, 0)},
}


def _format(text: str) -> str:
    if text not in FORMATS:
        raise ValueError(f"must be one of {', '.join(FORMATS)}, not {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class TableArguments(StoreArguments):
    """The arguments of a job that writes Parquet or a table."""

    output: str
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            parser=as_parser(_format),
            help=f"what OUTPUT is: a folder of Parquet ({PARQUET}), the folder of a Delta table "
            f"({DELTA}), or the name of an Iceberg table, NAMESPACE.TABLE ({ICEBERG})",
        ),
    ] = PARQUET
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="NAME",
            help="catalog of the Iceberg table, in the configuration of pyiceberg  [default: its "
            "default catalog]",
        ),
    ] = None
    warehouse: Annotated[
        str | None,
        typer.Option(
            "--warehouse",
            metavar="FOLDER",
            help="folder of Iceberg tables on this machine, with a catalog in FOLDER/catalog.db",
        ),
    ] = None
    storage_option: Annotated[
        list[str],
        typer.Option(
            "--storage-option",
            metavar="NAME=VALUE",
            help="an option of deltalake for its storage, or of pyiceberg for its catalog; repeat "
            "it for several",
        ),
    ] = field(default_factory=list)
    file_option: Annotated[
        list[str],
        typer.Option(
            "--file-option",
            metavar="NAME=VALUE",
            help="an option of fsspec for the file system to which tasks write the table's files; "
            "repeat it for several",
        ),
    ] = field(default_factory=list)

    def places(self) -> tuple[str, ...]:
        """Return the folders that the job writes to, or the name of a table in a catalog."""
        return (self.output if self.warehouse is None else self.warehouse,)

    def check_table(self) -> None:
        """Check the options of the table, as far as this needs nothing but this machine.

        Raises:
            OptionError: an option is wrong, or does not belong to the format.
            InstallationError: the package for the format is missing.
        """
        given = {
            "--catalog": self.catalog,
            "--warehouse": self.warehouse,
            "--storage-option": self.storage_option,
            "--file-option": self.file_option,
        }
        excluded = {PARQUET: list(given), DELTA: ["--catalog", "--warehouse"], ICEBERG: []}
        wrong = [name for name in excluded[self.to] if given[name]]
        if wrong:
            raise OptionError(f"--to {self.to} does not accept {', '.join(wrong)}.")
        self.storage_options()
        self.file_options()
        if self.to == ICEBERG:
            self._check_iceberg()
        for name, (major, minor) in _PACKAGES[self.to].items():
            found = "none" if find_spec(name) is None else version(name)
            if found == "none" or _numbers(found) < (major, minor):
                raise InstallationError(
                    f"--to {self.to} needs {name} {major}.{minor} or newer where the job is "
                    f"started, which has {found}. Install it: "
                    f"pip install 'rmqstore-spark[{self.to}]'"
                )

    def _check_iceberg(self) -> None:
        if self.catalog and self.warehouse:
            raise OptionError("--catalog and --warehouse exclude each other.")
        if self.warehouse and local_path(self.warehouse) is None:
            raise OptionError(
                f"--warehouse must be a folder on this machine, not {self.warehouse}. Use "
                "--catalog for tables elsewhere."
            )
        names = self.output.split(".")
        if len(names) < 2 or not all(names) or "/" in self.output:
            raise OptionError(
                f"An Iceberg table has a name such as rocketmq.messages, not {self.output!r}."
            )

    def storage_options(self) -> dict[str, str]:
        """Return the options of the format's package.

        Raises:
            OptionError: one is not NAME=VALUE.
        """
        return _named_values("--storage-option", self.storage_option)

    def file_options(self) -> dict[str, str]:
        """Return the options of fsspec.

        Raises:
            OptionError: one is not NAME=VALUE.
        """
        return _named_values("--file-option", self.file_option)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _named_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts.

    Args:
        option: the option's name, for the error.

    Raises:
        OptionError: a text is not of this form.
    """
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            # The text may be a secret.
            raise OptionError(f"{option} must be NAME=VALUE.")
        found[name.strip()] = value
    return found


def find_table(arguments: TableArguments, schema: pa.Schema) -> LakeTable | None:
    """Open the table of a job; None if it does not exist.

    Args:
        schema: the columns that the job writes.

    Raises:
        OptionError: the table has other columns or partitions, or an option is wrong.
        RmqStoreError: the table cannot be read, or a package is missing.
    """
    if arguments.to == DELTA:
        from rmqstore_spark.pipelines.tables.delta import DeltaTable

        return DeltaTable.find(*_delta(arguments, schema))
    from rmqstore_spark.pipelines.tables.iceberg import IcebergTable

    return IcebergTable.find(_catalog(arguments), arguments.output, schema)


def create_table(arguments: TableArguments, schema: pa.Schema) -> LakeTable:
    """Create the table of a job, or open the one that somebody else has just created.

    Args:
        schema: the columns that the job writes.

    Raises:
        OptionError: the table has other columns or partitions, or an option is wrong.
        RmqStoreError: the table cannot be created.
    """
    if arguments.to == DELTA:
        from rmqstore_spark.pipelines.tables.delta import DeltaTable

        return DeltaTable.create(*_delta(arguments, schema))
    from rmqstore_spark.pipelines.tables.iceberg import IcebergTable

    return IcebergTable.create(_catalog(arguments), arguments.output, schema)


def _delta(arguments: TableArguments, schema: pa.Schema) -> tuple[str, pa.Schema, dict[str, str]]:
    local = local_path(arguments.output)
    url = arguments.output if local is None else os.path.abspath(local)
    return url, schema, arguments.storage_options()


def _catalog(arguments: TableArguments) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given = arguments.storage_options()
    with reported("The catalog cannot be opened"):
        if arguments.warehouse is None:
            return load_catalog(arguments.catalog, **given)
        folder = Path(local_path(arguments.warehouse) or arguments.warehouse).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        kept = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
        return load_catalog("rmqstore", **{**kept, **given})
