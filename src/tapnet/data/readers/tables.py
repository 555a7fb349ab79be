"""Tables (CSV) that name images and their classes, beside the images."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers.files import FileTree
from tapnet.data.readers.folders import SPLIT_NAMES, declare_splits
from tapnet.data.source import SPLITS, Log, Source, Splits, normalize_name, skipped, sort_classes
from tapnet.errors import UserError

COLUMNS = {"path": ("path", "filename", "file", "image"), "label": ("label", "class"), "split": ("split", "set")}


def csv_lists(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read `train.csv`, `val.csv` and `test.csv`, whose images may be anywhere in the tree; None if none is there."""
    images = {PurePosixPath(name).name: name for name in tree.names if is_image_name(name)}
    classes: dict[str, set[str]] = {}
    declared: dict[str, list[str]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    for table in tree.names:
        split = PurePosixPath(table).stem
        if split not in SPLITS or not table.endswith(".csv"):
            continue
        for row in csv_rows(tree, table):
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
    if not classes:
        return None
    notes = skipped(missing, "listed but not found", "image")
    return Source("CSV lists with a folder of images", sort_classes(classes), tree.read, declared, notes)


def csv_table(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read a table of paths and labels, and perhaps splits; paths are relative to its folder."""
    table = tree.focus or next((name for name in tree.names if "/" not in name and name.endswith(".csv")), None)
    labels: dict[str, str] = {}
    declared: dict[str, set[str]] = {split: set() for split in SPLITS}
    lines = _lines(tree, table) if table is not None and table.lower().endswith(".csv") else ()
    for path, label, split in lines:
        if labels.setdefault(path, label) != label:
            raise UserError(f"{table} gives {path} two labels, {labels[path]!r} and {label!r}: keep one.")
        if split and split.lower() not in SPLIT_NAMES:
            raise UserError(f"Splits in {table} are {', '.join(SPLIT_NAMES)}, got {split!r} for {path}.")
        if split:
            declared[SPLIT_NAMES[split.lower()]].add(label)
    classes: dict[str, list[str]] = {}
    for path, label in labels.items():
        classes.setdefault(label, []).append(path)
    if not classes:
        return None
    source = Source("a CSV of paths and labels", sort_classes(classes), tree.read)
    declare_splits(source, declared)
    return source


def _lines(tree: FileTree, table: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, label and split, which may be empty, of every line; nothing if it is not such a table."""
    rows = csv_rows(tree, table)
    header = [cell.lower() for cell in rows[0]] if rows else []
    columns = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS.values()]
    if columns[0] is None or columns[1] is None:
        if len(header) < 2 or not is_image_name(header[0]):
            return
        columns = [0, 1, 2]  # it has no header
    for row in rows if is_image_name(rows[0][0]) else rows[1:]:
        path, label, split = (row[column] if column is not None and column < len(row) else "" for column in columns)
        if not path or not label:
            raise UserError(f"Expected a path and a label on every line of {table}, got {','.join(row)!r}.")
        yield _path_inside(tree.path, path, table), normalize_name(label), split


def _path_inside(folder: Path, path: str, table: str) -> str:
    """Return the path from the folder of the table; raise UserError if it leads out of that folder."""
    inside = posixpath.normpath(path.replace("\\", "/"))
    if Path(inside).is_absolute():
        inside = posixpath.relpath(inside, folder.absolute().as_posix())
    if inside.startswith("../") or re.match(r"[A-Za-z]:", inside):
        raise UserError(f"{table} names {path!r}, which is outside its folder: put the CSV above all of its images.")
    return inside


def csv_rows(tree: FileTree, name: str) -> list[list[str]]:
    """Return the rows of a CSV file that are not empty, without blanks around their cells."""
    reader = csv.reader(io.StringIO(tree.read_text(name)))
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: not comma-separated values ({error}).") from None
