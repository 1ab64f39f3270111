"""What a job writes: the options of the sink, and the topics that are read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.datasource.options.parsing import parse_options, parse_sink_options
from rmqstore_spark.datasource.options.sink_table import WRITING
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.datasource.sources.queues import check_pattern, check_topics, chosen_queues
from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.arguments import place_option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SAID_ELSEWHERE: Final = {
    "endpoint": "ENDPOINT",
    "namesrvAddr": "ENDPOINT",
    "topic": "--map (of replay) or --as",
}


def write_option(*, streaming: bool) -> Any:
    """Return `--write NAME=VALUE`, as a parameter of typer."""
    names = [
        o.name
        for o in WRITING.options
        if o.name not in _SAID_ELSEWHERE and not (streaming and o.group == BATCH)
    ]
    return typer.Option(
        "--write",
        metavar="NAME=VALUE",
        help=f"an option of the sink (see docs/options.md): {', '.join(names)}; repeat it for "
        "several  [default: queueSelector=column, so that messages keep their queues]",
        show_default=False,
    )


def target_options(endpoint: str, given: Sequence[str], *, streaming: bool) -> dict[str, str]:
    """Return the sink's options, with what says where to write.

    Args:
        endpoint: the argument ENDPOINT.
        given: options of the sink as `NAME=VALUE`.

    Raises:
        OptionError: an option is unknown or wrong.
    """
    name, place = place_option(endpoint, otherwise="endpoint")
    options = {name: place, "queueSelector": "column"}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"--write must be NAME=VALUE, not {text!r}.")
        name = name.strip()
        for known, argument in _SAID_ELSEWHERE.items():
            if name.lower() == known.lower():
                raise OptionError(f"--write does not accept {name}: use {argument}.")
        options[name] = value
    parse_sink_options(options, streaming)
    return options


def queues_read(source: Mapping[str, str], *, streaming: bool) -> dict[str, int]:
    """Return the number of queues of each topic that is read: its highest queue id plus 1.

    Args:
        source: options of the source.

    Raises:
        TopicNotFoundError: a topic does not exist.
    """
    chosen = parse_options(source, streaming=streaming)
    counts: dict[str, int] = {}
    opened = open_sources(chosen)
    try:
        check_topics(chosen.queues, opened)
        check_pattern(chosen.queues, opened)
        for key, _, _ in chosen_queues(chosen.queues, opened):
            counts[key.topic] = max(counts.get(key.topic, 0), key.queue_id + 1)
    finally:
        for each in opened:
            each.close()
    return counts


@dataclass(frozen=True)
class TopicMap:
    """Maps topics that are read to topics that are written.

    Args:
        rules: (old, new) in the order in which they are tried. `*` in the first matches any text,
            and in the second is replaced by that text.
    """

    rules: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> TopicMap:
        """Parse `OLD=NEW` rules.

        Raises:
            OptionError: a rule is invalid.
        """
        rules = []
        for text in texts:
            old, separator, new = (part.strip() for part in text.partition("="))
            stars = old.count("*"), new.count("*")
            if not (separator and old and new) or stars not in ((0, 0), (1, 0), (1, 1)):
                raise OptionError(
                    f"--map must be OLD=NEW, such as orders=orders_2 or *=copy_*, not {text!r}. "
                    "OLD and NEW can have one * each, and NEW only if OLD has one."
                )
            rules.append((old, new))
        return cls(tuple(rules))

    def __call__(self, topic: str) -> str:
        """Return the topic to write in place of a topic."""
        for old, new in self.rules:
            found = re.fullmatch(_pattern(old), topic)
            if found:
                return new.replace("*", found[1] if found.groups() else "*")
        return topic

    def queues(self, read: Mapping[str, int]) -> dict[str, int]:
        """Return how many queues each written topic needs, so that messages keep their queues.

        Args:
            read: the number of queues of each topic that is read.

        Raises:
            OptionError: a rule names a topic that is not read.
        """
        for old, new in self.rules:
            if "*" not in old and old not in read:
                there = ", ".join(sorted(read)) or "none"
                raise OptionError(f"--map {old}={new} matches no topic that is read: {there}.")
        counts: dict[str, int] = {}
        for topic, count in read.items():
            name = self(topic)
            counts[name] = max(counts.get(name, 0), count)
        return counts

    def column(self, topic: Column) -> Column:
        """Map a column of topics."""
        from pyspark.sql import functions as sf

        mapped = topic
        for old, new in reversed(self.rules):
            pattern = f"^{_pattern(old)}$"
            replaced = sf.regexp_replace(topic, pattern, new.replace("*", "$1"))
            mapped = sf.when(topic.rlike(pattern), replaced).otherwise(mapped)
        return mapped

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their topics replaced."""
        return rows.withColumn("topic", self.column(rows["topic"])) if self.rules else rows


def _pattern(rule: str) -> str:
    # Topics contain only letters, digits and %|_-, whose escapes mean the same in Python and Java.
    return re.escape(rule).replace(r"\*", "(.*)")
