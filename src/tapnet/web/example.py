"""The ready example: five drawings of each of five things, from the bundled set."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tapnet.data import load_dataset

NAME = "Five drawings of five things"
THINGS = {  # which of the drawings of each: those that people recognize at once
    "sailboat": (0, 1, 2, 5, 7),
    "cat": (0, 3, 5, 6, 9),
    "flower": (1, 2, 4, 9, 10),
    "clock": (0, 1, 4, 6, 8),
    "butterfly": (0, 1, 5, 6, 8),
}
_SIDE, _MARGIN = 112, 10


def example_images() -> dict[str, list[bytes]]:
    """Return for each thing its drawings as PNG files, ink dark on white."""
    drawings = load_dataset("quickdraw", "test")
    found = {}
    for thing, chosen in THINGS.items():
        rows = np.flatnonzero(drawings.labels == drawings.names.index(thing))[list(chosen)]
        found[thing] = [_png(pixels) for pixels in drawings.gather(rows)]
    return found


def _png(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(255 - pixels.squeeze(-1)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    image = ImageOps.expand(image, _MARGIN, fill=255)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
