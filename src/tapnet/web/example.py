"""The ready example: five drawings of each of five things, from the bundled set."""

from __future__ import annotations

import io
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tapnet.data import load_dataset

NAME = "Five drawings of five things"
THINGS = ("sailboat", "cat", "flower", "clock", "butterfly")
_EACH = 5  # the first of each, whatever they look like: the accuracy on the page is that of drawings nobody chose
_SIDE, _MARGIN = 112, 10


def example_images() -> dict[str, list[bytes]]:
    """Return for each thing its drawings as PNG files, ink dark on white."""
    drawings = load_dataset("quickdraw", "test")
    found = {}
    for thing in THINGS:
        rows = np.flatnonzero(drawings.labels == drawings.names.index(thing))[:_EACH]
        found[thing] = [_png(pixels) for pixels in drawings.gather(rows)]
    return found


def random_drawing(name: str = "") -> bytes:
    """Return a drawing that the example does not show, of the thing named or, if there is none, of any."""
    drawings = load_dataset("quickdraw", "test")
    known = name.lower() in drawings.names
    label = drawings.names.index(name.lower()) if known else random.randrange(len(drawings.names))
    rows = np.flatnonzero(drawings.labels == label)[_EACH:]
    return _png(drawings.gather(rows[[random.randrange(len(rows))]])[0])


def _png(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(255 - pixels.squeeze(-1)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    image = ImageOps.expand(image, _MARGIN, fill=255)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
