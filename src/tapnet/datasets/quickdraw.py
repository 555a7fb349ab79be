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
from tapnet.datasets.imageset import ImageSet


class QuickDraw(Dataset):
    """The bundled drawings; nothing needs preparing and `root` is not looked at."""

    def load(self, split: str, root: Path | None = None, turns: int | None = None) -> ImageSet:  # noqa: ARG002
        names = self.classes_of(split)
        pixels, digest = bundled_drawings()
        everything = sorted(self.splits["trainval"] + self.splits["test"])
        first = np.array([everything.index(name) * self.images_per_class for name in names], dtype=np.int64)
        rows = (first[:, None] + np.arange(self.images_per_class)).reshape(-1)
        labels = np.repeat(np.arange(len(names), dtype=np.int64), self.images_per_class)
        fingerprint = hashlib.sha256(digest.encode() + rows.tobytes() + labels.tobytes()).hexdigest()
        return ImageSet(self.name, split, pixels, rows, labels, names, fingerprint, turns or 1)


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
    summary="345 classes of drawings, bundled",
    image_shape=(28, 28, 1),
    images_per_class=100,
    splits=listed_splits("quickdraw"),
)
