"""Pictures that tests make for the documentation, when SCREENSHOTS=docs asks for them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

from PIL import Image

__all__ = ["save_picture"]

_MOST_BYTES: Final = 100_000


def save_picture(picture: bytes, path: Path) -> None:
    """Save a picture (PNG) with few colours: it is small then."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(64)
    image.save(path, optimize=True)
    assert path.stat().st_size < _MOST_BYTES
