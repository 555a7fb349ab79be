"""A CSV with a column of paths and a column of labels, and perhaps one of splits."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers import Log
from tapnet.data.readers.class_tree import SPLIT_NAMES, with_splits
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, normalize_name, sort_classes
from tapnet.errors import UserError

COLUMNS = {"path": ("path", "filename", "file", "image"), "label": ("label", "class"), "split": ("split", "set")}


class Line(NamedTuple):
    """One image of the table; `split` is empty if the table has no such column."""

    path: str
    label: str
    split: str


def csv_table(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read the images that the table names; paths are relative to its folder."""
    table = tree.focus or next((name for name in tree.names if "/" not in name and name.endswith(".csv")), None)
    lines = list(_lines(tree, table)) if table is not None and table.lower().endswith(".csv") else []
    labels: dict[str, str] = {}
    declared: dict[str, set[str]] = {split: set() for split in SPLITS}
    for line in lines:
        if labels.setdefault(line.path, line.label) != line.label:
            raise UserError(
                f"{table} gives {line.path} two labels, {labels[line.path]!r} and {line.label!r}: keep one."
            )
        if line.split and line.split.lower() not in SPLIT_NAMES:
            raise UserError(f"Splits in {table} are {', '.join(SPLIT_NAMES)}, got {line.split!r} for {line.path}.")
        if line.split:
            declared[SPLIT_NAMES[line.split.lower()]].add(line.label)
    classes: dict[str, list[str]] = {}
    for path, label in labels.items():
        classes.setdefault(label, []).append(path)
    if not classes:
        return None
    return with_splits(Source("a CSV of paths and labels", sort_classes(classes), tree.read), declared)


def _lines(tree: FileTree, table: str) -> Iterator[Line]:
    rows = csv_rows(tree, table)
    places = _places(rows[0]) if rows else None
    if places is None:
        return
    for row in rows if is_image_name(rows[0][0]) else rows[1:]:
        cells = [row[place] if place is not None and place < len(row) else "" for place in places]
        if not cells[0] or not cells[1]:
            raise UserError(f"Expected a path and a label on every line of {table}, got {','.join(row)!r}.")
        yield Line(_path_inside(tree.path, cells[0], table), normalize_name(cells[1]), cells[2])


def csv_rows(tree: FileTree, name: str) -> list[list[str]]:
    """Return the rows of a CSV file that are not empty, without blanks around their cells."""
    reader = csv.reader(io.StringIO(tree.read_text(name)))
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: not comma-separated values ({error}).") from None


def _path_inside(folder: Path, path: str, table: str) -> str:
    """Return the path from the folder of the table; raise UserError if it leads out of that folder."""
    inside = posixpath.normpath(path.replace("\\", "/"))
    if Path(inside).is_absolute():
        inside = posixpath.relpath(inside, folder.absolute().as_posix())
    if inside.startswith("../") or re.match(r"[A-Za-z]:", inside):
        raise UserError(f"{table} names {path!r}, which is outside its folder: put the CSV above all of its images.")
    return inside


def _places(first: list[str]) -> tuple[int | None, ...] | None:
    """Return the columns of path, label and split by the header, or in that order; None if this is not such a table."""
    header = [cell.lower() for cell in first]
    places = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS.values()]
    if places[0] is not None and places[1] is not None:
        return tuple(places)
    return (0, 1, 2) if len(first) > 1 and is_image_name(first[0]) else None
