"""`format("rmqstore")`: what Spark asks first.

Each call comes in a Python process of its own making: importing this must cost little, and nothing
is kept here between calls.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options import check_options, parse_options
from rmqstore_spark.datasource.schema import full_schema, project
from rmqstore_spark.datasource.tables import query_options, source_options, with_options

__all__ = ["RmqStoreDataSource"]


class RmqStoreDataSource(DataSource):
    """A RocketMQ message store as a Spark source.

    Args:
        options: see docs/options.md; names in any case.
    """

    @plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Said at load(), not when the first action runs.
        check_options(source_options(options))

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "rmqstore"

    def schema(self) -> StructType:
        """Give all columns."""
        return with_options(full_schema(), self.options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch query; the schema is the projection."""
        from rmqstore_spark.datasource.batch import RmqStoreReader

        given = query_options(self.options, schema)
        return RmqStoreReader(parse_options(given, streaming=False), project(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the reader of a stream; what is wrong with it is said by its first method."""
        from rmqstore_spark.datasource.stream import RmqStoreStreamReader

        return RmqStoreStreamReader(query_options(self.options, schema), schema)
