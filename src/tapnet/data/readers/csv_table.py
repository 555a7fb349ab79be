"""A CSV with a column of paths and a column of labels, and perhaps one of splits."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import NamedTuple

from tapnet.data.decoding import is_image_name
from tapnet.data.readers import Say
from tapnet.data.readers.class_tree import SPLIT_NAMES, with_splits
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, in_order, normal

COLUMNS = {"path": ("path", "filename", "file", "image"), "label": ("label", "class"), "split": ("split", "set")}


class Line(NamedTuple):
    """One image of the table; `split` is empty where the table has no such column."""

    path: str
    label: str
    split: str


def csv_table(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """The images that the table names; paths count from the folder that it lies in."""
    table = tree.focus or next((name for name in tree.names if "/" not in name and name.endswith(".csv")), None)
    lines = list(_lines(tree, table)) if table is not None and table.lower().endswith(".csv") else []
    labels: dict[str, str] = {}
    said: dict[str, set[str]] = {split: set() for split in SPLITS}
    for line in lines:
        if labels.setdefault(line.path, line.label) != line.label:
            raise ValueError(
                f"{table} gives {line.path} two labels, {labels[line.path]!r} and {line.label!r}: keep one."
            )
        if line.split and line.split.lower() not in SPLIT_NAMES:
            raise ValueError(f"Splits in {table} are {', '.join(SPLIT_NAMES)}, got {line.split!r} for {line.path}.")
        if line.split:
            said[SPLIT_NAMES[line.split.lower()]].add(line.label)
    classes: dict[str, list[str]] = {}
    for path, label in labels.items():
        classes.setdefault(label, []).append(path)
    return with_splits(Source("a CSV of paths and labels", in_order(classes), tree.read), said) if classes else None


def _lines(tree: FileTree, table: str) -> Iterator[Line]:
    with tree.open(table) as stream:
        text = stream.read().decode("utf-8-sig", errors="replace")
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if any(row)]
    places = _places(rows[0]) if rows else None
    if places is None:
        return
    for row in rows if is_image_name(rows[0][0]) else rows[1:]:
        cells = [row[place] if place is not None and place < len(row) else "" for place in places]
        if not cells[0] or not cells[1]:
            raise ValueError(f"{table} needs a path and a label on every line, got {','.join(row)!r}.")
        yield Line(cells[0].replace("\\", "/").removeprefix("./"), normal(cells[1]), cells[2])


def _places(first: list[str]) -> tuple[int | None, ...] | None:
    """Which column is path, label and split, by the header or, without one, in that order; None if it is no table."""
    header = [cell.lower() for cell in first]
    places = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS.values()]
    if places[0] is not None and places[1] is not None:
        return tuple(places)
    return (0, 1, 2) if len(first) > 1 and is_image_name(first[0]) else None
