"""What drawings share: their frame, their texts, their colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["drawing", "text"]

_STYLE: Final = (
    "text { font-family: sans-serif; fill: #1b2733; } .h { font-size: 15px; font-weight: 600; }"
    " .t { font-size: 13px; } .s { font-size: 12px; fill: #5b6b7b; }"
    " @media (prefers-color-scheme: dark) { text { fill: #dde5ee; } .s { fill: #9fb0c1; }"
    ' rect[fill="#fff"] { fill: #1b2129; } [stroke="#e3e8ed"] { stroke: #3a4551; } }'
)


def drawing(title: str, width: int, height: int, body: Sequence[str]) -> str:
    """Return a drawing on its own ground, with elements of the classes `h`, `t` and `s`."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str, anchor: str = "start") -> str:
    """Return a text of a class; `anchor` says which part of it is at x."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )
