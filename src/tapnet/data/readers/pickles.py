"""Datasets that are handed out as pickles, which are read as data, and only if they fit into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
import psutil

from tapnet.data.preprocessing import Raw, Unreadable
from tapnet.data.readers import Source
from tapnet.data.readers.arrays import as_images, npz_rows, npz_shapes, row_name, row_source, split_of, white_level
from tapnet.data.readers.files import FileTree
from tapnet.data.readers.unpickling import Array, RefusedError, RestrictedUnpickler, as_text
from tapnet.errors import UserError

T = TypeVar("T", int, str)

HEADROOM = 500_000_000


def load_pickle(tree: FileTree, file: str) -> Any:
    """Return what a pickle holds: containers, numbers, text (bytes, if Python 2 wrote it), read-only arrays.

    All of it is in memory at once, which is logged. Raise UserError if there is not enough memory, if the pickle is
    damaged, or if it asks for anything else.
    """
    with tree.open(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        needed, free = size + HEADROOM, available_memory()
        if needed > free:
            raise UserError(
                f"{file} is a pickle of {size / 1e9:.1f} GB, which needs up to {needed / 1e9:.1f} GB of memory at "
                f"once, and {free / 1e9:.1f} GB are free: close other programs, or use another form of the dataset."
            )
        tree.log(f"Reading {file}: a pickle has to be in memory whole, up to {needed / 1e9:.1f} GB.")
        try:
            return _plain(RestrictedUnpickler(stream, size).load(), {})
        except RefusedError as error:
            raise UserError(
                f"{file} is refused: it asks for {error}, and a pickled dataset needs only arrays, lists and "
                "dictionaries. Nothing of it was run; do not open it with other programs."
            ) from None
        except Exception as error:  # damaged opcodes raise almost anything
            reason = error or type(error).__name__
            raise UserError(f"{file} is not a complete pickle ({reason}): fetch it again.") from None


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Return the value with stand-ins replaced by what they stand for, at any depth, and byte keys by text.

    `known` holds the containers already made: one that is shared a million times is not copied a million times.
    """
    if isinstance(value, Array):
        return _plain(value.value, known) if isinstance(value.value, list) else value.value
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in known:
        if isinstance(value, dict):
            known[id(value)] = {as_text(key): _plain(item, known) for key, item in value.items()}
        else:
            known[id(value)] = [_plain(item, known) for item in value]
    return known[id(value)]


