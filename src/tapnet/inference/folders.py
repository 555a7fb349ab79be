"""Folders of images as people have them: one folder per class, or any number of files. Nothing is decoded here.

Whatever is left out on the way is counted by reason in `Skipped`, so that nothing vanishes without a word.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tapnet.data.preprocessing import is_image_name
from tapnet.errors import NotFoundError, UserError
from tapnet.text import normalize_name, pluralize

_SPLITS = frozenset("train training val valid validation test testing".split())  # noqa: SIM905
_OF_THE_SYSTEM = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_NAMED = 3  # files named for each reason


@dataclass
class Skipped:
    """Files and folders that were left out, by reason: how many, and the first few."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str | Path]] = field(default_factory=dict)

    def add(self, path: str | Path, reason: str) -> None:
        """Count a path or address that was left out for this reason."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.first.setdefault(reason, [])
        if len(named) < _NAMED:
            named.append(path)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """Return one line for each reason: "Left out 4, no image by its ending: a.txt, b.txt, c.txt and 1 more"."""
        return [
            f"Left out {count}, {reason}: {', '.join(normalize_name(str(path)) for path in self.first[reason])}"
            + (f" and {count - _NAMED} more" if count > _NAMED else "")
            for reason, count in self.counts.items()
        ]


@dataclass(frozen=True)
class LabeledFolder:
    """The image files of every class, sorted by name, what was left out, and folders inside those of the classes."""

    classes: dict[str, list[Path]]
    skipped: Skipped
    inner: tuple[Path, ...] = ()  # they hold images, which count for the class

    def __len__(self) -> int:
        return sum(map(len, self.classes.values()))

    def lines(self) -> list[str]:
        """Return what a user may not expect: images that count for the class above their folder, and what is left out.

        "Images of 2 folders inside that of a class count for it: birds/robin, birds/wren. …"
        """
        if not self.inner:
            return self.skipped.lines()
        named = ", ".join(normalize_name("/".join(path.parts[-2:])) for path in self.inner[:_NAMED])
        more = f" and {len(self.inner) - _NAMED} more" if len(self.inner) > _NAMED else ""
        note = f"Images of {pluralize(len(self.inner), 'folder')} inside that of a class count for it: {named}{more}."
        holder = self.inner[0].parent
        return [
            f"{note} If these are the classes, give the folder that holds them, such as {holder}.",
            *self.skipped.lines(),
        ]


def class_folders(root: str | Path) -> LabeledFolder:
    """Return the images of every class, a class being a folder directly below `root`.

    Raise UserError if there is no folder with an image, or if the folders are splits (train, test), not classes.
    """
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
    _check_splits(root, list(classes))
    return LabeledFolder(classes, skipped, tuple(inner))


def _check_splits(root: Path, names: list[str]) -> None:
    if len(names) > 1 and {name.lower() for name in names} <= _SPLITS:
        train = next((name for name in names if name.lower().startswith("train")), names[0])
        raise UserError(
            f"{root} holds the splits {' and '.join(names)}, expected one folder per class: give {root / train} "
            "instead."
        )


def find_images(paths: Iterable[str | Path], skipped: Skipped | None = None) -> Iterator[Path]:
    """Yield every image file among files and below folders, folder after folder, without listing them all first.

    A file that is named is taken whatever its ending; in a folder the ending decides. Raise UserError if a path does
    not exist.
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
            found = sorted((Path(entry.path) for entry in entries), key=_order)
    except OSError as error:
        skipped.add(folder, f"a folder that cannot be opened ({error.strerror})")
        return
    for path in found:
        if path.name in _OF_THE_SYSTEM:
            continue
        if path.name.startswith("."):
            skipped.add(path, "hidden by its name")
        elif path.is_dir() and not path.is_symlink():
            yield from _walk(path, skipped)
        elif reason := _reason(path):
            skipped.add(path, reason)
        else:
            yield path


def _reason(path: Path) -> str | None:
    """Return why a file in a folder is left out, or `None` if it is taken."""
    if not path.exists():
        return "a link to nothing"
    if path.is_dir():
        return "a link to a folder"
    if not path.is_file():
        return "not a regular file"
    return None if is_image_name(path.name) else "no image by its ending"


def _order(path: Path) -> tuple[str, str]:
    return normalize_name(path.name), path.name


def copy_into_class(image: Path, label: str, root: Path) -> None:
    """Copy an image into the folder of its class; different ones of one name are all kept, none is copied twice."""
    folder = root / _safe(label)
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / image.name, 1
    while target.exists() and not filecmp.cmp(image, target, shallow=False):
        number += 1
        target = folder / f"{image.stem}-{number}{image.suffix}"
    if not target.exists():
        shutil.copy2(image, target)


def _safe(name: str) -> str:
    """Return a class name as a safe name of one folder, since task files may come from strangers."""
    return re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name).lstrip(". ") or "_"
