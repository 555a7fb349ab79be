"""miniImageNet as arrays: `train.npz` of the TapNet authors, and the `mini-imagenet-cache-*.pkl` pickles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.readers import Log
from tapnet.data.readers.array_files import declared_splits, key, reader, split_of
from tapnet.data.readers.arrays import as_images, npz_members, npz_rows, white_level
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.pickles import integers, load_pickled_dict
from tapnet.data.source import Raw, Source, Splits, sort_classes
from tapnet.errors import UserError

CACHE_KEYS = {"image_data", "class_dict"}


def class_npz(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read npz files named after a split, in which every array is a class."""
    classes: dict[str, list[str]] = {}
    declared: dict[str, list[str]] = {}
    parts: list[str] = []
    npz = (name for name in tree.names if name.endswith(".npz") and not name.endswith("_images.npz"))
    for file in filter(split_of, npz):
        with tree.open(file) as stream:
            shapes = npz_members(stream, file)
        for member, shape in shapes.items():
            part = f"{file}/{member}"
            parts.append(part)
            classes.setdefault(member, []).extend(key(part, row) for row in range(shape[0] if shape else 0))
            declared.setdefault(str(split_of(file)), []).append(member)

    def rows(part: str) -> Iterator[Raw]:
        file, _, member = part.partition(".npz/")
        with tree.open(f"{file}.npz") as stream:
            yield from npz_rows(stream, member, f"{file}.npz")

    if not classes:
        return None
    return Source(
        "npz files, one array per class", sort_classes(classes), reader(parts, rows), declared_splits(declared)
    )


def cache_pickles(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read pickles named after a split, with `image_data` and in `class_dict` the rows of each class."""
    files = [name for name in tree.names if name.endswith((".pkl", ".pickle")) and split_of(name)]
    files = [name for name in files if "cache" in name or not name.endswith(("_labels.pkl", "_png.pkl"))]
    classes: dict[str, list[str]] = {}
    declared: dict[str, list[str]] = {}

    for file in files:
        content = load_pickled_dict(tree, file, CACHE_KEYS, log)
        for name, rows in _rows_by_class(content, file).items():
            classes.setdefault(name, []).extend(key(file, row) for row in rows)
            declared.setdefault(str(split_of(file)), []).append(name)

    def images(file: str) -> Iterator[Raw]:
        yield from _images(load_pickled_dict(tree, file, CACHE_KEYS, log)["image_data"], file)

    if not classes:
        return None
    return Source(
        "mini-imagenet-cache pickles", sort_classes(classes), reader(files, images), declared_splits(declared)
    )


def _rows_by_class(content: dict[str, Any], file: str) -> dict[str, list[int]]:
    """Return the rows of each class; raise UserError unless each is a row of the images and has one class."""
    images, listed = content["image_data"], content["class_dict"]
    if not isinstance(images, np.ndarray) or not images.ndim or not isinstance(listed, dict):
        raise UserError(f"Expected an array as `image_data` and a dictionary as `class_dict` in {file}.")
    rows = {str(name): integers(found, f"class_dict[{name!r}]", file) for name, found in listed.items()}
    every = [row for found in rows.values() for row in found]
    if len({*every}) < len(every) or any(not 0 <= row < len(images) for row in every):
        raise UserError(f"`class_dict` of {file} names rows twice, or others than those of its {len(images):,} images.")
    return rows


def _images(data: NDArray[Any], file: str) -> Iterator[NDArray[np.uint8]]:
    white = white_level(data)
    for start in range(0, len(data), 256):
        yield from as_images(data[start : start + 256], white, file)
