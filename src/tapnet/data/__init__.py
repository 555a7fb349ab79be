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
    rotations: int | Mapping[str, int] | None = None,
    one_rotation_per_class: bool = False,
    **unknown: object,
) -> ImageSet:
    """One split of a dataset: of those in DATASETS, or of one that was prepared under a name of its own.

    `root` is where prepared datasets are kept; `rotations` = 4 adds the rotations of each image as classes, 1 does not,
    for all splits or for each by name; where nothing is said the dataset decides (Omniglot: rotations in training, none
    in validation and test). `one_rotation_per_class` keeps two rotations of one class out of the same episode.
    """
    if unknown:
        raise ValueError(
            f"The options of a dataset are `rotations` and `one_rotation_per_class`, got {', '.join(unknown)}."
        )
    if isinstance(rotations, Mapping):
        rotations = rotations.get(split)
    folder = data_root(root)
    if name in DATASETS:
        return replace(DATASETS[name].load(split, folder, rotations), one_rotation_per_class=one_rotation_per_class)
    own = own_sets(folder)
    if name not in own:
        raise ValueError(f"Datasets are {', '.join([*DATASETS, *own])}, got {name!r}.")
    packed = open_packed(folder / name)
    usual = DATASETS.get(packed.manifest.dataset, FOLDER).rotations.get(split, 1)
    return replace(
        packed.image_set(split, usual if rotations is None else rotations),
        one_rotation_per_class=one_rotation_per_class,
    )


def own_sets(root: Path) -> list[str]:
    """The names of the datasets that were prepared in `root` under names of their own."""
    found = sorted(path.name for path in root.iterdir() if is_packed(path)) if root.is_dir() else []
    return [name for name in found if name not in DATASETS and not name.startswith(".")]
