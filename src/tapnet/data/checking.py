"""What a packed dataset is, where it differs from the published one, and what that means for comparing numbers."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tapnet.data.dataset import Dataset
from tapnet.data.packed import Packed
from tapnet.data.source import SPLITS, some
from tapnet.wording import pluralize

INCOMPARABLE = "accuracies are not comparable with published ones"


@dataclass(frozen=True)
class Finding:
    """One line of a check. `good` is None for plain facts and False where the set is not the published one."""

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
    """Everything worth knowing of a packed dataset; one whose pixels have changed since it was packed is refused."""
    found = packed.digest()
    if found != packed.manifest.sha256:
        raise ValueError(
            f"The images in {packed.folder} are damaged: their sha-256 is {found}, and it was "
            f"{packed.manifest.sha256} when they were packed. Prepare them again with --overwrite."
        )
    return [*facts(packed), *differences(dataset, packed), *_twin_findings(packed, twins(packed, progress))]


def facts(packed: Packed) -> Iterator[Finding]:
    """What was packed, from what and how."""
    kept = packed.manifest
    height, width, channels = kept.preprocessing.shape
    yield Finding("read from", kept.source)
    yield Finding("classes", f"{len(packed.classes):,}")
    yield Finding("images", f"{kept.rows - len(kept.left_out):,} of {height}×{width}×{channels}")
    for split in dict.fromkeys((*SPLITS, *kept.splits)):
        names = [name for name in kept.splits.get(split, ()) if name in packed.classes]
        images = sum(len(packed.rows_of(name)) for name in names)
        yield Finding(f"split {split}", f"{pluralize(len(names), 'class')}, {pluralize(images, 'image')}")
    how = (
        f"{pluralize(kept.resized, 'image')} by {kept.preprocessing.filter}, {kept.preprocessing.fit}"
        if kept.resized
        else "no image had another size"
    )
    yield Finding("resized", how)
    if kept.preprocessing.ink is not None:
        yield Finding("ink", kept.preprocessing.ink)
    yield Finding("sha-256", kept.sha256, True)
    for note in kept.notes:
        yield Finding("note", note)


def differences(dataset: Dataset, packed: Packed) -> Iterator[Finding]:
    """Where it is not the published set."""
    kept = packed.manifest
    yield _overlap(packed)
    if kept.left_out:
        named = packed.row_names()
        bad = [f"{named[int(row)]} ({reason})" for row, reason in kept.left_out.items()]
        yield Finding("left out", f"{pluralize(len(bad), 'unreadable image')}: {some(bad)}", False)
        empty = [name for name in kept.classes if name not in packed.classes]
        if empty:
            yield Finding("no readable image", f"{pluralize(len(empty), 'class')}: {some(empty)}", False)
    if not dataset.classes:
        return
    missing, extra = sorted(dataset.classes - packed.classes), sorted(packed.classes - dataset.classes)
    if missing:
        words = f"{len(missing):,} of {len(dataset.classes):,} classes are missing ({some(missing)}): {INCOMPARABLE}"
        yield Finding("published classes", words, False)
    if extra:
        words = f"not in the published lists by name: {some(extra)}; the files gave the split"
        yield Finding("published classes", words, False)
    if not missing and not extra:
        yield Finding("published classes", f"all {len(dataset.classes):,} are there, split as published", True)
    yield _count(dataset, packed)
    sizes = ["×".join(map(str, shape)) for shape in (dataset.row_shape, kept.preprocessing.shape)]
    if sizes[0] != sizes[1]:
        yield Finding("published size", f"{sizes[0]}, and this is {sizes[1]}: {INCOMPARABLE}", False)
    if kept.resized:
        by = kept.preprocessing.filter
        words = f"{dataset.published_filter}; this was resized by {by}: expect small differences in accuracy"
        yield Finding("published resizing", words, None)


def _overlap(packed: Packed) -> Finding:
    places = defaultdict(list)
    for split in SPLITS:
        for name in packed.manifest.splits.get(split, ()):
            places[name].append(split)
    shared = [name for name, splits in places.items() if len(splits) > 1]
    words = (
        f"{pluralize(len(shared), 'class')} in two splits: {some(shared)}" if shared else "no class is in two splits"
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


def twins(packed: Packed, progress: Callable[[int, int], None]) -> list[DuplicateGroup]:
    """Groups of images that are the same to the last bit, by a digest of every row."""
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


def _twin_findings(packed: Packed, found: list[DuplicateGroup]) -> Iterator[Finding]:
    within = [each for each in found if len(each.classes) == 1]
    across = [each for each in found if len(each.classes) > 1 and len(each.splits) == 1]
    leaks = [each for each in found if len(each.splits) > 1]
    kinds = (
        ("same image in one class", within, "a query may be one of its own support images"),
        ("same image in two classes", across, "one of the two labels is wrong"),
        ("same image in two splits", leaks, "what one split is judged on is also in another"),
    )
    named = packed.row_names() if found else []
    for subject, groups, meaning in kinds:
        shown = some([" = ".join(named[row] for row in each.rows) for each in groups], 3)
        yield Finding(subject, f"{len(groups):,} ({shown}): {meaning}" if groups else "none", not groups)
