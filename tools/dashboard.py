"""Draw the dashboard of conf/monitoring with the figures of a Prometheus, for docs/operate.md.

python -m tools.dashboard 127.0.0.1:9090 MINUTES OUTPUT.png

Prometheus evaluates each panel's own expressions; the picture shows their results where the
dashboard places them. It is not a picture of Grafana.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import (
    EngFormatter,
    Formatter,
    FuncFormatter,
    MultipleLocator,
    PercentFormatter,
)
from PIL import Image

__all__ = ["draw"]

_BOARD: Final = Path(__file__).parents[1] / "conf" / "monitoring" / "dashboard.json"
_INTERVAL: Final = "30s"
"""What Grafana puts in place of $__rate_interval where Prometheus scrapes every 7.5 s."""
_STEP_S: Final = 5
_UNITS: Final = {"bytes": "B", "Bps": "B/s", "s": "s", "cps": "/s"}
_COLUMNS: Final = 24
_CM: Final = 1 / 2.54
_COLOURS: Final = 64
"""So many do, and the file is much smaller."""


def draw(prometheus: str, minutes: float, output: Path) -> None:
    """Draw all panels.

    Args:
        prometheus: `HOST:PORT` of a Prometheus.
        minutes: how far back from now the picture begins.
        output: a PNG.
    """
    panels = json.loads(_BOARD.read_text(encoding="utf-8"))["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    plt.rcParams.update({"font.size": 6, "axes.titlesize": 7, "legend.fontsize": 5})
    figure = plt.figure(figsize=(32 * _CM, rows * 0.8 * _CM))
    for panel in panels:
        at = panel["gridPos"]
        left, below = at["x"] + 1.1, rows - at["y"] - at["h"] + 0.9
        wide, high = at["w"] - 1.3, at["h"] - 2.0
        place = figure.add_axes((left / _COLUMNS, below / rows, wide / _COLUMNS, high / rows))
        place.set_title(panel["title"], loc="left", fontweight="bold")
        found = [
            (_legend(target["legendFormat"], series["metric"]), series["values"])
            for target in panel["targets"]
            for series in _series(prometheus, target["expr"], minutes)
        ]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if panel["type"] == "stat":
            _show_last(place, found, _ticks(unit))
        else:
            _show_lines(place, found, _ticks(unit))
    drawn = BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(output, optimize=True)


def _series(prometheus: str, expression: str, minutes: float) -> list[dict[str, Any]]:
    """Return the results of an expression: their labels, and pairs of times and texts."""
    asked = expression.replace("$__rate_interval", _INTERVAL).replace("$instance", ".*")
    now = time.time()
    query = {"query": asked, "start": now - 60 * minutes, "end": now, "step": _STEP_S}
    connection = http.client.HTTPConnection(prometheus, timeout=60)
    connection.request("GET", f"/api/v1/query_range?{urlencode(query)}")
    result: list[dict[str, Any]] = json.load(connection.getresponse())["data"]["result"]
    connection.close()
    return result


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), form)


def _ticks(unit: str) -> Formatter:
    if unit == "percentunit":
        return PercentFormatter(1)
    return EngFormatter(_UNITS.get(unit, ""))


def _show_last(place: Axes, found: list[tuple[str, Any]], ticks: Formatter) -> None:
    place.axis("off")
    place.yaxis.set_major_formatter(ticks)  # some ask their axis
    for number, (name, values) in enumerate(found):
        text = f"{name}   {ticks(float(values[-1][1]))}"
        place.text(0, 0.7 - 0.4 * number, text, fontsize=8, transform=place.transAxes)


def _show_lines(place: Axes, found: list[tuple[str, Any]], ticks: Formatter) -> None:
    for name, values in found:
        times = [float(at) for at, _ in values]
        place.plot(times, [float(text) for _, text in values], linewidth=0.8, label=name)
    place.xaxis.set_major_locator(MultipleLocator(60))
    place.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: time.strftime("%H:%M", time.gmtime(at)))
    )
    place.yaxis.set_major_formatter(ticks)
    place.grid(visible=True, linewidth=0.2)
    most = max((float(text) for _, values in found for _, text in values), default=0)
    place.set_ylim(0, 1.3 * most or 1)  # the legend is above
    if found:
        place.legend(loc="upper left", frameon=False, ncols=2)


if __name__ == "__main__":
    draw(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
