"""miniImageNet as arrays: `train.npz` of the TapNet authors, and the `mini-imagenet-cache-*.pkl` pickles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.readers import Say
from tapnet.data.readers.array_files import key, reader, said_splits, split_of
from tapnet.data.readers.arrays import as_images, npz_members, npz_rows, white_level
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.pickles import load_pickle, size_of
from tapnet.data.source import Raw, Source, Splits, in_order


def class_npz(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """The npz files named after a split, in which every array is a class."""
    classes: dict[str, list[str]] = {}
    said: dict[str, list[str]] = {}
    parts: list[str] = []
    npz = (name for name in tree.names if name.endswith(".npz") and not name.endswith("_images.npz"))
    for file in filter(split_of, npz):
        with tree.open(file) as stream:
            shapes = npz_members(stream, file)
        for member, shape in shapes.items():
            part = f"{file}/{member}"
            parts.append(part)
            classes.setdefault(member, []).extend(key(part, row) for row in range(shape[0] if shape else 0))
            said.setdefault(str(split_of(file)), []).append(member)

    def rows(part: str) -> Iterator[Raw]:
        file, _, member = part.partition(".npz/")
        with tree.open(f"{file}.npz") as stream:
            yield from npz_rows(stream, member, f"{file}.npz")

    if not classes:
        return None
    return Source("npz files, one array a class", in_order(classes), reader(parts, rows), said_splits(said))


def cache_pickles(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """Pickles named after a split, with `image_data` and in `class_dict` the rows of each class."""
    files = [name for name in tree.names if name.endswith((".pkl", ".pickle")) and split_of(name)]
    files = [name for name in files if "cache" in name or not name.endswith(("_labels.pkl", "_png.pkl"))]
    classes: dict[str, list[str]] = {}
    said: dict[str, list[str]] = {}

    for file in files:
        for name, rows in _cache(tree, file, say)["class_dict"].items():
            classes.setdefault(name, []).extend(key(file, int(row)) for row in rows)
            said.setdefault(str(split_of(file)), []).append(name)

    def images(file: str) -> Iterator[Raw]:
        yield from _images(_cache(tree, file, say)["image_data"], file)

    if not classes:
        return None
    return Source("mini-imagenet-cache pickles", in_order(classes), reader(files, images), said_splits(said))


def _cache(tree: FileTree, file: str, say: Say) -> dict[str, Any]:
    with tree.open(file) as stream:
        content = load_pickle(stream, file, size_of(stream), say)
    if not isinstance(content, dict) or not {"image_data", "class_dict"} <= content.keys():
        found = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{file} needs `image_data` and `class_dict`, got {found}: is it another dataset?")
    return content


def _images(data: NDArray[Any], file: str) -> Iterator[NDArray[np.uint8]]:
    white = white_level(data)
    for start in range(0, len(data), 256):
        yield from as_images(data[start : start + 256], white, file)
