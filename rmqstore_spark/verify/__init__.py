"""Verification of a whole store: every record, every queue entry, every key of the index.

`verify` does it in one go. `make_plan`, `check_unit` and `verify_plan` are its parts, for spreading
the pieces over many machines. docs/verify.md lists the checks, and what cannot be detected.

The log is walked over once. On the way each record is looked up in its queue, and each of its keys
in the index; what these name rightly is remembered as ranges. All that no record vouched for is
then looked at by itself. So a store that is in order costs one pass over its files, whatever the
number of its queues, and one that is not is told apart entry by entry.
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
