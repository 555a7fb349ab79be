"""Labeled images as people have them: one folder per class, a file of paths and classes, or any number of files.

Nothing is decoded here. Whatever is left out on the way is counted by reason in `Skipped`, so that nothing vanishes
without a word. The CSV and JSON lines of predictions are files of labels, too, so predictions can be corrected by hand.
"""

from __future__ import annotations

import csv
import filecmp
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tapnet.data.preprocessing import is_image_name
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.predictor import UNKNOWN
from tapnet.text import normalize_name, pluralize

_SPLITS = frozenset("train training val valid validation test testing".split())  # noqa: SIM905
_OF_THE_SYSTEM = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_NAMED = 3  # files named for each reason
PATHS, CLASSES = ("path", "file", "filename", "image"), ("label", "class")
_GUESS = "best_guess"  # a column of predictions of which some were rejected
_FORMS = "columns path,label or file,class"


@dataclass
class Skipped:
    """Files and folders that were left out, by reason: how many, and the first few."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str | Path]] = field(default_factory=dict)

    def add(self, path: str | Path, reason: str) -> None:
        """Count a path or address that was left out for this reason."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first[reason] = [*self.first.get(reason, []), path][:_NAMED]

    def __len__(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """Return a line for each reason: "Left out 4, not an image file extension: a.txt, b.txt, c.txt and 1 more"."""
        return [
            f"Left out {count}, {reason}: {_abbreviate(self.first[reason], count)}"
            for reason, count in self.counts.items()
        ]


def _abbreviate(paths: Sequence[str | Path], count: int) -> str:
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return ", ".join(normalize_name(str(path)) for path in paths[:_NAMED]) + more


@dataclass(frozen=True)
class LabeledFolder:
    """The image files of every class, sorted by name, what was left out, and folders inside those of the classes."""

    classes: dict[str, list[Path]]
    skipped: Skipped
    inner: tuple[Path, ...] = ()  # they hold images, which count for the class

    def __len__(self) -> int:
        return sum(map(len, self.classes.values()))

    def lines(self) -> list[str]:
        """Return what a user may not expect: images that count for the class above their folder, what is left out."""
        if not self.inner:
            return self.skipped.lines()
        folders = _abbreviate(["/".join(path.parts[-2:]) for path in self.inner], len(self.inner))
        note = f"Images of {pluralize(len(self.inner), 'folder')} inside that of a class count for it: {folders}."
        hint = f"If these are the classes, give the folder that holds them, such as {self.inner[0].parent}."
        return [f"{note} {hint}", *self.skipped.lines()]


def class_folders(root: str | Path) -> LabeledFolder:
    """Return the images of every class, a class being a folder directly below `root`."""
    root, skipped = Path(root), Skipped()
    if root.is_file():
        raise UserError(
            f"{root} is a file, expected a folder that holds one folder of images per class: unpack it first if it is "
            "an archive."
        )
    if not root.is_dir():
        raise NotFoundError(f"There is no folder {root}: give a folder that holds one folder of images per class.")
    entries = sorted(root.iterdir(), key=_order)
    folders = [path for path in entries if path.is_dir() and not path.name.startswith(".")]
    for path in entries:
        if path not in folders and path.name not in _OF_THE_SYSTEM:
            skipped.add(path, "not in the folder of a class")
    if not folders:
        raise UserError(f"{root} holds no folders: expected one folder per class, such as {root.name}/robin/*.jpg.")
    classes: dict[str, list[Path]] = {}
    inner: list[Path] = []
    for folder in folders:
        files = sorted(_walk(folder, skipped), key=_order)
        inner += sorted({folder / path.relative_to(folder).parts[0] for path in files if path.parent != folder})
        if files:
            classes.setdefault(normalize_name(folder.name), []).extend(files)
        else:
            skipped.add(folder, "a folder without images")
    if not classes:
        raise UserError(f"No folder in {root} holds an image: expected one folder of images per class.")
    if len(classes) > 1 and {name.lower() for name in classes} <= _SPLITS:
        train = next((name for name in classes if name.lower().startswith("train")), next(iter(classes)))
        raise UserError(
            f"{root} holds the splits {' and '.join(classes)}, expected one folder per class: give {root / train} "
            "instead."
        )
    return LabeledFolder(classes, skipped, tuple(inner))


def find_images(paths: Iterable[str | Path], skipped: Skipped | None = None) -> Iterator[Path]:
    """Yield every image file among files and below folders, folder after folder, without listing them all first.

    A file that is named is taken whatever its ending; in a folder the ending decides.
    """
    skipped = Skipped() if skipped is None else skipped
    for path in map(Path, paths):
        if path.is_dir():
            yield from _walk(path, skipped)
        elif path.exists():
            yield path
        else:
            raise NotFoundError(f"There is no image or folder {path}.")


def _walk(folder: Path, skipped: Skipped) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            paths = sorted((Path(entry.path) for entry in entries), key=_order)
    except OSError as error:
        skipped.add(folder, f"a folder that cannot be opened ({error.strerror})")
        return
    for path in paths:
        if path.name in _OF_THE_SYSTEM:
            continue
        if path.name.startswith("."):
            skipped.add(path, "hidden by its name")
        elif not path.exists():
            skipped.add(path, "a link to nothing")
        elif path.is_dir() and path.is_symlink():
            skipped.add(path, "a link to a folder")
        elif path.is_dir():
            yield from _walk(path, skipped)
        elif not path.is_file():
            skipped.add(path, "not a regular file")
        elif not is_image_name(path.name):
            skipped.add(path, "not an image file extension")
        else:
            yield path


def _order(path: Path) -> tuple[str, str]:
    return normalize_name(path.name), path.name


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
        problem = f"{path} is a folder" if path.is_dir() else f"There is no file {path}"
        raise NotFoundError(f"{problem}: give a .csv or .jsonl file of paths and classes.")
    reader = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"Expected labels in a .csv or .jsonl file, got {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8: save it as one.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    classes: dict[str, list[Path]] = {}
    first: dict[Path, _Row] = {}
    for row in reader(path, text):
        image = _labeled_file(path, row)
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


def _labeled_file(labels: Path, row: _Row) -> Path:
    name = row.path.strip()
    if not name or not row.label:
        missing = "path" if not name else "class"
        raise UserError(f"{labels}, line {row.line}: expected a path and a class, got no {missing}.")
    choices = [folder / path for path in dict.fromkeys((row.path, name)) for folder in (labels.parent, Path())]
    for image in (*choices, *map(_as_printed, choices)):
        if image and image.is_file():
            return image
    words = f"{labels}, line {row.line}: there is no file {name} in {labels.absolute().parent}."
    heading = f" If that line is a heading, it needs the {_FORMS}." if row.first and not Path(name).suffix else ""
    raise UserError(words + heading)


def _as_printed(path: Path) -> Path | None:
    """Return the one file or folder whose name is printed as that of this path, such as one with a line break in it."""
    parent = path.parent if path.parent.is_dir() or path.parent == path else _as_printed(path.parent)
    if parent is None or not parent.is_dir():
        return None
    alike = [entry for entry in parent.iterdir() if normalize_name(entry.name) == normalize_name(path.name)]
    return alike[0] if len(alike) == 1 else None


def _csv_rows(path: Path, text: str) -> Iterator[_Row]:
    lines = list(io.StringIO(text, newline=""))  # `splitlines` would also cut at U+2028 and others
    delimiter = max(",;\t", key=lines[0].count) if lines else ","
    reader, of_path, of_class, of_guess, first = csv.reader(lines, delimiter=delimiter, strict=True), 0, 1, -1, True
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            names, may_be_heading, first = [cell.strip().lower() for cell in cells], first, False
            paths, classes = ([names.index(name) for name in known if name in names] for known in (PATHS, CLASSES))
            if may_be_heading and paths and classes:
                of_path, of_class = paths[0], classes[0]
                of_guess = names.index(_GUESS) if _GUESS in names else -1
                continue
            if len(cells) <= max(of_path, of_class):
                row = delimiter.join(cells)
                raise UserError(f"{path}, line {reader.line_num}: expected a path and a class, got {row!r}.")
            label = cells[of_class].strip()
            yield _Row(reader.line_num, cells[of_path], label, of_guess >= 0 and label == UNKNOWN, may_be_heading)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not comma-separated values ({error}).") from None


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), start=1):
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


def copy_into_class(image: Path, label: str, root: Path) -> None:
    """Copy an image into the folder of its class; different ones of one name are all kept, none is copied twice."""
    name = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", label).lstrip(". ") or "_"  # task files may come from strangers
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / image.name, 1
    while target.exists() and not filecmp.cmp(image, target, shallow=False):
        number += 1
        target = folder / f"{image.stem}-{number}{image.suffix}"
    if not target.exists():
        shutil.copy2(image, target)
