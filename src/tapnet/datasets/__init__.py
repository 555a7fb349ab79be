"""Datasets: a name and a split in, an ImageSet out. To add one: a file here, a line in DATASETS, a test file."""

from __future__ import annotations

from pathlib import Path

from tapnet.datasets.base import Dataset
from tapnet.datasets.imageset import ImageSet
from tapnet.datasets.quickdraw import QUICKDRAW

__all__ = ["DATASETS", "Dataset", "ImageSet", "load_dataset"]

DATASETS: dict[str, Dataset] = {
    "quickdraw": QUICKDRAW,
}


def load_dataset(name: str, split: str, root: str | Path | None = None, turns: int | None = None) -> ImageSet:
    """One split of a dataset.

    `root` is where prepared datasets are kept; `turns` = 4 adds the rotations of each image as classes, 1 does not,
    None is what the dataset does of itself.
    """
    if name not in DATASETS:
        raise ValueError(f"Datasets are {', '.join(DATASETS)}, got {name!r}.")
    return DATASETS[name].load(split, None if root is None else Path(root), turns)
