"""Images by dataset and split, and the episodes drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tapnet.data.catalog import DATASETS
from tapnet.data.dataset import Dataset
from tapnet.data.packed import ImageSet, Packed, is_packed, open_packed
from tapnet.errors import UserError
from tapnet.paths import data_root

__all__ = ["DATASETS", "Dataset", "ImageSet", "load_dataset", "open_dataset"]


def load_dataset(
    name: str,
    split: str,
    root: str | Path | None = None,
    rotations: int | Mapping[str, int] | None = None,
    one_rotation_per_class: bool = False,
    **unknown: object,
) -> ImageSet:
    """Return one split of a dataset, which is in DATASETS or was prepared under a name of its own.

    `root` is the folder of prepared datasets. `rotations=4` adds the rotations of each image as classes, `1` does not;
    a mapping sets it by split. By default the dataset decides (Omniglot: rotations in training, none in validation and
    test). `one_rotation_per_class` keeps two rotations of one class out of the same episode.
    """
    if unknown:
        raise UserError(f"The options of a dataset are rotations and one_rotation_per_class, got {', '.join(unknown)}.")
    if isinstance(rotations, Mapping):
        rotations = rotations.get(split)
    packed = open_dataset(name, root)
    if rotations is None:
        rotations = DATASETS.get(packed.manifest.dataset, DATASETS["folder"]).rotations.get(split, 1)
    return packed.image_set(split, rotations, one_rotation_per_class)


def open_dataset(name: str, root: str | Path | None = None) -> Packed:
    """Return the packed dataset of this name in `root`; raise UserError if there is none."""
    folder = data_root(root)
    if name in DATASETS:
        return DATASETS[name].open(folder)
    if name in (own := own_sets(folder)):
        return open_packed(folder / name)
    choices = ", ".join([*DATASETS, *own])
    raise UserError(f"There is no dataset {name!r} here: choose one of {choices}.", parameter="dataset")


def own_sets(root: Path) -> list[str]:
    """Return the names of the datasets in `root` that were prepared under names of their own."""
    names = sorted(path.name for path in root.iterdir() if is_packed(path)) if root.is_dir() else []
    return [name for name in names if name not in DATASETS and not name.startswith(".")]
