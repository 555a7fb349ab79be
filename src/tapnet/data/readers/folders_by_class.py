"""Folders named after their class, at any depth, beside or below anything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from tapnet.data.preprocessing import is_image_name
from tapnet.data.readers import Log
from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import NOT_AN_IMAGE, SPLITS, Source, Splits, normalize_name, skipped, sort_classes


def folders_by_class(tree: FileTree, splits: Splits, log: Log) -> Source | None:  # noqa: ARG001
    """Read every image below a folder named after a known class; the innermost such folder decides."""
    known = {name for names in splits.values() for name in names}
    depth = 1 + max(name.count("/") for name in known)
    classes: dict[str, list[str]] = {}
    unknown: Counter[str] = Counter()
    others: list[str] = []
    for name in tree.names:
        folder = name.rpartition("/")[0]
        found = _known_folder(folder, known, depth)
        if not is_image_name(name):
            others.append(name)
        elif found is None:
            unknown[folder or "."] += 1
        else:
            classes.setdefault(found, []).append(name)
    if not classes:
        return None
    notes = [
        *skipped([f"{folder} ({count:,})" for folder, count in sorted(unknown.items())], "of no class here", "folder"),
        *skipped(others, NOT_AN_IMAGE),
    ]
    return Source("folders by class", sort_classes(classes), tree.read, notes=notes)


def _known_folder(folder: str, known: Container[str], depth: int) -> str | None:
    parts = normalize_name(folder).split("/")
    for end in range(len(parts), 0, -1):
        for width in range(1, min(depth, end) + 1):
            name = "/".join(parts[end - width : end])
            # CIFAR-100 has a class called train: further up, that is a split
            if name in known and (end == len(parts) or name not in SPLITS):
                return name
    return None
