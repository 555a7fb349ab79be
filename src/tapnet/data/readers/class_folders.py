"""Folders named after their class, at any depth, beside or below anything else."""

from __future__ import annotations

from collections.abc import Container

from tapnet.data.decoding import is_image_name
from tapnet.data.readers import Say
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import SPLITS, Source, Splits, in_order, normal, some


def class_folders(tree: FileTree, splits: Splits, say: Say) -> Source | None:  # noqa: ARG001
    """Every image below a folder that has a known class's name; the innermost such folder decides."""
    known = {name for names in splits.values() for name in names}
    depth = 1 + max(name.count("/") for name in known)
    classes: dict[str, list[str]] = {}
    strangers: set[str] = set()
    for name in filter(is_image_name, tree.names):
        folder = name.rpartition("/")[0]
        found = _known_folder(folder, known, depth)
        if found is None:
            strangers.add(folder or ".")
        else:
            classes.setdefault(found, []).append(name)
    if not classes:
        return None
    note = f"Left out, folders of no class of this dataset: {some(sorted(strangers))}."
    return Source("folders by class", in_order(classes), tree.read, notes=[note] if strangers else [])


def _known_folder(folder: str, known: Container[str], depth: int) -> str | None:
    parts = normal(folder).split("/")
    for end in range(len(parts), 0, -1):
        for width in range(1, min(depth, end) + 1):
            name = "/".join(parts[end - width : end])
            # CIFAR-100 has a class called train: further up, that is a split
            if name in known and (end == len(parts) or name not in SPLITS):
                return name
    return None
