"""Copy one topic into a store, whole or in part, under its own name or another.

    python -m jobs.copy_topic STORE TOPIC ENDPOINT --as COPY

The copy is one batch write, so it appears as a whole or not at all. Messages keep their queues,
order, keys, tags, properties and bornTimestamp.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.datasource.options.option import STREAM
from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.arguments import Endpoint, Job, StoreArguments
from rmqstore_spark.pipelines.running import run_job, session
from rmqstore_spark.pipelines.targets import (
    create_topics,
    queues_read,
    target_options,
    write_option,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class CopyArguments(StoreArguments):
    """The arguments of the job."""

    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="the topic to copy")]
    endpoint: Endpoint
    copy: Annotated[
        str | None,
        typer.Option("--as", metavar="TOPIC", help="topic of the copy  [default: the same name]"),
    ] = None
    write: Annotated[list[str], write_option(streaming=False)] = field(default_factory=list)

    def source_options(self) -> dict[str, str]:
        """Return the source's options, the topic and which stores are read included.

        Raises:
            OptionError: they choose topics too.
        """
        options = super().source_options()
        chosen = sorted({"subscribe", "subscribePattern", "assign"} & options.keys())
        if chosen:
            raise OptionError(
                f"Argument TOPIC already gives the topic: remove --{', --'.join(chosen)}."
            )
        return {**options, "subscribe": self.topic}

    def target_options(self) -> dict[str, str]:
        """Return the sink's options, its endpoint included.

        Raises:
            OptionError: an option is unknown or wrong.
        """
        return target_options(self.endpoint, self.write, streaming=False)


JOB: Final = Job(
    "copy_topic",
    CopyArguments,
    "Copy one topic of RocketMQ stores into a store.",
    without=STREAM,
)


def copy_topic(spark: SparkSession, arguments: CopyArguments) -> None:
    """Copy the topic, and print the number of messages."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    source = arguments.source_options()
    copy = arguments.copy or arguments.topic
    options = {"topic": copy, **arguments.target_options()}
    queues = queues_read(source, streaming=False).values()
    create_topics(options, {copy: max(queues)} if queues else {})
    count = Observation()
    (
        spark.read.format("rmqstore")
        .options(**source)
        .load()
        .observe(count, sf.count(sf.lit(1)).alias("rows"))
        .write.format("rmqstore")
        .options(**options)
        .mode("append")
        .save()
    )
    rows: int = count.get["rows"]
    print(f"{rows:,} message(s) of {arguments.topic} copied to {copy} at {arguments.endpoint}")


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _run(arguments))


def _run(arguments: CopyArguments) -> None:
    # Reports errors before Spark starts.
    arguments.target_options()
    arguments.check_source(streaming=False)
    with session("rmqstore copy_topic") as spark:
        copy_topic(spark, arguments)


if __name__ == "__main__":
    sys.exit(main())
