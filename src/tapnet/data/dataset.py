"""What defines a dataset: its name, splits and expected counts, its downloads, and the forms in which it is read."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from tapnet.data.packed import Packed, is_packed, open_packed
from tapnet.data.readers import SPLITS, Source, Splits
from tapnet.data.readers.files import FileTree, open_file_tree
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import data_root
from tapnet.text import abbreviate, pluralize

MULTI_FILE = (".csv", ".npz", ".pickle", ".pkl")  # forms of several files in one folder
SHARES = {"train": 0.64, "val": 0.16}  # of the classes, as in miniImageNet; the rest is test
TIMEOUT = 30.0
Reader = Callable[[FileTree], Source | None]


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
    formats: Mapping[str, Reader] = field(default_factory=dict)  # description of a form: the function that reads it
    downloads: Mapping[str, str] = field(default_factory=dict)  # address of a file: its published MD5
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

    def recognize(self, path: Path, log: Callable[[str], None]) -> Source:
        """Return the images of the dataset at a path; raise UserError if none of its formats is there."""
        one_of_several = path.is_file() and path.suffix.lower() in MULTI_FILE
        tree = FileTree(path.parent, focus=path.name) if one_of_several else open_file_tree(path)
        tree.known, tree.log = self.classes, cache(log)  # a pickle is read once for its classes, again for its images
        source = next(filter(None, (read(tree) for read in self.formats.values())), None)
        if source is None:
            names = abbreviate(tree.names, 3) or "nothing"
            expected = f"Expected one of: {'; '.join(self.formats)}."
            raise UserError(f"{path} is not a known form of {self.name}; it holds {names}. {expected}")
        source = source if self.refine is None else self.refine(source)
        source.version = tree.version
        if not source.names:
            raise UserError(f"{path} was recognized as {source.format}, but it holds no image.")
        counts = f"{pluralize(len(source.classes), 'class')}, {pluralize(len(source.names), 'image')}"
        log(f"Recognized {path} as {source.format}: {counts}.")
        return source

    def split_classes(self, source: Source, seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each split: by the published lists, else as the files declare, else by the seed."""
        listed = {split: [name for name in names if name in source.classes] for split, names in self.splits.items()}
        declared = source.splits or ({} if self.splits else random_splits(source.classes, seed))
        for split, names in declared.items():
            listed.setdefault(split, []).extend(name for name in names if name not in self.classes)
        return {split: tuple(names) for split, names in listed.items()}


def random_splits(classes: Collection[str], seed: int) -> dict[str, list[str]]:
    """Return a split of the classes by a hash of seed and name, the same for every library and file system."""
    order = sorted(classes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    train, val = (round(share * len(order)) for share in SHARES.values())
    parts = (order[:train], order[train : train + val], order[train + val :])
    return {split: sorted(part) for split, part in zip(SPLITS, parts, strict=True)}


def listed_splits(name: str, *more: str) -> dict[str, tuple[str, ...]]:
    """Return the bundled class lists of a dataset, for train, val, test and `more`: the first cell of every line."""
    folder = files("tapnet.data.catalog") / "splits" / name
    lists = {}
    for split in (*SPLITS, *more):
        ending = "csv" if (folder / f"{split}.csv").is_file() else "txt"
        lines = (folder / f"{split}.{ending}").read_text("utf-8").splitlines()
        lists[split] = tuple(line.partition(",")[0] for line in lines)
    return lists


class _Progress:
    """What pooch takes for a progress bar."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report, self.total, self.done = report, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.report(self.done, max(self.total, self.done))

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def download(url: str, md5: str, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """Return the path of the complete, checked file in `folder`; what is there already is not fetched again."""
    import pooch  # takes a third of a second
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    fetch = pooch.HTTPDownloader(progressbar=_Progress(progress), timeout=TIMEOUT)
    name = url.rpartition("/")[2]
    try:
        return Path(pooch.retrieve(url, f"md5:{md5}", name, folder, downloader=fetch))
    except (RequestException, OSError) as error:
        raise ConnectionError(
            f"{url} could not be fetched ({error}). Run the same command again when there is a network, "
            f"or fetch {name} elsewhere, put it into a folder and run `tapnet data prepare` on that."
        ) from None
    except ValueError as error:
        raise UserError(f"{url} has another content than was published, try again: {error}") from None
