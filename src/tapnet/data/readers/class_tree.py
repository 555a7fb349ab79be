"""Any tree of folders, each folder with images in it a class; `train/`, `val/` and `test/` above them are splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePosixPath

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers import Log
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import NOT_AN_IMAGE, SPLITS, Source, Splits, normalize_name, skipped, sort_classes

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def class_tree(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read every folder of images as a class, named by its path below the common parent and the split."""
    folders = {name: PurePosixPath(normalize_name(name)).parent.parts for name in tree.names if is_image_name(name)}
    common = _common([parts[:-1] for parts in folders.values()])
    inside = {name: parts[common:] for name, parts in folders.items()}
    has_splits = any(len(parts) > 1 and parts[0].lower() in SPLIT_NAMES for parts in inside.values())
    classes: dict[str, list[str]] = {}
    declared: dict[str, set[str]] = {split: set() for split in SPLITS}
    loose: list[str] = []
    for name, parts in inside.items():
        split = SPLIT_NAMES.get(parts[0].lower()) if parts and has_splits else None
        label = "/".join(parts[1:] if split else parts)
        if not label:
            loose.append(name)
            continue
        classes.setdefault(label, []).append(name)
        if split:
            declared[split].add(label)
    if not classes:
        return None
    source = Source("a folder of images by class", sort_classes(classes), tree.read)
    source.notes += [
        *skipped(loose, "not in a class folder"),
        *skipped([name for name in tree.names if not is_image_name(name)], NOT_AN_IMAGE),
        *skipped(tree.empty, "empty", "folder"),
    ]
    return with_splits(source, declared)


def _common(folders: Sequence[Sequence[str]]) -> int:
    """Return how many leading folders all paths share."""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return sum(1 for _ in levels)


def with_splits(source: Source, declared: dict[str, set[str]]) -> Source:
    """Return the source with the splits that its folders or table declare, unless a class is in two of them."""
    placed = sum(map(len, declared.values()))
    if placed == len(set().union(*declared.values())) == len(source.classes):
        source.splits = {split: sorted(names) for split, names in declared.items()}
    elif placed:
        source.notes.append("Its splits share classes or leave some out, so all images were joined and split by class.")
    return source
