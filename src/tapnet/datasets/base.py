"""The contract of a dataset: its name, its splits, its expected counts, and how one split of it becomes an ImageSet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tapnet.datasets.imageset import ImageSet


@dataclass(frozen=True)
class Dataset(ABC):
    """What is known of a dataset before any image is read."""

    name: str
    summary: str
    image_shape: tuple[int, int, int]  # height, width, channels
    images_per_class: int
    splits: Mapping[str, tuple[str, ...]]  # the classes of each split, in the order of their labels

    @abstractmethod
    def load(self, split: str, root: Path | None = None, turns: int | None = None) -> ImageSet:
        """One split of it; `root` is where prepared datasets are kept, `turns` = 4 adds rotations as classes."""

    def classes_of(self, split: str) -> tuple[str, ...]:
        """The class names of a split; a split that is not there is refused with the choices."""
        if split not in self.splits:
            raise ValueError(f"Dataset {self.name!r} has the splits {', '.join(self.splits)}, got {split!r}.")
        return self.splits[split]


def listed_splits(name: str) -> dict[str, tuple[str, ...]]:
    """The committed class lists of a dataset, train, val and test, and train and val together as `trainval`."""
    folder = files("tapnet.datasets") / "splits" / name
    lists = {split: tuple((folder / f"{split}.txt").read_text("utf-8").splitlines()) for split in SPLITS}
    return {**lists, "trainval": tuple(sorted(lists["train"] + lists["val"]))}


SPLITS = ("train", "val", "test")
