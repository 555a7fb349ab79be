"""Quick, Draw!: 345 classes of 100 drawings, inside the package, so that everything works before any download."""

from __future__ import annotations

import hashlib
import lzma
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapnet.datasets.base import Dataset, listed_splits
from tapnet.datasets.imageset import ImageSet, Indices
from tapnet.datasets.packed import split_of

PER_CLASS = 100


class QuickDraw(Dataset):
    """The bundled drawings; nothing needs preparing and `root` is not looked at."""

    def load(self, split: str, root: Path | None = None, turns: int | None = None) -> ImageSet:  # noqa: ARG002
        pixels, digest = bundled_drawings()
        splits = {**self.splits, "all": tuple(sorted(self.classes))}
        first = {name: PER_CLASS * place for place, name in enumerate(splits["all"])}

        def rows_of(name: str) -> Indices:
            return np.arange(PER_CLASS, dtype=np.int64) + first[name]

        return split_of(self.name, split, splits, rows_of, pixels, digest, 1 if turns is None else turns)


@cache
def bundled_drawings() -> tuple[NDArray[np.uint8], str]:
    """All drawings, (34500, 28, 28, 1), ink bright on black, classes in sorted order, and the sha-256 of their file."""
    packed = (files("tapnet.datasets") / "data" / "quickdraw.xz").read_bytes()
    pairs = np.frombuffer(lzma.decompress(packed), dtype=np.uint8)
    levels = np.stack([pairs >> 4, pairs & 15], axis=1)
    pixels = (levels * np.uint8(17)).reshape(-1, 28, 28, 1)
    pixels.setflags(write=False)
    return pixels, hashlib.sha256(packed).hexdigest()


QUICKDRAW = QuickDraw(
    name="quickdraw",
    summary="Quick, Draw!: 345 classes of drawings",
    row_shape=(28, 28, 1),
    origin="Bundled with this package; Google, CC BY 4.0.",
    splits=listed_splits("quickdraw"),
    images=34_500,
    images_per_class=PER_CLASS,
    ink="bright",
)
