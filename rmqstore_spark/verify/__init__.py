"""Verifies a whole store: every record, every queue entry, every key of the index.

`verify` checks a store in one process. `make_plan`, `check_unit` and `verify_plan` are its steps,
for running the units on many machines. docs/verify.md lists the checks and what they cannot detect.
The log is walked once. Each record is looked up in its queue, and its keys in the index. `Coverage`
(in `findings`) keeps the entries that match. Then every other entry is checked by itself.

run         verifies a store: runs the units and builds the report
plan        takes a snapshot of the store, and cuts the work into units
snapshot    defines the snapshot and the units
log/, queues/, index/    check records, queue entries and index entries
log_batch   holds the records that these checks compare
store_files checks names and sizes of files, the configuration, the progress of consumer groups and
            the checkpoint
findings    collects problems, matched entries and damaged stretches of the log
report      defines the report and the kinds of problems

From outside it imports `reader`, `files`, `layout` and what lies below.
"""

from __future__ import annotations

from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.plan import Plan, make_plan
from rmqstore_spark.verify.report import Problem, TornTail, VerifyReport
from rmqstore_spark.verify.run import check_unit, verify, verify_plan
from rmqstore_spark.verify.snapshot import Snapshot, Unit

__all__ = [
    "Findings",
    "Plan",
    "Problem",
    "Snapshot",
    "TornTail",
    "Unit",
    "VerifyReport",
    "check_unit",
    "make_plan",
    "verify",
    "verify_plan",
]
