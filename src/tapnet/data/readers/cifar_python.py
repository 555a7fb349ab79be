"""CIFAR-100 as its authors hand it out for Python: the pickles `train`, `test` and `meta`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tapnet.data.readers import Say
from tapnet.data.readers.array_files import key
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.pickles import load_pickle, size_of
from tapnet.data.readers.unpickling import text
from tapnet.data.source import Raw, Source, Splits


def cifar_python(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """All 60,000 images, of both pickles, by fine label; in the order of their file names, which the pickles hold."""
    found = {PurePosixPath(name).name: name for name in tree.names}
    if not {"train", "test", "meta"} <= found.keys():
        return None
    names = [text(name) for name in _content(tree, found["meta"], say, {"fine_label_names"})["fine_label_names"]]
    classes: dict[str, dict[str, str]] = {name: {} for name in sorted(names)}
    for part in ("train", "test"):
        content = _content(tree, found[part], say, {"fine_labels", "filenames", "data"})
        for row, (label, file) in enumerate(zip(content["fine_labels"], content["filenames"], strict=True)):
            classes[names[label]][key(part, row)] = text(file)

    def read(wanted: Any) -> Iterator[tuple[str, Raw]]:
        for part in ("train", "test"):
            rows = _content(tree, found[part], say, {"data"})["data"].reshape(-1, 3, 32, 32)
            for row, planes in enumerate(rows):
                if (name := key(part, row)) in wanted:
                    yield name, np.ascontiguousarray(planes.transpose(1, 2, 0))

    ordered = {name: sorted(files, key=files.__getitem__) for name, files in classes.items()}
    return Source("the CIFAR-100 Python archive", ordered, read)


def _content(tree: FileTree, file: str, say: Say, needed: set[str]) -> dict[str, Any]:
    with tree.open(file) as stream:
        content = load_pickle(stream, file, size_of(stream), say)
    if not isinstance(content, dict) or not needed <= content.keys():
        raise ValueError(f"{file} needs {', '.join(sorted(needed))}: is it another dataset (CIFAR-10)?")
    return content
