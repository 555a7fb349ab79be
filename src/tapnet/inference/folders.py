"""Folders of pictures as people have them: one folder a class, or any number of files. Nothing is decoded here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tapnet.data.decoding import is_image_name
from tapnet.data.source import normal


def class_folders(root: Path) -> dict[str, list[Path]]:
    """The picture files of every class, a class being a folder directly below `root`; sorted by name.

    A folder without a picture file, loose pictures and two names that differ only in case are refused.
    """
    if root.is_file():
        raise NotADirectoryError(
            f"{root} is a file, needed is a folder that holds one folder of pictures a class: unpack it first if it is "
            "an archive."
        )
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}: give a folder that holds one folder of pictures a class.")
    folders = sorted((path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")), key=_order)
    if not folders:
        raise ValueError(f"{root} holds no folders: needed is one folder a class, such as {root.name}/robin/*.jpg.")
    classes = {normal(folder.name): sorted(_walk(folder), key=_order) for folder in folders}
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise ValueError(
            f"The folder of class {empty[0]!r} in {root} holds no picture: add some, or remove the folder."
        )
    return classes


def picture_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Every picture file among files and below folders, folder after folder, without listing them all first.

    A file that is named is taken whatever its ending; in a folder the ending decides.
    """
    for path in paths:
        if path.is_dir():
            yield from _walk(path)
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"There is no picture or folder {path}.")


def _walk(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted((Path(entry.path) for entry in entries if not entry.name.startswith(".")), key=_order)
    for path in found:
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        elif path.is_file() and is_image_name(path.name):
            yield path


def _order(path: Path) -> tuple[str, str]:
    return normal(path.name), path.name
