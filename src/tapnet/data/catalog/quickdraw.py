"""Quick, Draw!, which is inside the package, so that everything works before any download."""

from __future__ import annotations

import hashlib
import lzma
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapnet import __version__
from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.packed import Manifest, Packed
from tapnet.data.preprocessing import Preprocessing

PER_CLASS = 100
SHA256 = "eecfdcd62679875bc0be776fef543a452649be11351101b25aeffa4712da17ef"  # printed by tools/build_quickdraw.py


class QuickDraw(Dataset):
    """The bundled drawings, which need no preparation; `root` is ignored."""

    def open(self, root: Path | None = None) -> Packed:  # noqa: ARG002
        manifest = Manifest(
            name=self.name,
            dataset=self.name,
            source="the file in the package",
            preprocessing=Preprocessing(*self.row_shape, ink=self.ink, centred=True, full_contrast=True),
            resized=0,
            classes=dict.fromkeys(sorted(self.classes), PER_CLASS),
            splits=self.splits,
            left_out={},
            notes=(),
            sha256=SHA256,
            tapnet=__version__,
        )
        return Bundled(Path(str(files("tapnet.data.catalog") / "files")), manifest)


class Bundled(Packed):
    """The drawings in the compressed file of the package instead of a folder."""

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        return bundled_drawings()

    def digest(self) -> str:
        return hashlib.sha256(_compressed()).hexdigest()

    def row_names(self) -> list[str]:
        return [f"{name} {number}" for name, count in self.manifest.classes.items() for number in range(count)]


@cache
def bundled_drawings() -> NDArray[np.uint8]:
    """Return all drawings, (34500, 28, 28, 1), bright ink on black, classes in sorted order."""
    pairs = np.frombuffer(lzma.decompress(_compressed()), dtype=np.uint8)
    levels = np.stack([pairs >> 4, pairs & 15], axis=1)
    pixels = (levels * np.uint8(17)).reshape(-1, 28, 28, 1)
    pixels.setflags(write=False)
    return pixels


def _compressed() -> bytes:
    return (files("tapnet.data.catalog") / "files" / "quickdraw.xz").read_bytes()


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
