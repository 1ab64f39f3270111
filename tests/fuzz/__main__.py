"""Fuzz all decoders for long: `python -m tests.fuzz [--seconds N] [--corpus F] [--decoder NAME]`.

With atheris (`pip install atheris`) what the decoders' Python branches on guides it, and the corpus
grows; without it, seeds are changed at random. The first finding ends it, with the bytes.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    atheris: Any = importlib.import_module("atheris")
except ImportError:
    atheris = None


def _instrumented() -> Any:
    """The harness, its decoders watched by atheris."""
    if atheris is None:
        from tests.fuzz import decoders
    else:
        with atheris.instrument_imports(include=["rmqstore_spark", "tests.fuzz"]):
            from tests.fuzz import decoders
    return decoders


def main() -> int:
    """Fuzz until the time is over, or something is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="kept from run to run; else a temporary folder")
    parser.add_argument("--decoder", help="one alone")
    given = parser.parse_args()
    logging.disable()
    harness = _instrumented()
    chosen = [d for d in harness.DECODERS if given.decoder in (None, d.__name__)]
    if not chosen:
        parser.error(f"--decoder is one of {', '.join(d.__name__ for d in harness.DECODERS)}")
    if atheris is None:
        return _at_random(harness, chosen, given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        _guided(harness, chosen, given.seconds, given.corpus or Path(folder))
    return 0


def _guided(harness: Any, chosen: list[Callable[[bytes], Any]], seconds: int, corpus: Path) -> None:
    from tests.fuzz.seeds import seeds

    corpus.mkdir(parents=True, exist_ok=True)
    for number, decoder in enumerate(chosen):
        for k, data in enumerate(seeds(decoder)):
            (corpus / f"seed-{decoder.__name__}-{k}").write_bytes(bytes([number]) + data)

    def one(data: bytes) -> None:
        if data:
            harness.check(chosen[data[0] % len(chosen)], data[1:])

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", str(corpus)], one)
    atheris.Fuzz()


def _at_random(harness: Any, chosen: list[Callable[[bytes], Any]], seconds: int) -> int:
    from tests.fuzz.seeds import mutated, seeds

    source = random.Random()
    known = {decoder: seeds(decoder) for decoder in chosen}
    end, runs = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for decoder in chosen:
            data = mutated(source.choice(known[decoder]), source)
            try:
                harness.check(decoder, data)
            except BaseException:
                print(f"{decoder.__name__}: {data!r}", file=sys.stderr)  # noqa: T201
                raise
            if len(known[decoder]) < 500:
                known[decoder].append(data)
            runs += 1
    print(f"{runs:,} inputs to {len(chosen)} decoders, nothing found")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
