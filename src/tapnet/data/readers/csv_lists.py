"""`train.csv`, `val.csv` and `test.csv`, which name each image and its class, beside a folder of images."""

from __future__ import annotations

import csv
import io
from pathlib import PurePosixPath

from tapnet.data.decoding import is_image_name
from tapnet.data.readers import Say
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, in_order, normal, some


def csv_lists(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """The images that the lists name, wherever in the tree they lie; None if they name none of them."""
    lists = {name: PurePosixPath(name).stem for name in tree.names if PurePosixPath(name).suffix == ".csv"}
    lists = {name: split for name, split in lists.items() if split in SPLITS}
    images = {PurePosixPath(name).name: name for name in tree.names if is_image_name(name)}
    classes: dict[str, set[str]] = {}
    said: dict[str, list[str]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    for name, split in sorted(lists.items()):
        for image, label in _rows(tree, name):
            if image not in images:
                missing.append(image)
                continue
            if label not in classes:
                said[split].append(label)
            classes.setdefault(label, set()).add(images[image])
    if not classes:
        return None
    note = f"Listed and not there: {some(missing)}."
    return Source("CSV lists with a folder of images", in_order(classes), tree.read, said, [note] if missing else [])


def _rows(tree: FileTree, name: str) -> list[tuple[str, str]]:
    with tree.open(name) as stream:
        text = stream.read().decode("utf-8-sig", errors="replace")
    rows = [(row[0].strip(), row[1].strip()) for row in csv.reader(io.StringIO(text)) if len(row) >= 2]
    return [(PurePosixPath(image).name, normal(label)) for image, label in rows if is_image_name(image)]
