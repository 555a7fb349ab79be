"""`train.csv`, `val.csv` and `test.csv`, which name each image and its class, beside a folder of images."""

from __future__ import annotations

from pathlib import PurePosixPath

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers import Log
from tapnet.data.readers.csv_table import csv_rows
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, normalize_name, skipped, sort_classes


def csv_lists(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read the images that the lists name, wherever they are in the tree; None if none is there."""
    lists = {name: PurePosixPath(name).stem for name in tree.names if PurePosixPath(name).suffix == ".csv"}
    lists = {name: split for name, split in lists.items() if split in SPLITS}
    images = {PurePosixPath(name).name: name for name in tree.names if is_image_name(name)}
    classes: dict[str, set[str]] = {}
    declared: dict[str, list[str]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    for name, split in sorted(lists.items()):
        for image, label in _rows(tree, name):
            if image not in images:
                missing.append(image)
                continue
            if label not in classes:
                declared[split].append(label)
            classes.setdefault(label, set()).add(images[image])
    if not classes:
        return None
    notes = skipped(missing, "listed but not found", "image")
    return Source("CSV lists with a folder of images", sort_classes(classes), tree.read, declared, notes)


def _rows(tree: FileTree, name: str) -> list[tuple[str, str]]:
    rows = [(row[0], row[1]) for row in csv_rows(tree, name) if len(row) >= 2]
    return [(PurePosixPath(image).name, normalize_name(label)) for image, label in rows if is_image_name(image)]
