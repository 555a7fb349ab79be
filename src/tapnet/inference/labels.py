"""Labels as people have them beside folders: a CSV or JSON lines file of paths and classes. Nothing is decoded here.

The CSV and JSON lines of predictions are such files, so predictions corrected by hand are labels.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import LabeledFolder, Skipped
from tapnet.inference.predictor import UNKNOWN
from tapnet.text import normalize_name

PATHS, CLASSES = ("path", "file", "filename", "image"), ("label", "class")
_GUESS = "best_guess"  # a column of predictions of which some were rejected
_FORMS = "columns path,label or file,class"


class _Row(NamedTuple):
    line: int
    path: str
    label: str
    rejected: bool  # a prediction that nobody has corrected
    first: bool = False  # of a CSV file, so perhaps a heading that is not understood


def read_labels(path: str | Path) -> LabeledFolder:
    """Return the images of every class, by a .csv or .jsonl file of paths and classes.

    Paths are relative to the file or, where nothing is there, to the current folder. A CSV file may have a heading, in
    which path, file, filename or image names the column of paths and label or class that of classes; without one these
    are the first two. Predictions that were rejected and still say "unknown" are left out. Raise UserError with the
    number of the line if a row is wrong.
    """
    path, skipped = Path(path), Skipped()
    if not path.is_file():
        found = f"{path} is a folder" if path.is_dir() else f"There is no file {path}"
        raise NotFoundError(f"{found}: give a .csv or .jsonl file of paths and classes.")
    reader = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"Expected labels in a .csv or .jsonl file, got {path}.")
    classes: dict[str, list[Path]] = {}
    first: dict[Path, _Row] = {}
    for row in reader(path):
        image = _found(path, row)
        earlier = first.setdefault(image, row)
        if earlier.label != row.label:
            raise UserError(
                f"{path}, line {row.line}: {row.path} is of the class {row.label!r} here and of {earlier.label!r} in "
                f"line {earlier.line}: keep one."
            )
        if row.rejected:
            skipped.add(image, f'still labeled "{UNKNOWN}"')
        elif earlier is row:
            classes.setdefault(normalize_name(row.label), []).append(image)
    if not classes:
        raise UserError(f"{path} has no labeled image: expected {_FORMS}.")
    return LabeledFolder(classes, skipped)


def _found(labels: Path, row: _Row) -> Path:
    name = row.path.strip()
    if not name or not row.label:
        missing = "path" if not name else "class"
        raise UserError(f"{labels}, line {row.line}: expected a path and a class, got no {missing}.")
    choices = [folder / each for each in dict.fromkeys((row.path, name)) for folder in (labels.parent, Path())]
    image = next((found for found in (*choices, *map(_as_printed, choices)) if found and found.is_file()), None)
    if image is None:
        words = f"{labels}, line {row.line}: there is no file {name} in {labels.absolute().parent}."
        heading = f" If that line is a heading, it needs the {_FORMS}." if row.first and not Path(name).suffix else ""
        raise UserError(words + heading)
    return image


def _as_printed(path: Path) -> Path | None:
    """Return the one file or folder whose name is printed as that of this path, such as one with a line break in it."""
    parent = path.parent if path.parent.is_dir() or path.parent == path else _as_printed(path.parent)
    if parent is None or not parent.is_dir():
        return None
    found = [each for each in parent.iterdir() if normalize_name(each.name) == normalize_name(path.name)]
    return found[0] if len(found) == 1 else None


def _csv_rows(path: Path) -> Iterator[_Row]:
    lines = list(io.StringIO(_text(path), newline=""))  # `splitlines` would also cut at U+2028 and others
    delimiter = max(",;\t", key=lines[0].count) if lines else ","
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    columns: tuple[int, int, int | None] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            first = columns is None
            if columns is None:
                heading = _heading(cells)
                columns = heading or (0, 1, None)
                if heading:
                    continue
            of_path, of_class, of_guess = columns
            if len(cells) <= max(of_path, of_class):
                raise UserError(
                    f"{path}, line {reader.line_num}: expected a path and a class, got {delimiter.join(cells)!r}."
                )
            label = cells[of_class].strip()
            yield _Row(reader.line_num, cells[of_path], label, of_guess is not None and label == UNKNOWN, first)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not comma-separated values ({error}).") from None


def _heading(cells: list[str]) -> tuple[int, int, int | None] | None:
    """Return the columns of path, class and best guess if this is a heading, and `None` if it is a row."""
    names = [cell.strip().lower() for cell in cells]
    paths, classes = ([names.index(name) for name in known if name in names] for known in (PATHS, CLASSES))
    if not paths or not classes:
        return None
    return paths[0], classes[0], names.index(_GUESS) if _GUESS in names else None


def _json_rows(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{path}, line {number}: not a JSON object, got {line[:60]!r}.") from None
        named = values if isinstance(values, dict) else {}
        image, label = (next((named[key] for key in known if key in named), None) for known in (PATHS, CLASSES))
        if not isinstance(image, str) or not isinstance(label, str | int) or isinstance(label, bool):
            raise UserError(
                f'{path}, line {number}: expected {{"path": "…", "label": "…"}} or {{"file": "…", "class": "…"}}, got '
                f"{line[:60]!r}."
            )
        yield _Row(number, image, str(label).strip(), _GUESS in named and label == UNKNOWN)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8: save it as one.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
