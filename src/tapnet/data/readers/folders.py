"""Folders of images, named after the classes of a known dataset or each a class of its own, and tables that name them.

Tables are CSV files, which list images and their classes and lie beside the images.
"""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path, PurePosixPath

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers import SPLITS, Source, skipped, sort_classes
from tapnet.data.readers.files import FileTree
from tapnet.errors import UserError
from tapnet.text import normalize_name

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
COLUMNS = (("path", "filename", "file", "image"), ("label", "class"), ("split", "set"))  # what each may be called


def folders_by_class(tree: FileTree) -> Source | None:
    """Read every image below a folder named after a known class, at any depth; the innermost such folder decides."""
    depth = 1 + max(name.count("/") for name in tree.known)

    def label_of(folder: str) -> str | None:
        parts = normalize_name(folder).split("/")
        for end in range(len(parts), 0, -1):
            for width in range(1, min(depth, end) + 1):
                name = "/".join(parts[end - width : end])
                # CIFAR-100 has a class called train: further up, that is a split
                if name in tree.known and (end == len(parts) or name not in SPLITS):
                    return name
        return None

    images: dict[str, str] = {}
    unknown: Counter[str] = Counter()
    for name in filter(is_image_name, tree.names):
        folder = name.rpartition("/")[0]
        if label := label_of(folder):
            images[name] = label
        else:
            unknown[folder or "."] += 1
    folders = [f"{folder} ({count:,})" for folder, count in sorted(unknown.items())]
    return _source("folders by class", tree, images, [*skipped(folders, "of no class here", "folder"), *_others(tree)])


def class_tree(tree: FileTree) -> Source | None:
    """Read every folder of images as a class, named by its path below the common parent and the split.

    `train/`, `val/` and `test/` directly below the common parent are splits.
    """
    folders = {name: PurePosixPath(normalize_name(name)).parent.parts for name in tree.names if is_image_name(name)}
    levels = zip(*(parts[:-1] for parts in folders.values()), strict=False)
    common = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))  # leading folders that all share
    inside = {name: parts[common:] for name, parts in folders.items()}
    has_splits = any(len(parts) > 1 and parts[0].lower() in SPLIT_NAMES for parts in inside.values())
    labels: dict[str, str] = {}
    declared: dict[str, set[str]] = {split: set() for split in SPLITS}
    for name, parts in inside.items():
        split = SPLIT_NAMES.get(parts[0].lower()) if parts and has_splits else None
        labels[name] = "/".join(parts[1:] if split else parts)
        if split and labels[name]:
            declared[split].add(labels[name])
    loose = skipped([name for name, label in labels.items() if not label], "not in a class folder")
    images = {name: label for name, label in labels.items() if label}
    return _source("a folder of images by class", tree, images, [*loose, *_others(tree)], declared)


def _others(tree: FileTree) -> list[str]:
    return skipped([name for name in tree.names if not is_image_name(name)], "not images by their suffix")


def _source(
    form: str,
    tree: FileTree,
    labels: Mapping[str, str],
    notes: list[str],
    declared: Mapping[str, set[str]] | None = None,
) -> Source | None:
    """Return the source of images with these labels, or None if there is none.

    It gets the splits that folders or a table declare, unless a class is in two of them or in none.
    """
    if not labels:
        return None
    classes: dict[str, list[str]] = {}
    for name, label in labels.items():
        classes.setdefault(label, []).append(name)
    source = Source(form, sort_classes(classes), tree.read, notes=notes)
    placed = [label for names in (declared or {}).values() for label in names]
    if declared and len(placed) == len(set(placed)) == len(classes):
        source.splits = {split: sorted(names) for split, names in declared.items()}
    elif placed:
        notes.append("Its splits share classes or leave some out, so all images were joined and split by class.")
    return source


def csv_lists(tree: FileTree) -> Source | None:
    """Read `train.csv`, `val.csv` and `test.csv`, whose images may be anywhere in the tree; None if none is there."""
    images = {PurePosixPath(name).name: name for name in tree.names if is_image_name(name)}
    classes: dict[str, set[str]] = {}
    declared: dict[str, list[str]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    for table in tree.names:
        split = PurePosixPath(table).stem
        if split not in SPLITS or not table.endswith(".csv"):
            continue
        for row in _csv_rows(tree, table):
            image = PurePosixPath(row[0]).name
            if len(row) < 2 or not is_image_name(image):
                continue
            if image not in images:
                missing.append(image)
                continue
            label = normalize_name(row[1])
            if label not in classes:
                declared[split].append(label)
            classes.setdefault(label, set()).add(images[image])
    notes = skipped(missing, "listed but not found", "image")
    form = "CSV lists with a folder of images"
    return Source(form, sort_classes(classes), tree.read, declared, notes) if classes else None


def csv_table(tree: FileTree) -> Source | None:
    """Read a table of paths and labels, and perhaps splits; paths are relative to its folder."""
    table = tree.focus or next((name for name in tree.names if "/" not in name and name.endswith(".csv")), "")
    labels: dict[str, str] = {}
    declared: dict[str, set[str]] = {split: set() for split in SPLITS}
    for path, label, split in _lines(tree, table) if table.lower().endswith(".csv") else ():
        if labels.setdefault(path, label) != label:
            raise UserError(f"{table} gives {path} two labels, {labels[path]!r} and {label!r}: keep one.")
        if split and split.lower() not in SPLIT_NAMES:
            raise UserError(f"Splits in {table} are {', '.join(SPLIT_NAMES)}, got {split!r} for {path}.")
        if split:
            declared[SPLIT_NAMES[split.lower()]].add(label)
    return _source("a CSV of paths and labels", tree, labels, [], declared)


def _lines(tree: FileTree, table: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, label and split, which may be empty, of every line; nothing if it is not such a table."""
    rows = _csv_rows(tree, table)
    header = [cell.lower() for cell in rows[0]] if rows else []
    columns = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS]
    if columns[0] is None or columns[1] is None:
        if len(header) < 2 or not is_image_name(header[0]):
            return
        columns = [0, 1, 2]  # it has no header
    for row in rows if is_image_name(rows[0][0]) else rows[1:]:
        path, label, split = (row[column] if column is not None and column < len(row) else "" for column in columns)
        if not path or not label:
            raise UserError(f"Expected a path and a label on every line of {table}, got {','.join(row)!r}.")
        inside = posixpath.normpath(path.replace("\\", "/"))
        if Path(inside).is_absolute():
            inside = posixpath.relpath(inside, tree.path.absolute().as_posix())
        if inside.startswith("../") or re.match(r"[A-Za-z]:", inside):
            raise UserError(f"{table} names {path!r}, which is outside its folder: put the CSV above all its images.")
        yield inside, normalize_name(label), split


def _csv_rows(tree: FileTree, name: str) -> list[list[str]]:
    """Return the rows of a CSV file that are not empty, without blanks around their cells."""
    reader = csv.reader(io.StringIO(tree.read_text(name)))
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: not comma-separated values ({error}).") from None
