"""Any tree of folders, each folder with images in it a class; `train/`, `val/` and `test/` above them are splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePosixPath

from tapnet.data.decoding import is_image_name
from tapnet.data.readers import Say
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, in_order, normal, some

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def class_tree(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """Classes are named by their path below what all images have in common, and below the split."""
    folders = {name: PurePosixPath(normal(name)).parent.parts for name in tree.names if is_image_name(name)}
    common = _common([parts[:-1] for parts in folders.values()])
    inside = {name: parts[common:] for name, parts in folders.items()}
    has_splits = any(len(parts) > 1 and parts[0].lower() in SPLIT_NAMES for parts in inside.values())
    classes: dict[str, list[str]] = {}
    said: dict[str, set[str]] = {split: set() for split in SPLITS}
    loose: list[str] = []
    for name, parts in inside.items():
        split = SPLIT_NAMES.get(parts[0].lower()) if parts and has_splits else None
        label = "/".join(parts[1:] if split else parts)
        if not label:
            loose.append(name)
            continue
        classes.setdefault(label, []).append(name)
        if split:
            said[split].add(label)
    if not classes:
        return None
    source = Source("a folder of images by class", in_order(classes), tree.read)
    others = [name for name in tree.names if not is_image_name(name)]
    for left, why in ((loose, "in no class folder"), (others, "no image by its name"), (tree.empty, "an empty folder")):
        if left:
            source.notes.append(f"Left out, {why}: {some(left)}.")
    return with_splits(source, said)


def _common(folders: Sequence[Sequence[str]]) -> int:
    """How many leading folders all of them share."""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return sum(1 for _ in levels)


def with_splits(source: Source, said: dict[str, set[str]]) -> Source:
    """The source with the splits that its folders or table say, unless these part images and not classes."""
    placed = sum(map(len, said.values()))
    if placed == len(set().union(*said.values())) == len(source.classes):
        source.splits = {split: sorted(names) for split, names in said.items()}
    elif placed:
        source.notes.append("Its splits share classes or leave some out, so all images were joined and split by class.")
    return source