def available_memory() -> float:
    """Return how many bytes of memory are available now to this process and its control group."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        return min(free, float(limit) - float(used))
    except (OSError, ValueError):  # no control group, or one without a limit
        return free


def _load_dict(tree: FileTree, file: str, keys: set[str]) -> dict[str, Any]:
    content = load_pickle(tree, file)
    if not isinstance(content, dict) or not keys <= content.keys():
        got = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise UserError(f"Expected {', '.join(sorted(keys))} in {file}, got {got}: is it another dataset?")
    return content


def _list_of(kind: type[T], values: Any, name: str, file: str) -> list[T]:
    """Return a list that a pickle holds under this name; raise UserError if it is none, or of other things."""
    plain: list[Any] = [as_text(value) for value in values] if isinstance(values, list | np.ndarray) else [None]
    if not all(isinstance(value, (int, np.integer) if kind is int else str) for value in plain):
        what = "whole numbers" if kind is int else "names"
        raise UserError(f"Expected a list of {what} as `{name}` in {file}: is it another dataset?")
    return [kind(value) for value in plain]


def cache_pickles(tree: FileTree) -> Source | None:
    """Read `mini-imagenet-cache-train.pkl` etc., with `image_data` and in `class_dict` the rows of each class."""
    keys = {"image_data", "class_dict"}
    labels: dict[str, list[str | None]] = {}
    declared: dict[str, tuple[str, ...]] = {}
    for file in tree.names:
        split, of_tiered = split_of(file), file.endswith(("_labels.pkl", "_png.pkl")) and "cache" not in file
        if split is None or of_tiered or not file.endswith((".pkl", ".pickle")):
            continue
        content = _load_dict(tree, file, keys)
        images, listed = content["image_data"], content["class_dict"]
        if not isinstance(images, np.ndarray) or not images.ndim or not isinstance(listed, dict):
            raise UserError(f"Expected an array as `image_data` and a dictionary as `class_dict` in {file}.")
        names = labels[file] = [None] * len(images)
        for name, rows in listed.items():
            for row in _list_of(int, rows, f"class_dict[{name!r}]", file):
                if not 0 <= row < len(images) or names[row] is not None:
                    wrong = f"names row {row} twice, or has others than its {len(images):,} images"
                    raise UserError(f"`class_dict` of {file} {wrong}.")
                names[row] = str(name)
        declared[split] = tuple(map(str, listed))

    def rows_of(file: str) -> Iterator[Raw]:
        images = _load_dict(tree, file, keys)["image_data"]
        white = white_level(images)
        for start in range(0, len(images), 256):
            yield from as_images(images[start : start + 256], white, file)

    return row_source("mini-imagenet-cache pickles", labels, rows_of, declared) if labels else None


def labeled_pickles(tree: FileTree) -> Source | None:
    """Read tieredImageNet: `train_labels.pkl` beside `train_images_png.pkl` or the authors' `train_images.npz`."""
    lists = [name for end in ("class_names.txt", "synsets.txt") for name in tree.names if name.endswith(end)]
    ids: dict[str, str] = {}  # of class names, from the two lists beside the published pickles
    if len(lists) == 2:
        words, synsets = (map(str.strip, tree.read_text(name).splitlines()) for name in lists)
        for word, synset in zip(words, synsets, strict=False):
            if synset in tree.known:
                ids.setdefault(word, synset)
    labels: dict[str, list[str | None]] = {}
    declared: dict[str, tuple[str, ...]] = {}
    for file in tree.names:
        split = split_of(file)
        if split is None or not file.endswith("_labels.pkl"):
            continue
        choices = [file.removesuffix("_labels.pkl") + end for end in ("_images_png.pkl", "_images.npz")]
        images = next((name for name in choices if name in tree.names), None)
        if images is None:
            raise UserError(f"Expected {' or '.join(choices)} beside {file}, got neither.")
        content = _load_dict(tree, file, {"label_specific", "label_specific_str"})
        numbers = _list_of(int, content["label_specific"], "label_specific", file)
        names = _list_of(str, content["label_specific_str"], "label_specific_str", file)
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(names):
            run = f"run from {min(numbers)} to {max(numbers)}"
            raise UserError(f"{file} names {len(names)} classes, and its labels {run}.")
        counts = Counter(names)  # two classes of ImageNet are called crane; a number keeps such namesakes apart
        names = [name if counts[name] == 1 else f"{name} #{number}" for number, name in enumerate(names)]
        names = [ids.get(name, name) for name in names]
        labels[images] = [names[number] for number in numbers]
        declared[split] = tuple(names)

    def rows(file: str) -> Iterator[Raw]:
        if file.endswith(".pkl"):
            encoded = load_pickle(tree, file)
            if not isinstance(encoded, list):
                raise UserError(f"Expected a list of encoded images in {file}, got {type(encoded).__name__}.")
            for image in encoded:
                good = isinstance(image, bytes) or (isinstance(image, np.ndarray) and image.dtype == np.uint8)
                yield bytes(image) if good else Unreadable(f"{type(image).__name__} instead of an encoded image")
            return
        with tree.open(file) as stream:
            if "images" not in npz_shapes(stream, file):
                raise UserError(f"Expected an array `images` in {file}.")
            stream.seek(0)
            for row in npz_rows(stream, "images", file):
                yield np.ascontiguousarray(row[..., ::-1])  # OpenCV wrote them, blue first

    form = "label pickles with " + ("PNG pickles" if any(name.endswith(".pkl") for name in labels) else "npz arrays")
    return row_source(form, labels, rows, declared) if labels else None


def cifar_python(tree: FileTree) -> Source | None:
    """Read CIFAR-100 (`train`, `test` and `meta`) by fine label, in the order of the original file names."""
    files = {PurePosixPath(name).name: name for name in tree.names}
    if not {"train", "test", "meta"} <= files.keys():
        return None
    meta = _load_dict(tree, files["meta"], {"fine_label_names"})
    names = _list_of(str, meta["fine_label_names"], "fine_label_names", "meta")
    labels: dict[str, list[str | None]] = {}
    originals: dict[str, str] = {}
    for part in ("train", "test"):
        content = _load_dict(tree, files[part], {"fine_labels", "filenames", "data"})
        numbers = _list_of(int, content["fine_labels"], "fine_labels", part)
        filenames, data = _list_of(str, content["filenames"], "filenames", part), content["data"]
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(numbers), 3072):
            raise UserError(f"Expected `data` of {len(numbers):,} × 3072 bytes in {part}: is it another dataset?")
        if len(filenames) != len(numbers) or any(not 0 <= number < len(names) for number in numbers):
            expected = f"a file name and a label from 0 to {len(names) - 1} for each of {len(numbers):,} images"
            raise UserError(f"Expected {expected} in {part}.")
        labels[files[part]] = [names[number] for number in numbers]
        originals |= {row_name(files[part], row): name for row, name in enumerate(filenames)}

    def rows(file: str) -> Iterator[Raw]:
        planes = _load_dict(tree, file, {"data"})["data"].reshape(-1, 3, 32, 32)
        return (np.ascontiguousarray(image.transpose(1, 2, 0)) for image in planes)

    source = row_source("the CIFAR-100 Python archive", labels, rows, {})
    for images in source.classes.values():
        images.sort(key=originals.__getitem__)
    return source
