"""What defines a dataset: its name, splits and expected counts, and the formats in which it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from tapnet.data.packed import Packed, is_packed, open_packed
from tapnet.data.readers import Format
from tapnet.data.source import SPLITS, Source, Splits
from tapnet.errors import NotFoundError
from tapnet.paths import data_root


@dataclass(frozen=True)
class Dataset:
    """What is known about a dataset before any image is read; fields that are not published are empty."""

    name: str
    summary: str
    row_shape: tuple[int, int, int]  # height, width, channels
    origin: str  # where it comes from and under which terms
    splits: Splits = field(default_factory=dict)  # the classes of each split, in the order of their labels
    images: int | None = None  # in the published set
    images_per_class: int | None = None
    formats: tuple[Format, ...] = ()
    filter: str = "lanczos"
    published_filter: str = ""  # what is known of how the published images were resized
    ink: str | None = None  # of drawings: bright or dark when packed
    rotations: Mapping[str, int] = field(default_factory=dict)  # split: 4 if its rotations are classes by default
    refine: Callable[[Source], Source] | None = None  # keeps those of the images found that belong to the dataset

    @property
    def classes(self) -> set[str]:
        """Every class that the published set has."""
        return {name for split in SPLITS for name in self.splits.get(split, ())}

    def open(self, root: Path | None = None) -> Packed:
        """Return the packed dataset in `root`; raise NotFoundError if it is not prepared."""
        folder = data_root(root) / self.name
        if not is_packed(folder):
            raise NotFoundError(
                f"Dataset {self.name!r} is not prepared in {folder.parent}: run `tapnet data prepare {self.name} "
                "--from PATH`, or name the folder that holds it, here or in the variable TAPNET_DATA.",
                parameter="root",
            )
        return open_packed(folder)


def listed_splits(name: str, *more: str) -> dict[str, tuple[str, ...]]:
    """Return the bundled class lists of a dataset, for train, val, test and `more`: the first cell of every line."""
    folder = files("tapnet.data.catalog") / "splits" / name
    lists = {}
    for split in (*SPLITS, *more):
        ending = "csv" if (folder / f"{split}.csv").is_file() else "txt"
        lines = (folder / f"{split}.{ending}").read_text("utf-8").splitlines()
        lists[split] = tuple(line.partition(",")[0] for line in lines)
    return lists
