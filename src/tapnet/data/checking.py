"""Checks of a packed dataset: its contents, and how it differs from the published one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tapnet.data.dataset import Dataset
from tapnet.data.packed import Packed
from tapnet.data.source import SPLITS, abbreviate
from tapnet.text import pluralize

INCOMPARABLE = "accuracies are not comparable with published ones"


@dataclass(frozen=True)
class Finding:
    """One line of a check. `good` is None for plain facts, False where the dataset is not the published one."""

    subject: str
    words: str
    good: bool | None = None


@dataclass(frozen=True)
class DuplicateGroup:
    """Rows with the same pixels."""

    rows: tuple[int, ...]
    classes: frozenset[str]
    splits: frozenset[str]


def check(dataset: Dataset, packed: Packed, progress: Callable[[int, int], None]) -> list[Finding]:
    """Return everything worth knowing about a packed dataset; raise UserError if its pixels are not those packed."""
    packed.check_digest(packed.digest())
    return [
        *summarize(packed),
        *differences(dataset, packed),
        *_duplicate_findings(packed, duplicate_groups(packed, progress)),
    ]


def summarize(packed: Packed) -> Iterator[Finding]:
    """Yield what was packed, from which source and how."""
    manifest = packed.manifest
    height, width, channels = manifest.preprocessing.shape
    yield Finding("read from", manifest.source)
    yield Finding("classes", f"{len(packed.classes):,}")
    yield Finding("images", f"{manifest.rows - len(manifest.left_out):,} of {height}×{width}×{channels}")
    for split in dict.fromkeys((*SPLITS, *manifest.splits)):
        names = [name for name in manifest.splits.get(split, ()) if name in packed.classes]
        images = sum(len(packed.rows_of(name)) for name in names)
        yield Finding(f"split {split}", f"{pluralize(len(names), 'class')}, {pluralize(images, 'image')}")
    how = (
        f"{pluralize(manifest.resized, 'image')} by {manifest.preprocessing.filter}, {manifest.preprocessing.fit}"
        if manifest.resized
        else "no image had another size"
    )
    yield Finding("resized", how)
    if manifest.preprocessing.ink is not None:
        yield Finding("ink", manifest.preprocessing.ink)
    yield Finding("sha-256", manifest.sha256, True)
    for note in manifest.notes:
        yield Finding("note", note)


def differences(dataset: Dataset, packed: Packed) -> Iterator[Finding]:
    """Yield how the packed dataset differs from the published one."""
    manifest = packed.manifest
    yield _overlap(packed)
    if manifest.left_out:
        named = packed.row_names()
        bad = [f"{named[int(row)]} ({reason})" for row, reason in manifest.left_out.items()]
        yield Finding("left out", f"{pluralize(len(bad), 'unreadable image')}: {abbreviate(bad)}", False)
        empty = [name for name in manifest.classes if name not in packed.classes]
        if empty:
            yield Finding("no readable image", f"{pluralize(len(empty), 'class')}: {abbreviate(empty)}", False)
    if not dataset.classes:
        return
    missing, extra = sorted(dataset.classes - packed.classes), sorted(packed.classes - dataset.classes)
    if missing:
        words = (
            f"{len(missing):,} of {len(dataset.classes):,} classes are missing ({abbreviate(missing)}): {INCOMPARABLE}"
        )
        yield Finding("published classes", words, False)
    if extra:
        words = f"not in the published lists by name: {abbreviate(extra)}; the files gave the split"
        yield Finding("published classes", words, False)
    if not missing and not extra:
        yield Finding("published classes", f"all {len(dataset.classes):,} are there, split as published", True)
    yield _count(dataset, packed)
    sizes = ["×".join(map(str, shape)) for shape in (dataset.row_shape, manifest.preprocessing.shape)]
    if sizes[0] != sizes[1]:
        yield Finding("published size", f"{sizes[0]}, and this is {sizes[1]}: {INCOMPARABLE}", False)
    if manifest.resized:
        by = manifest.preprocessing.filter
        words = f"{dataset.published_filter}; this was resized by {by}: expect small differences in accuracy"
        yield Finding("published resizing", words, None)


def _overlap(packed: Packed) -> Finding:
    places = defaultdict(list)
    for split in SPLITS:
        for name in packed.manifest.splits.get(split, ()):
            places[name].append(split)
    shared = [name for name, splits in places.items() if len(splits) > 1]
    words = (
        f"{pluralize(len(shared), 'class')} in two splits: {abbreviate(shared)}"
        if shared
        else "no class is in two splits"
    )
    return Finding("split overlap", words, not shared)


def _count(dataset: Dataset, packed: Packed) -> Finding:
    images, wanted = packed.manifest.rows - len(packed.manifest.left_out), dataset.images
    if images == wanted:
        return Finding("published images", f"all {images:,} are there", True)
    few = [name for name in packed.manifest.classes if len(packed.rows_of(name)) != dataset.images_per_class]
    per_class = (
        f", in {pluralize(len(few), 'class')} not {dataset.images_per_class}" if dataset.images_per_class else ""
    )
    return Finding("published images", f"{wanted:,}, and this has {images:,}{per_class}: {INCOMPARABLE}", False)


def duplicate_groups(packed: Packed, progress: Callable[[int, int], None]) -> list[DuplicateGroup]:
    """Return the groups of images with identical pixels."""
    used = np.concatenate([packed.rows_of(name) for name in packed.manifest.classes])
    digests = np.empty(len(used), dtype="V16")
    for place, row in enumerate(used):
        digests[place] = np.void(hashlib.blake2b(packed.pixels[row].tobytes(), digest_size=16).digest())
        if place % 1000 == 0 or place + 1 == len(used):
            progress(place + 1, len(used))
    _, group, counts = np.unique(digests, return_inverse=True, return_counts=True)
    members = np.split(used[np.argsort(group, kind="stable")], np.cumsum(counts)[:-1])
    names = list(packed.manifest.classes)
    ends = np.cumsum(list(packed.manifest.classes.values()))
    split_of = {name: split for split in SPLITS for name in packed.manifest.splits.get(split, ())}
    found = []
    for each in np.flatnonzero(counts > 1):
        rows = members[each]
        classes = frozenset(names[place] for place in np.searchsorted(ends, rows, side="right"))
        splits = frozenset(split_of.get(name, "none") for name in classes)
        found.append(DuplicateGroup(tuple(int(row) for row in rows), classes, splits))
    return found


def _duplicate_findings(packed: Packed, found: list[DuplicateGroup]) -> Iterator[Finding]:
    within = [each for each in found if len(each.classes) == 1]
    across = [each for each in found if len(each.classes) > 1 and len(each.splits) == 1]
    leaks = [each for each in found if len(each.splits) > 1]
    kinds = (
        ("same image in one class", within, "a query may be one of its own support images"),
        ("same image in two classes", across, "one of the two labels is wrong"),
        ("same image in two splits", leaks, "an image of one split is also in another"),
    )
    named = packed.row_names() if found else []
    for subject, groups, meaning in kinds:
        shown = abbreviate([" = ".join(named[row] for row in each.rows) for each in groups], 3)
        yield Finding(subject, f"{len(groups):,} ({shown}): {meaning}" if groups else "none", not groups)
