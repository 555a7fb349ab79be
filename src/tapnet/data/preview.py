"""Previews of a dataset: a contact sheet of its classes, and an episode as a model sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tapnet.data.episodes import EpisodeSampler
from tapnet.data.image_set import ImageSet

GAP, NAMES_WIDTH, LEAST_SIDE = 4, 180, 56
PAPER, INK, RULE = (255, 255, 255), (40, 40, 40), (200, 60, 40)


def contact_sheet(images: ImageSet, classes: int, per_class: int) -> Image.Image:
    """Return the first images of classes spread evenly over the split, one row per class, with the class names."""
    count = len(images.class_names)
    shown = np.linspace(0, count - 1, min(classes, count)).round().astype(np.int64)
    rows = [np.flatnonzero(images.labels == label)[:per_class] for label in shown]
    names = [images.class_names[label] for label in shown]
    return _grid([images.gather(row) for row in rows], names, f"{images.name}, {images.split}")


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
    episode = sampler[index]
    rows = np.concatenate([episode.support, episode.query], axis=1)
    names = [images.class_names[label] for label in episode.classes]
    title = (
        f"{sampler.spec.way}-way {sampler.spec.shot}-shot, episode {index} of seed {sampler.spec.seed}: support | query"
    )
    return _grid(list(images.gather(rows)), names, title, rule_after=sampler.spec.shot)


def _grid(rows: list[NDArray[np.uint8]], names: list[str], title: str, rule_after: int | None = None) -> Image.Image:
    zoom = max(1, -(-LEAST_SIDE // rows[0].shape[1]))
    height, width = rows[0].shape[1] * zoom + GAP, rows[0].shape[2] * zoom + GAP
    columns = max(map(len, rows))
    sheet = Image.new("RGB", (NAMES_WIDTH + columns * width + 3 * GAP, (len(rows) + 1) * height + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    draw.text((GAP, GAP), title, fill=INK, font=font)
    for line, (row, name) in enumerate(zip(rows, names, strict=True), start=1):
        draw.text((GAP, line * height + GAP), _shortened(name, font), fill=INK, font=font)
        for column, pixels in enumerate(row):
            right = 2 * GAP if rule_after is not None and column >= rule_after else 0
            image = Image.fromarray(pixels.squeeze(axis=2) if pixels.shape[2] == 1 else pixels).convert("RGB")
            tile = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
            sheet.paste(tile, (NAMES_WIDTH + column * width + right, line * height))
    if rule_after is not None:
        place = NAMES_WIDTH + rule_after * width + GAP // 2
        draw.line([(place, height), (place, sheet.height - GAP)], fill=RULE, width=2)
    return sheet


def _shortened(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return the name, or as much of its end as fits."""
    if font.getlength(name) <= NAMES_WIDTH - 2 * GAP:
        return name
    while font.getlength("…" + name) > NAMES_WIDTH - 2 * GAP:
        name = name[1:]
    return "…" + name
