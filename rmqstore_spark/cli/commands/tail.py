"""`rmqstore tail`: prints the newest messages, and follows new ones."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqstore_spark.cli.shared.choosing import Choice
from rmqstore_spark.cli.shared.following import Tail
from rmqstore_spark.cli.shared.messages import read_options
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    AsJson,
    AsRaw,
    BrokerName,
    Columns,
    CommitLogPaths,
    Keys,
    QueueIds,
    Separator,
    SkipDamaged,
    StorePath,
    Tags,
    Topics,
    open_store,
)
from rmqstore_spark.cli.shared.printing import make_printer, parse_columns, print_batches

_Follow = typer.Option(
    "--follow", "-f", help="Keep printing new messages, also of new queues, until Ctrl-C."
)
_Limit = typer.Option(
    "--limit", "-n", min=0, metavar="N", help="Number of newest messages to print first."
)


def tail(
    store_path: StorePath,
    follow: Annotated[bool, _Follow] = False,
    limit: Annotated[int, _Limit] = 10,
    topics: Topics = None,
    queue_ids: QueueIds = None,
    tags: Tags = None,
    keys: Keys = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_raw: AsRaw = False,
    separator: Separator = "",
    everything: AllTopics = False,
    skip_damaged: SkipDamaged = False,
    broker_name: BrokerName = None,
    commitlog_paths: CommitLogPaths = None,
) -> None:
    """Print the newest messages, and follow new ones with -f."""
    printer = make_printer(
        as_json=as_json,
        as_raw=as_raw,
        columns=parse_columns(columns),
        separator=separator,
        single_topic=bool(topics) and len(topics or ()) == 1,
    )
    options = read_options(
        printer, tags=tags, keys=keys, skip_damaged=skip_damaged, skip_expired=True
    )
    with open_store(store_path, broker_name, commitlog_paths) as store:
        store.require_queues("tail")
        follower = Tail(store, Choice(topics, queue_ids, everything), options)
        if limit:
            print_batches(printer, follower.last(limit), None)
        if follow:
            print_batches(printer, follower.follow(), None)
