"""Images by dataset and split, and the episodes drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tapnet.data.catalog import DATASETS
from tapnet.data.catalog.folder import FOLDER
from tapnet.data.dataset import Dataset
from tapnet.data.image_set import ImageSet
from tapnet.data.packed import data_root, is_packed, open_packed

__all__ = ["DATASETS", "Dataset", "ImageSet", "load_dataset"]


def load_dataset(
    name: str,
    split: str,
    root: str | Path | None = None,
    turns: int | Mapping[str, int] | None = None,
    apart: bool = False,
    **unknown: object,
) -> ImageSet:
    """One split of a dataset: of those in DATASETS, or of one that was prepared under a name of its own.

    `root` is where prepared datasets are kept; `turns` = 4 adds the rotations of each image as classes, 1 does not,
    for all splits or for each by name; where nothing is said the dataset decides (Omniglot: rotations in training, none
    in validation and test). `apart` keeps the rotations of one image class out of each other's episodes.
    """
    if unknown:
        raise ValueError(f"The options of a dataset are `turns` and `apart`, got {', '.join(unknown)}.")
    if isinstance(turns, Mapping):
        turns = turns.get(split)
    folder = data_root(root)
    if name in DATASETS:
        return replace(DATASETS[name].load(split, folder, turns), apart=apart)
    own = own_sets(folder)
    if name not in own:
        raise ValueError(f"Datasets are {', '.join([*DATASETS, *own])}, got {name!r}.")
    packed = open_packed(folder / name)
    usual = DATASETS.get(packed.manifest.dataset, FOLDER).turns.get(split, 1)
    return replace(packed.image_set(split, usual if turns is None else turns), apart=apart)


def own_sets(root: Path) -> list[str]:
    """The names of the datasets that were prepared in `root` under names of their own."""
    found = sorted(path.name for path in root.iterdir() if is_packed(path)) if root.is_dir() else []
    return [name for name in found if name not in DATASETS and not name.startswith(".")]
