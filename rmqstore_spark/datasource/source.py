"""`format("rmqstore")`: the class that Spark calls first.

Spark starts a Python process for each call. So importing this module must be cheap, and nothing is
kept here between calls.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmqstore_spark.base.workers import check_packages, check_spark
from rmqstore_spark.datasource.contacts import share_contacts
from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import (
    check_options,
    check_table_options,
    parse_options,
)
from rmqstore_spark.datasource.schema import full_schema, project
from rmqstore_spark.datasource.tables import (
    is_new_table,
    query_options,
    source_options,
    with_options,
)
from rmqstore_spark.errors import OptionError


class RmqStoreDataSource(DataSource):
    """A RocketMQ message store as a Spark source and sink.

    Args:
        options: see docs/options.md; names are not case-sensitive.
    """

    @plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_spark()
        check_packages()  # Without pyarrow, Spark's own workers would crash without a reason.
        # Reported at load(), not when the first action runs.
        check_options(source_options(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rmqstore"

    @plain_errors
    def schema(self) -> StructType:
        """Return all columns."""
        if not is_new_table(self.options):
            return full_schema()
        options = source_options(self.options)
        check_table_options(options)
        return with_options(full_schema(), options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of a batch query; the schema is the projection."""
        from rmqstore_spark.datasource.batch import RmqStoreReader

        share_contacts()
        given = query_options(self.options, schema)
        return RmqStoreReader(parse_options(given, streaming=False), project(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Create the reader of a stream; its first method reports errors in the options."""
        from rmqstore_spark.datasource.spark_api import stream_reader
        from rmqstore_spark.datasource.stream.reader import RmqStoreStreamReader

        share_contacts()
        return stream_reader(RmqStoreStreamReader(self.options, schema))

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of a batch write."""
        from rmqstore_spark.datasource.sink.columns import find_columns
        from rmqstore_spark.datasource.sink.options import parse_sink_options
        from rmqstore_spark.datasource.sink.targets import find_targets
        from rmqstore_spark.datasource.sink.writers import RmqStoreWriter

        if overwrite:
            raise OptionError(
                "Mode overwrite is not supported: a message store is append-only, and its "
                'consumers may still need the messages. Use mode("append"). To delete a topic, '
                "run `rmqstore delete-topic`."
            )
        share_contacts()
        options = parse_sink_options(self.options, streaming=False)
        columns = find_columns(schema, options.messages)
        return RmqStoreWriter(find_targets(options, schema, streaming=False), columns)

    @plain_errors
    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Create the writer of a stream."""
        from rmqstore_spark.datasource.sink.columns import find_columns
        from rmqstore_spark.datasource.sink.options import parse_sink_options
        from rmqstore_spark.datasource.sink.targets import find_targets
        from rmqstore_spark.datasource.sink.writers import RmqStoreStreamWriter

        if overwrite:
            raise OptionError(
                "Output mode complete is not supported: it rewrites all results in each "
                'micro-batch, but a message store is append-only. Use outputMode("append"), with '
                "a watermark if the query aggregates."
            )
        share_contacts()
        options = parse_sink_options(self.options, streaming=True)
        columns = find_columns(schema, options.messages)
        return RmqStoreStreamWriter(find_targets(options, schema, streaming=True), columns)
