"""Folders of images: named after the classes of a known dataset, or each a class of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from itertools import takewhile
from pathlib import PurePosixPath

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers.files import FileTree
from tapnet.data.source import SPLITS, Log, Source, Splits, normalize_name, skipped, sort_classes

NOT_AN_IMAGE = "not images by their suffix"
SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def folders_by_class(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read every image below a folder named after a known class, at any depth; the innermost such folder decides."""
    known = {name for names in splits.values() for name in names}
    depth = 1 + max(name.count("/") for name in known)
    classes: dict[str, list[str]] = {}
    unknown: Counter[str] = Counter()
    for name in filter(is_image_name, tree.names):
        folder = name.rpartition("/")[0]
        label = _known_folder(folder, known, depth)
        if label is None:
            unknown[folder or "."] += 1
        else:
            classes.setdefault(label, []).append(name)
    if not classes:
        return None
    notes = [
        *skipped([f"{folder} ({count:,})" for folder, count in sorted(unknown.items())], "of no class here", "folder"),
        *skipped([name for name in tree.names if not is_image_name(name)], NOT_AN_IMAGE),
    ]
    return Source("folders by class", sort_classes(classes), tree.read, notes=notes)


def _known_folder(folder: str, known: Container[str], depth: int) -> str | None:
    parts = normalize_name(folder).split("/")
    for end in range(len(parts), 0, -1):
        for width in range(1, min(depth, end) + 1):
            name = "/".join(parts[end - width : end])
            # CIFAR-100 has a class called train: further up, that is a split
            if name in known and (end == len(parts) or name not in SPLITS):
                return name
    return None


def class_tree(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read every folder of images as a class, named by its path below the common parent and the split.

    `train/`, `val/` and `test/` directly below the common parent are splits.
    """
    folders = {name: PurePosixPath(normalize_name(name)).parent.parts for name in tree.names if is_image_name(name)}
    levels = zip(*(parts[:-1] for parts in folders.values()), strict=False)
    common = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))  # leading folders that all share
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
    declare_splits(source, declared)
    return source


def declare_splits(source: Source, declared: Mapping[str, set[str]]) -> None:
    """Give the source the splits that its folders or table declare, unless a class is in two of them or in none."""
    placed = sum(map(len, declared.values()))
    if placed == len(set().union(*declared.values())) == len(source.classes):
        source.splits = {split: sorted(names) for split, names in declared.items()}
    elif placed:
        source.notes.append("Its splits share classes or leave some out, so all images were joined and split by class.")
