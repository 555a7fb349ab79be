"""CIFAR-100 as its authors publish it for Python: the pickles `train`, `test` and `meta`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tapnet.data.readers import Log
from tapnet.data.readers.array_files import key
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.pickles import integers, load_pickled_dict, texts
from tapnet.data.source import Raw, Source, Splits
from tapnet.errors import UserError


def cifar_python(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read the 60,000 images of both pickles by fine label, in the order of their original file names."""
    found = {PurePosixPath(name).name: name for name in tree.names}
    if not {"train", "test", "meta"} <= found.keys():
        return None
    meta = load_pickled_dict(tree, found["meta"], {"fine_label_names"}, log, "CIFAR-10")
    names = texts(meta["fine_label_names"], "fine_label_names", "meta")
    classes: dict[str, dict[str, str]] = {name: {} for name in sorted(names)}
    for part in ("train", "test"):
        content = load_pickled_dict(tree, found[part], {"fine_labels", "filenames", "data"}, log)
        labels = integers(content["fine_labels"], "fine_labels", part)
        files = texts(content["filenames"], "filenames", part)
        _check(labels, files, content["data"], len(names), part)
        for row, (label, file) in enumerate(zip(labels, files, strict=True)):
            classes[names[label]][key(part, row)] = file

    def read(wanted: Any) -> Iterator[tuple[str, Raw]]:
        for part in ("train", "test"):
            rows = load_pickled_dict(tree, found[part], {"data"}, log)["data"].reshape(-1, 3, 32, 32)
            for row, planes in enumerate(rows):
                if (name := key(part, row)) in wanted:
                    yield name, np.ascontiguousarray(planes.transpose(1, 2, 0))

    ordered = {name: sorted(files, key=files.__getitem__) for name, files in classes.items()}
    return Source("the CIFAR-100 Python archive", ordered, read)


def _check(labels: list[int], files: list[str], data: Any, classes: int, part: str) -> None:
    """Raise UserError unless every image has a file name, 3,072 bytes and the label of a class."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), 3072):
        raise UserError(f"Expected `data` of {len(labels):,} × 3072 bytes in {part}: is it another dataset?")
    if len(files) != len(labels) or any(not 0 <= label < classes for label in labels):
        raise UserError(
            f"Expected a file name and a label from 0 to {classes - 1} for each of {len(labels):,} images in {part}."
        )
