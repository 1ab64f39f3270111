"""Verify stores in many Spark tasks: each file of a log is one task.

    python -m jobs.verify_store STORE
    spark-submit jobs/verify_store.py STORE --storePathCommitLog /disk1/log,/disk2/log --json

Nothing is changed. The exit code is 0 without damage, 1 with damage, and 2 if a store could not be
verified. docs/verify.md lists the checks, and what they cannot detect.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmqstore_spark.datasource.failures import host_name
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.stores import SourceStore, StoreSpec, open_stores
from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError
from rmqstore_spark.pipelines.arguments import new_parser
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.progress import run_tasks
from rmqstore_spark.pipelines.session import session
from rmqstore_spark.verify import (
    Findings,
    Snapshot,
    Unit,
    VerifyReport,
    check_unit,
    make_plan,
    verify_plan,
)
from rmqstore_spark.verify.findings import LISTED
from rmqstore_spark.verify.snapshot import DELAY_LEVELS, delays

__all__ = ["main", "parse_arguments", "verify_stores"]

DAMAGED: Final = 1
FAILED: Final = 2

_UNITS_AT_ONCE: Final = 64  # of small units: a task should take longer than its start

Runner: TypeAlias = Callable[[str, Sequence[Sequence[Unit]], "VerifyTask"], Iterable[Findings]]


@dataclass(frozen=True)
class VerifyTask:
    """Checks units of a store.

    Args:
        spec: opens the store.
        snapshot: the store as the driver saw it.
    """

    spec: StoreSpec
    snapshot: Snapshot

    def __call__(self, units: Sequence[Unit]) -> Findings:
        """Check some units.

        Raises:
            RmqStoreError: this machine does not see the store.
        """
        findings = Findings(self.snapshot.listed)
        try:
            store = self.spec.open()
        except StoreNotFoundError as error:
            raise RmqStoreError(
                f"{self.spec.url} cannot be found on host {host_name()}: stores must be "
                "accessible to all executors under the same path."
            ) from error
        with store:
            for unit in units:
                findings.merge(check_unit(store, self.snapshot, unit))
        return findings


def parse_arguments(command: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser("verify_store", "Verify RocketMQ stores.")
    parser.add_argument(
        "--storePathCommitLog",
        "--store-path-commit-log",
        dest="folders",
        metavar="FOLDERS",
        help="CommitLog folders, if they are not below the store; see docs/options.md",
    )
    parser.add_argument(
        "--delay-levels",
        default=DELAY_LEVELS,
        type=_delay_levels,
        metavar="LEVELS",
        help="the broker's messageDelayLevel (default: RocketMQ's)",
    )
    parser.add_argument(
        "--list",
        dest="listed",
        default=LISTED,
        type=int,
        metavar="N",
        help="list up to N problems of each kind, count the others (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON lines")
    return parser.parse_args(command)


def _delay_levels(text: str) -> str:
    try:
        delays(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def verify_stores(arguments: argparse.Namespace, run: Runner) -> Iterator[tuple[str, VerifyReport]]:
    """Verify one store after the other.

    Args:
        run: checks groups of units, anywhere, and returns the findings in their order.

    Yields:
        URL and report of each store.
    """
    options = {"path": arguments.store}
    if arguments.folders is not None:
        options["storePathCommitLog"] = arguments.folders
    for opened in open_stores(parse_options(options, streaming=False)):
        with opened.store:
            yield opened.spec.url, _verify(opened, arguments, run)


def _verify(opened: SourceStore, arguments: argparse.Namespace, run: Runner) -> VerifyReport:
    def work(snapshot: Snapshot, units: Sequence[Unit]) -> Iterable[Findings]:
        task = VerifyTask(opened.spec, snapshot)
        return run(f"verify {opened.spec.url}", list(_grouped(units)), task)

    plan = make_plan(opened.store, delay_levels=arguments.delay_levels, listed=arguments.listed)
    return verify_plan(opened.store, plan, work)


def _grouped(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """Yield each unit with a size as one task; the small ones share tasks after them."""
    small = [unit for unit in units if not unit.size]
    yield from ([unit] for unit in units if unit.size)
    for first in range(0, len(small), _UNITS_AT_ONCE):
        yield small[first : first + _UNITS_AT_ONCE]


def _print(url: str, report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"path": url, **report.to_dict()}), flush=True)
        return
    for problem in report.problems:
        print(problem)
    listed = len(report.problems)
    total = report.errors + report.notes
    if total > listed:
        print(f"... and {total - listed:,} more")
    if report.torn_tail is not None:
        tail = report.torn_tail
        print(f"torn tail: {tail.file} at {tail.offset}: {tail.cause}; {tail.size} bytes")
    counts = ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
    print(f"{url}: log {report.log_begin} to {report.log_end}: {counts}")
    print(f"{report.errors:,} error(s), {report.notes:,} note(s)", flush=True)


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = parse_arguments(command)
    ended: list[int] = []
    code = run_job(lambda: ended.append(_verify_all(arguments)))
    return ended[0] if ended else code and FAILED


def _verify_all(arguments: argparse.Namespace) -> int:
    damaged = False
    with session("rmqstore verify_store") as spark:

        def run(
            description: str, work: Sequence[Sequence[Unit]], task: VerifyTask
        ) -> Iterable[Findings]:
            with redirect_stdout(sys.stderr):  # progress does not belong to the report
                return run_tasks(spark, description, work, task)

        for url, report in verify_stores(arguments, run):
            _print(url, report, as_json=arguments.json)
            damaged |= not report.ok
    return DAMAGED if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
