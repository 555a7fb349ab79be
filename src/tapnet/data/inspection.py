"""A packed dataset inspected: how it differs from the published one, its duplicates, and sheets of its images."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tapnet.data.dataset import Dataset
from tapnet.data.episodes import EpisodeSampler
from tapnet.data.packed import ImageSet, Packed
from tapnet.data.readers import SPLITS
from tapnet.text import abbreviate, pluralize

INCOMPARABLE = "accuracies are not comparable with published ones"
GAP, NAMES_WIDTH, LEAST_SIDE = 4, 180, 56
PAPER, INK, RULE = (255, 255, 255), (40, 40, 40), (200, 60, 40)


class Finding(NamedTuple):
    """One line of a check. `good` is None for plain facts, False where the dataset is not the published one."""

    subject: str
    words: str
    good: bool | None = None


def check(dataset: Dataset, packed: Packed, progress: Callable[[int, int], None]) -> list[Finding]:
    """Return everything worth knowing about a packed dataset; raise UserError if its pixels are not those packed."""
    packed.verify()
    return [*summarize(packed), *differences(dataset, packed), *_duplicates(packed, progress)]


def summarize(packed: Packed) -> Iterator[Finding]:
    """Yield what was packed, from which source and how."""
    manifest = packed.manifest
    preprocessing, rows = manifest.preprocessing, packed.rows_by_class
    yield Finding("read from", manifest.source)
    yield Finding("classes", f"{len(rows):,}")
    size = "×".join(map(str, preprocessing.shape))
    yield Finding("images", f"{manifest.rows - len(manifest.left_out):,} of {size}")
    for split in dict.fromkeys((*SPLITS, *manifest.splits)):
        sizes = [len(rows[name]) for name in manifest.splits.get(split, ()) if name in rows]
        yield Finding(f"split {split}", f"{pluralize(len(sizes), 'class')}, {pluralize(sum(sizes), 'image')}")
    how = f"{pluralize(manifest.resized, 'image')} by {preprocessing.filter}, {preprocessing.fit}"
    yield Finding("resized", how if manifest.resized else "no image had another size")
    if preprocessing.ink is not None:
        yield Finding("ink", preprocessing.ink)
    yield Finding("sha-256", manifest.sha256, True)
    for note in manifest.notes:
        yield Finding("note", note)


def differences(dataset: Dataset, packed: Packed) -> Iterator[Finding]:
    """Yield how the packed dataset differs from the published one."""
    manifest, classes = packed.manifest, set(packed.rows_by_class)
    places: dict[str, int] = defaultdict(int)
    for split in SPLITS:
        for name in manifest.splits.get(split, ()):
            places[name] += 1
    shared = [name for name, count in places.items() if count > 1]
    words = f"{pluralize(len(shared), 'class')} in two splits: {abbreviate(shared)}"
    yield Finding("split overlap", words if shared else "no class is in two splits", not shared)
    if manifest.left_out:
        names = packed.row_names()
        bad = [f"{names[int(row)]} ({reason})" for row, reason in manifest.left_out.items()]
        yield Finding("left out", f"{pluralize(len(bad), 'unreadable image')}: {abbreviate(bad)}", False)
        if empty := [name for name in manifest.classes if name not in classes]:
            yield Finding("no readable image", f"{pluralize(len(empty), 'class')}: {abbreviate(empty)}", False)
    if not dataset.classes:
        return
    published = len(dataset.classes)
    if missing := sorted(dataset.classes - classes):
        words = f"{len(missing):,} of {published:,} classes are missing ({abbreviate(missing)}): {INCOMPARABLE}"
        yield Finding("published classes", words, False)
    if extra := sorted(classes - dataset.classes):
        words = f"not in the published lists by name: {abbreviate(extra)}; the files gave the split"
        yield Finding("published classes", words, False)
    if not missing and not extra:
        yield Finding("published classes", f"all {published:,} are there, split as published", True)
    images = manifest.rows - len(manifest.left_out)
    if images == dataset.images:
        yield Finding("published images", f"all {images:,} are there", True)
    else:
        few = [name for name in manifest.classes if len(packed.rows_by_class.get(name, ())) != dataset.images_per_class]
        per_class = f", in {pluralize(len(few), 'class')} not {dataset.images_per_class}"
        words = f"{dataset.images:,}, and this has {images:,}{per_class if dataset.images_per_class else ''}"
        yield Finding("published images", f"{words}: {INCOMPARABLE}", False)
    wanted, size = ("×".join(map(str, shape)) for shape in (dataset.row_shape, manifest.preprocessing.shape))
    if wanted != size:
        yield Finding("published size", f"{wanted}, and this is {size}: {INCOMPARABLE}", False)
    if manifest.resized:
        by = f"this was resized by {manifest.preprocessing.filter}: expect small differences in accuracy"
        yield Finding("published resizing", f"{dataset.published_filter}; {by}")


def _duplicates(packed: Packed, progress: Callable[[int, int], None]) -> Iterator[Finding]:
    """Yield how many groups of images have the same pixels: in one class, in two classes, in two splits."""
    names = list(packed.rows_by_class)
    rows = np.concatenate(list(packed.rows_by_class.values()))
    labels = np.repeat(np.arange(len(names)), [len(part) for part in packed.rows_by_class.values()])
    digests = np.empty(len(rows), dtype="V16")
    for place, row in enumerate(rows):
        digests[place] = np.void(hashlib.blake2b(packed.pixels[row].tobytes(), digest_size=16).digest())
        if place % 1000 == 0 or place + 1 == len(rows):
            progress(place + 1, len(rows))
    _, group, counts = np.unique(digests, return_inverse=True, return_counts=True)
    order, ends = np.argsort(group, kind="stable"), np.cumsum(counts)
    split_of = {name: split for split in SPLITS for name in packed.manifest.splits.get(split, ())}
    row_names = packed.row_names()
    meanings = {
        "in one class": "a query may be one of its own support images",
        "in two classes": "one of the two labels is wrong",
        "in two splits": "an image of one split is also in another",
    }
    groups: dict[str, list[str]] = {where: [] for where in meanings}
    for number in np.flatnonzero(counts > 1):
        places = order[ends[number] - counts[number] : ends[number]]
        classes = {names[label] for label in labels[places]}
        splits = {split_of.get(name, "none") for name in classes}
        where = "in two splits" if len(splits) > 1 else "in two classes" if len(classes) > 1 else "in one class"
        groups[where].append(" = ".join(row_names[row] for row in rows[places]))
    for where, copies in groups.items():
        words = f"{len(copies):,} ({abbreviate(copies, 3)}): {meanings[where]}" if copies else "none"
        yield Finding(f"same image {where}", words, not copies)


def contact_sheet(images: ImageSet, classes: int, per_class: int) -> Image.Image:
    """Return the first images of classes spread evenly over the split, one row per class, with the class names."""
    count = len(images.class_names)
    shown = np.linspace(0, count - 1, min(classes, count)).round().astype(np.int64)
    rows = [images.gather(np.flatnonzero(images.labels == label)[:per_class]) for label in shown]
    return _grid(rows, [images.class_names[label] for label in shown], f"{images.name}, {images.split}")


def fitting_sampler(
    images: ImageSet, way: int | None, shot: int, query: int | None, seed: int
) -> EpisodeSampler | None:
    """Return a sampler; a size of None is as large as possible, up to 5. Return None if no episode is possible."""
    counts = np.unique(images.labels, return_counts=True)[1]
    if len(counts) < 2 or counts.min() < 2:
        return None
    way = min(5, len(counts)) if way is None else way
    query = max(1, min(5, int(counts.min()) - shot)) if query is None else query
    return images.episodes(way, shot, query, seed)


def episode_sheet(images: ImageSet, sampler: EpisodeSampler, index: int) -> Image.Image:
    """Return one episode: one row per class, its support left of the rule and its queries right of it."""
    episode, spec = sampler[index], sampler.spec
    rows = images.gather(np.concatenate([episode.support, episode.query], axis=1))
    title = f"{spec.way}-way {spec.shot}-shot, episode {index} of seed {spec.seed}: support | query"
    return _grid(list(rows), [images.class_names[label] for label in episode.classes], title, rule_after=spec.shot)


def _grid(rows: list[NDArray[np.uint8]], names: list[str], title: str, rule_after: int | None = None) -> Image.Image:
    zoom = max(1, -(-LEAST_SIDE // rows[0].shape[1]))
    height, width = rows[0].shape[1] * zoom + GAP, rows[0].shape[2] * zoom + GAP
    columns = max(map(len, rows))
    sheet = Image.new("RGB", (NAMES_WIDTH + columns * width + 3 * GAP, (len(rows) + 1) * height + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    draw.text((GAP, GAP), title, fill=INK, font=font)
    for line, (row, name) in enumerate(zip(rows, names, strict=True), start=1):
        cuts = (name if not cut else f"…{name[cut:]}" for cut in range(len(name) + 1))  # as much of its end as fits
        fitting = next(text for text in cuts if font.getlength(text) <= NAMES_WIDTH - 2 * GAP)
        draw.text((GAP, line * height + GAP), fitting, fill=INK, font=font)
        for column, pixels in enumerate(row):
            right = 2 * GAP if rule_after is not None and column >= rule_after else 0
            image = Image.fromarray(pixels.squeeze(axis=2) if pixels.shape[2] == 1 else pixels)
            tile = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
            sheet.paste(tile.convert("RGB"), (NAMES_WIDTH + column * width + right, line * height))
    if rule_after is not None:
        place = NAMES_WIDTH + rule_after * width + GAP // 2
        draw.line([(place, height), (place, sheet.height - GAP)], fill=RULE, width=2)
    return sheet
