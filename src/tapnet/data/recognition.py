"""What a path holds: the first form of the dataset that reads it, and which classes are of which split."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path

from tapnet.data.dataset import Dataset
from tapnet.data.readers import Say
from tapnet.data.readers.file_tree import FileTree, Folder, open_file_tree
from tapnet.data.source import SPLITS, Source, some
from tapnet.wording import pluralize

BESIDE = (".csv", ".npz", ".pickle", ".pkl")  # files that have others of the same dataset beside them
SHARES = {"train": 0.64, "val": 0.16}  # of the classes, as in miniImageNet; the rest is test


def recognise(dataset: Dataset, path: Path, say: Say) -> Source:
    """The images of the dataset at a path; what is no known form of it is refused with the forms that are."""
    tree = _tree(path)
    say_once = cache(say)  # a pickle is read once for its classes and again for its images
    for form in dataset.forms:
        source = form.read(tree, dataset.splits, say_once)
        if source is not None:
            found = source if dataset.refine is None else dataset.refine(source)
            found.version = tree.version
            counts = f"{pluralize(len(found.classes), 'class')}, {pluralize(len(found), 'image')}"
            say(f"Recognised {path} as {found.form}: {counts}.")
            return found
    names = some(tree.names, 3) or "nothing"
    raise ValueError(
        f"{path} is no form of {dataset.name} that can be read; it holds {names}. Needed one of: "
        f"{'; '.join(form.words for form in dataset.forms)}."
    )


def _tree(path: Path) -> FileTree:
    beside = path.is_file() and path.suffix.lower() in BESIDE
    return Folder(path.parent, focus=path.name) if beside else open_file_tree(path)


def splits_for(dataset: Dataset, source: Source, seed: int) -> dict[str, tuple[str, ...]]:
    """The classes of each split: by the dataset's lists, else as the files say, else drawn by the seed."""
    listed = {split: [name for name in names if name in source.classes] for split, names in dataset.splits.items()}
    said = source.splits or ({} if dataset.splits else drawn_splits(source.classes, seed))
    for split, names in said.items():
        listed.setdefault(split, []).extend(name for name in names if name not in dataset.classes)
    return {split: tuple(names) for split, names in listed.items()}


def drawn_splits(classes: Collection[str], seed: int) -> dict[str, list[str]]:
    """Classes dealt out by a hash of seed and name, so that no library's shuffle and no file system decides."""
    order = sorted(classes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    train, val = (round(share * len(order)) for share in SHARES.values())
    parts = (order[:train], order[train : train + val], order[train + val :])
    return {split: sorted(part) for split, part in zip(SPLITS, parts, strict=True)}
