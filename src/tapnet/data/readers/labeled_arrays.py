"""tieredImageNet as published: `train_labels.pkl` beside `train_images_png.pkl` or `train_images.npz`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapnet.data.readers import Log
from tapnet.data.readers.array_files import declared_splits, key, reader, split_of
from tapnet.data.readers.arrays import npz_members, npz_rows
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.pickles import integers, load_pickle, load_pickled_dict, size_of, texts
from tapnet.data.source import Raw, Source, Splits, Unreadable, sort_classes
from tapnet.errors import UserError

IMAGES = ("_images_png.pkl", "_images.npz")


def labeled_arrays(tree: FileTree, splits: Splits, log: Log) -> Source | None:
    """Read the images of each split from one array, and their labels from the file beside it."""
    known = {name for names in splits.values() for name in names}
    ids = _ids(tree)
    classes: dict[str, list[str]] = {}
    declared: dict[str, list[str]] = {}
    parts: list[str] = []
    for labels in (name for name in tree.names if name.endswith("_labels.pkl") and split_of(name)):
        stem = labels.removesuffix("_labels.pkl")
        file = next((stem + end for end in IMAGES if stem + end in tree.names), None)
        if file is None:
            raise UserError(f"Expected {' or '.join(stem + end for end in IMAGES)} beside {labels}, got neither.")
        parts.append(file)
        numbers, names = _labels(tree, labels, log)
        names = [next((found for found in ids.get(name, []) if found in known), name) for name in names]
        declared.setdefault(str(split_of(labels)), []).extend(names)
        for row, number in enumerate(numbers):
            classes.setdefault(names[number], []).append(key(file, row))

    def rows(file: str) -> Iterator[Raw]:
        return _png_rows(tree, file, log) if file.endswith(".pkl") else _npz_rows(tree, file)

    if not classes:
        return None
    form = "label pickles with " + ("PNG pickles" if parts[0].endswith(".pkl") else "npz arrays")
    return Source(form, sort_classes(classes), reader(parts, rows), declared_splits(declared))


def _labels(tree: FileTree, file: str, log: Log) -> tuple[list[int], list[str]]:
    content = load_pickled_dict(tree, file, {"label_specific", "label_specific_str"}, log)
    numbers = integers(content["label_specific"], "label_specific", file)
    names = texts(content["label_specific_str"], "label_specific_str", file)
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(names):
        raise UserError(f"{file} names {len(names)} classes, and its labels run from {min(numbers)} to {max(numbers)}.")
    # two classes of ImageNet are called crane; a number keeps such namesakes apart
    counts = Counter(names)
    return numbers, [name if counts[name] == 1 else f"{name} #{number}" for number, name in enumerate(names)]


def _ids(tree: FileTree) -> dict[str, list[str]]:
    """Return the ids of each class name, from the two lists beside the published pickles, if they are there."""
    lists = [name for end in ("class_names.txt", "synsets.txt") for name in tree.names if name.endswith(end)]
    if len(lists) != 2:
        return {}
    words, synsets = (tree.read_text(name).splitlines() for name in lists)
    ids: dict[str, list[str]] = {}
    for name, synset in zip(words, synsets, strict=False):
        ids.setdefault(name.strip(), []).append(synset.strip())
    return ids


def _png_rows(tree: FileTree, file: str, log: Log) -> Iterator[Raw]:
    with tree.open(file) as stream:
        images: Any = load_pickle(stream, file, size_of(stream), log)
    if not isinstance(images, list):
        raise UserError(f"Expected a list of encoded images in {file}, got {type(images).__name__}.")
    for image in images:
        encoded = isinstance(image, bytes) or (isinstance(image, np.ndarray) and image.dtype == np.uint8)
        yield bytes(image) if encoded else Unreadable(f"{type(image).__name__} instead of an encoded image")


def _npz_rows(tree: FileTree, file: str) -> Iterator[Raw]:
    with tree.open(file) as stream:
        if "images" not in npz_members(stream, file):
            raise UserError(f"Expected an array `images` in {file}.")
        stream.seek(0)
        for row in npz_rows(stream, "images", file):
            yield np.ascontiguousarray(row[..., ::-1])  # OpenCV wrote them, blue first
