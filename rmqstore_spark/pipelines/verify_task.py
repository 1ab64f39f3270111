"""Check parts of a store in a task of the job verify_store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqstore_spark.datasource.failures import host_name
from rmqstore_spark.datasource.sources.store import StoreSpec
from rmqstore_spark.errors import RmqStoreError, StoreNotFoundError
from rmqstore_spark.verify import Findings, Snapshot, Unit, check_unit


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
