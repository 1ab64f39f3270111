"""Measures, and prints one table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.clients.figures import client_figures, group_of_three_figures
from benchmarks.commands import command_figures
from benchmarks.engine.blocks import block_figures
from benchmarks.engine.buffer import buffer_figures
from benchmarks.engine.decode import column_figures, decode_figures, plan_figures, tag_figures
from benchmarks.engine.delays import delay_figures
from benchmarks.engine.expiry import expiry_figures
from benchmarks.engine.opening import opening_figures
from benchmarks.engine.recovery import recovery_figures, service_memory
from benchmarks.engine.service import service_figures
from benchmarks.engine.writer import writer_figures
from benchmarks.floors.figures import floor_figures
from benchmarks.means.stores import Stores
from benchmarks.network.attacks import attack_figures
from benchmarks.network.namesrv import namesrv_figures
from benchmarks.network.replication import replication_figures
from benchmarks.network.status import status_figures
from benchmarks.protocols.figures import protocol_figures
from benchmarks.report.figures import Figure, print_table
from benchmarks.report.results import write_results
from benchmarks.scale.measuring import scale_figures
from benchmarks.spark.backfill import backfill_figures
from benchmarks.spark.beside import beside_figures
from benchmarks.spark.first_write import first_write_figures
from benchmarks.spark.idle import idle_figures
from benchmarks.spark.planning import planning_figures
from benchmarks.spark.queries import memory_figures, spark_figures
from benchmarks.spark.sidecar import sidecar_figures
from benchmarks.spark.sink import sink_figures
from benchmarks.spark.streams import stream_figures
from benchmarks.spark.tables import table_figures
from benchmarks.spark.write_parts import write_part_figures
from benchmarks.stores.figures import store_figures

ROOT: Final = Path(__file__).resolve().parents[1]
_LONG, _SHORT = 20, 3  # gigabytes of the long partition
_ASKED: Final = {"stores"}
"""Measured only with `--only`: they need packages and servers (`pip install .[bench-stores]`)."""


def main() -> None:
    """Parse the command line, and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"a partition of {_LONG} GB")
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/RESULTS.md, its figures and plots"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="of the stores")
    measured: dict[str, Callable[[Stores], Iterator[Figure]]] = {
        "decode": decode_figures,
        "columns": column_figures,
        "plan": plan_figures,
        "tags": tag_figures,
        "planning": planning_figures,
        "spark": spark_figures,
        "sink": sink_figures,
        "write-parts": write_part_figures,
        "first-write": first_write_figures,
        "beside": beside_figures,
        "streams": stream_figures,
        "idle": idle_figures,
        "backfill": backfill_figures,
        "tables": table_figures,
        "service": service_figures,
        "blocks": block_figures,
        "writer": writer_figures,
        "buffer": buffer_figures,
        "replication": replication_figures,
        "expiry": expiry_figures,
        "delays": delay_figures,
        "recovery": recovery_figures,
        "opening": opening_figures,
        "commands": command_figures,
        "service-memory": service_memory,
        "sidecar": sidecar_figures,
        "attacks": attack_figures,
        "namesrv": namesrv_figures,
        "status": status_figures,
        "clients": client_figures,
        "groups": group_of_three_figures,
        "protocols": protocol_figures,
        "floors": floor_figures,
        "stores": store_figures,
        "scale": scale_figures,
        "memory": lambda stores: memory_figures(stores, _LONG if arguments.full else _SHORT),
    }
    names = ", ".join(measured)
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=measured,
        help=f"measure this, of {names}",
    )
    arguments = parser.parse_args()
    stores = Stores(arguments.folder.resolve())
    figures: list[Figure] = []
    for name, measure in measured.items():
        if name in (measured.keys() - _ASKED if arguments.only is None else arguments.only):
            for figure in measure(stores):
                print(*(cell for cell in figure.cells if cell), sep=" | ", flush=True)
                figures.append(figure)
    print_table(figures)
    if arguments.write:
        write_results(figures)


if __name__ == "__main__":
    main()
