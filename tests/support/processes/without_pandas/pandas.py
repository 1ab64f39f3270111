"""Stands before pandas on the path of Spark's workers, where no test needs it.

pyarrow imports pandas at its first scalar, wherever it is installed. That costs each of the short
processes that Spark starts for a Python data source more than all of its own work.
"""

raise ImportError("the workers of the tests have no pandas")
