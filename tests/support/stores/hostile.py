"""A store whose names and bodies try to be more than text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from tests.support.stores.storebuilder import StoreBuilder

__all__ = ["BODIES", "GROUP", "SCRIPT", "TOPICS", "hostile_store"]

SCRIPT = "<script>alert(1)</script>"
TOPICS = (
    "<img src=x onerror=alert(1)>",
    "\" onmouseover='alert(1)' x=\"",
    "<title>x<body onload=alert(1)>",
    "javascript:alert(1)",
    "a&lt;b&#x27;%3Cscript%3E",
    "漢字 ünï 😀",
)
GROUP = "<b onclick=alert(6)>"
BODIES = (
    SCRIPT.encode(),
    b"</pre></main><script>alert(2)</script>",
    b'{"a": "</pre><script>alert(3)</script>", "b": "\\ud800", "c": 1e999}',
    b"\xff\xfe\x00<script>alert(4)</script>",
    "\u202ereversed\x1b[31m".encode(),
    b"--><!--<![CDATA[",
    b"[" * 100_000,
)


def hostile_store(path: Path) -> None:
    """Write what no broker accepts, as somebody with access to the files can."""
    with StoreBuilder(path, segment_size=1 << 20, queue_entries=100, index=(100, 500)) as store:
        for topic in TOPICS:
            count = len(BODIES)
            store.append(
                pa.record_batch(
                    {
                        "topic": pa.array([topic] * count),
                        "body": pa.array(BODIES, pa.binary()),
                        "properties": pa.array(
                            [f"KEYS\x01{SCRIPT}\x02TAGS\x01'\"><svg/onload=alert(5)>"] * count,
                        ).cast(pa.binary()),
                    }
                )
            )
        store.flush()
    table = {f"{TOPICS[3]}@{GROUP}": {"0": 1}}
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
