"""Small plots as inline SVG: a line over time, with its area. Colours are those of the style."""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore_spark.server.status.markup import Markup, element


def line(values: Sequence[float], what: str, *, width: int = 240, height: int = 48) -> Markup:
    """Return a plot of values at equal distances in time, the newest at the right.

    Args:
        values: not negative; fewer than two are drawn as an empty plot.
        what: what is plotted, for those who do not see it.
        width, height: in pixels.
    """
    top = max(values, default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    points = [
        (round(number * step, 1), round(height - 2 - (height - 4) * value / top, 1))
        for number, value in enumerate(values)
    ]
    drawn = []
    if len(points) > 1:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        ends = f"{points[-1][0]:g},{height} {points[0][0]:g},{height}"
        drawn = [
            element("polygon", class_="area", points=f"{path} {ends}"),
            element("polyline", class_="line", points=path),
        ]
    return element(
        "svg", element("title", what), drawn, class_="plot", role="img",
        viewBox=f"0 0 {width} {height}", width=width, height=height, preserveAspectRatio="none",
    )  # fmt: skip


def share(part: float, what: str, *, width: int = 240, height: int = 12) -> Markup:
    """Return a bar that is filled to a part, 0 to 1."""
    filled = round(width * min(1.0, max(0.0, part)), 1)
    return element(
        "svg",
        element("title", what),
        element("rect", class_="rest", width=width, height=height, rx=3),
        element("rect", class_="used", width=f"{filled:g}", height=height, rx=3),
        class_="bar", role="img", viewBox=f"0 0 {width} {height}", width=width, height=height,
        preserveAspectRatio="none",
    )  # fmt: skip
