"""Verify stores in many Spark tasks: each file of a log is one task.

    python -m jobs.verify_store STORE
    spark-submit jobs/verify_store.py STORE --storePathCommitLog /disk1/log,/disk2/log --json

Nothing is changed. The exit code is 0 without damage, 1 with damage, and 2 if a store could not be
verified. docs/verify.md lists the checks, and what they cannot detect.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import typer

from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.sources import open_stores
from rmqstore_spark.datasource.sources.store import StoreSource
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS, delays
from rmqstore_spark.pipelines.arguments import Job, StoreArguments, as_parser
from rmqstore_spark.pipelines.running import run_job, run_tasks, session
from rmqstore_spark.pipelines.tasks import VerifyTask
from rmqstore_spark.verify import (
    Findings,
    Snapshot,
    Unit,
    VerifyReport,
    make_plan,
    verify_plan,
)
from rmqstore_spark.verify.findings import LISTED

DAMAGED: Final = 1
FAILED: Final = 2

_UNITS_AT_ONCE: Final = 64  # of small units: a task should take longer than its start

Runner: TypeAlias = Callable[[str, Sequence[Sequence[Unit]], VerifyTask], Iterable[Findings]]


def _delay_levels(text: str) -> str:
    delays(text)
    return text


@dataclass(frozen=True, kw_only=True)
class VerifyArguments(StoreArguments):
    """The arguments of the job."""

    folders: Annotated[
        str | None,
        typer.Option(
            "--storePathCommitLog",
            "--store-path-commit-log",
            metavar="FOLDERS",
            help="CommitLog folders, if they are not below the store; see docs/options.md",
        ),
    ] = None
    delay_levels: Annotated[
        str,
        typer.Option(
            "--delay-levels",
            metavar="LEVELS",
            parser=as_parser(_delay_levels),
            help="the broker's messageDelayLevel  [default: RocketMQ's]",
        ),
    ] = DELAY_LEVELS
    listed: Annotated[
        int,
        typer.Option(
            "--list", metavar="N", help="list up to N problems of each kind, count the others"
        ),
    ] = LISTED
    as_json: Annotated[bool, typer.Option("--json", help="print the reports as JSON lines")] = False


JOB: Final = Job("verify_store", VerifyArguments, "Verify RocketMQ stores.")


def verify_stores(arguments: VerifyArguments, run: Runner) -> Iterator[tuple[str, VerifyReport]]:
    """Verify one store after the other.

    Args:
        run: checks groups of units, anywhere, and returns the findings in their order.

    Yields:
        URL and report of each store.
    """
    options = arguments.source_options()
    if "namesrvAddr" in options:
        raise OptionError(
            "Only the files of a store can be verified, and name servers do not tell where they "
            "are: give its directory, or the endpoint of its store process."
        )
    if arguments.folders is not None:
        options["storePathCommitLog"] = arguments.folders
    for opened in open_stores(parse_options(options, streaming=False)):
        with opened.store:
            yield opened.spec.url, _verify(opened, arguments, run)


def _verify(opened: StoreSource, arguments: VerifyArguments, run: Runner) -> VerifyReport:
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
    arguments = JOB.parse(command)
    ended: list[int] = []
    code = run_job(lambda: ended.append(_verify_all(arguments)))
    return ended[0] if ended else code and FAILED


def _verify_all(arguments: VerifyArguments) -> int:
    damaged = False
    with session("rmqstore verify_store") as spark:

        def run(
            description: str, work: Sequence[Sequence[Unit]], task: VerifyTask
        ) -> Iterable[Findings]:
            with redirect_stdout(sys.stderr):  # progress does not belong to the report
                return run_tasks(spark, description, work, task)

        for url, report in verify_stores(arguments, run):
            _print(url, report, as_json=arguments.as_json)
            damaged |= not report.ok
    return DAMAGED if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
