"""Find the format of the dataset at a path, and the classes of each split."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path

from tapnet.data.dataset import Dataset
from tapnet.data.readers import Log
from tapnet.data.readers.file_tree import Folder, open_file_tree
from tapnet.data.source import SPLITS, Source, abbreviate
from tapnet.errors import UserError
from tapnet.text import pluralize

MULTI_FILE = (".csv", ".npz", ".pickle", ".pkl")  # formats of several files in one folder
SHARES = {"train": 0.64, "val": 0.16}  # of the classes, as in miniImageNet; the rest is test


def recognize(dataset: Dataset, path: Path, log: Log) -> Source:
    """Return the images of the dataset at a path; raise UserError if it has none of the formats of the dataset."""
    one_of_several = path.is_file() and path.suffix.lower() in MULTI_FILE
    tree = Folder(path.parent, focus=path.name) if one_of_several else open_file_tree(path)
    log_once = cache(log)  # a pickle is read once for its classes and again for its images
    for candidate in dataset.formats:
        source = candidate.read(tree, dataset.splits, log_once)
        if source is not None:
            source = source if dataset.refine is None else dataset.refine(source)
            source.version = tree.version
            if not len(source):
                raise UserError(f"{path} was recognized as {source.format}, but it holds no image.")
            counts = f"{pluralize(len(source.classes), 'class')}, {pluralize(len(source), 'image')}"
            log(f"Recognized {path} as {source.format}: {counts}.")
            return source
    names = abbreviate(tree.names, 3) or "nothing"
    raise UserError(
        f"{path} is not a known form of {dataset.name}; it holds {names}. Expected one of: "
        f"{'; '.join(each.description for each in dataset.formats)}."
    )


def splits_for(dataset: Dataset, source: Source, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the classes of each split: by the dataset's lists, else as the files declare, else drawn by the seed."""
    listed = {split: [name for name in names if name in source.classes] for split, names in dataset.splits.items()}
    declared = source.splits or ({} if dataset.splits else drawn_splits(source.classes, seed))
    for split, names in declared.items():
        listed.setdefault(split, []).extend(name for name in names if name not in dataset.classes)
    return {split: tuple(names) for split, names in listed.items()}


def drawn_splits(classes: Collection[str], seed: int) -> dict[str, list[str]]:
    """Return a split of the classes by a hash of seed and name, the same for every library and file system."""
    order = sorted(classes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    train, val = (round(share * len(order)) for share in SHARES.values())
    parts = (order[:train], order[train : train + val], order[train + val :])
    return {split: sorted(part) for split, part in zip(SPLITS, parts, strict=True)}
