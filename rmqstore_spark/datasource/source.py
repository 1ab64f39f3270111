"""`format("rmqstore")`: the class that Spark calls first.

Spark starts a Python process for each call. So importing this module must be cheap, and nothing is
kept here between calls.
"""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmqstore_spark.base.workers import check_packages, check_spark
from rmqstore_spark.datasource.failures import is_spark_worker, plain_errors
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
from rmqstore_spark.datasource.tasks import short_collections
from rmqstore_spark.errors import OptionError

_FILES: Final = "userFiles-"
_CONTACTS: Final = "rmqstore-contacts"


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
    @short_collections()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of a batch write."""
        from rmqstore_spark.datasource.options.parsing import parse_sink_options
        from rmqstore_spark.datasource.sink.columns import find_columns
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
    @short_collections()
    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Create the writer of a stream."""
        from rmqstore_spark.datasource.options.parsing import parse_sink_options
        from rmqstore_spark.datasource.sink.columns import find_columns
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


def share_contacts() -> None:
    """Let the processes of a Spark application know what the others have reached.

    Spark runs each planning and each commit in a Python process of its own. What a micro-batch has
    reached may be restarting when the next one is planned, and is then waited for. So the processes
    of one driver share a folder (`client.contact`). It is among the files of the application, which
    Spark removes when the application ends.
    """
    if not is_spark_worker():
        return
    # Not before the packages that it needs are checked.
    from rmqstore_spark.client.contact import remember_in

    folder = os.path.join(_files_of_the_application(), _CONTACTS)
    with suppress(OSError):
        _make_own(folder)
        remember_in(folder)


def _files_of_the_application() -> str:
    """Return the folder of the files that all tasks of the application may read.

    A process may be told a folder in it instead, for what one session or all streams have added:
    that need not exist.
    """
    from pyspark import SparkFiles

    told = os.path.abspath(SparkFiles.getRootDirectory())
    around = os.path.dirname(told)
    return around if os.path.basename(around).startswith(_FILES) else told


def _make_own(folder: str) -> None:
    """Create a folder that nobody else can write.

    Raises:
        OSError: somebody else has created it.
    """
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
