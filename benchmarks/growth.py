"""How the cost of an episode's head grows with way, shot, query and dim, and of drawing with the number of images."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pairs
import torch
from evaluation import Nothing
from pairs import Row

from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.evaluation.plotting import COLORS, new_figure, save
from tapnet.hardware import to_float_tensor
from tapnet.methods import TapNet

BASE = {"way": 5, "shot": 5, "query": 15, "dim": 512}
AXES = {
    "way": (5, 10, 20, 40, 64),
    "shot": (1, 2, 5, 10, 20),
    "query": (5, 15, 30, 60),
    "dim": (65, 128, 256, 512, 1024, 2304),  # 64 references need more than 64
}
IMAGES = (1_000, 10_000, 100_000, 1_000_000)
LONG_ENOUGH = 0.05  # seconds of one measurement
CLASSES, EACH = 70, 100

Work = Callable[[int], object]  # does so many episodes
Growth = dict[str, list[tuple[int, float]]]


def growth(rounds: int) -> Growth:
    """For each axis the values and the seconds per episode; for images the seconds to draw and gather one."""
    table = {
        axis: _measured({value: _episodes(**(BASE | {axis: value})) for value in values}, rounds)
        for axis, values in AXES.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        table["images"] = _measured({count: _gathering(count, Path(folder)) for count in IMAGES}, rounds)
    return table


def rows(table: Growth) -> list[Row]:
    result = []
    for axis, points in table.items():
        (first, least), (last, most) = points[0], points[-1]
        note = ", ".join(f"{value:,}: {1e6 * seconds:.0f}" for value, seconds in points)
        result.append(Row(f"growth: {axis} {last:,} / {axis} {first:,}", most / least, "", most, least, f"µs {note}"))
    return result


def _episodes(way: int, shot: int, query: int, dim: int) -> Work:
    """Episodes over made-up features of a split of 7,000 images."""
    torch.manual_seed(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    evaluator = Evaluator(
        TapNet(Nothing(dim), num_references=64).eval().requires_grad_(False),
        _image_set(np.zeros((len(labels), 1, 1, 1), np.uint8), labels),
    )
    evaluator._features = torch.randn(len(labels), dim)
    return lambda count: evaluator.accuracies(EpisodeSpec(way, shot, query, count))


def _gathering(count: int, folder: Path) -> Work:
    """Draw episodes, never the same twice, and gather their images from a memory-mapped file of 28×28 images."""
    pixels = np.memmap(folder / f"{count}.bin", np.uint8, "w+", shape=(count, 28, 28, 1))
    images = _image_set(pixels, np.arange(count) % (count // EACH))
    sampler, numbers = images.episodes(BASE["way"], BASE["shot"], BASE["query"]), itertools.count()

    def work(episodes: int) -> None:
        for episode in (sampler[index] for index in itertools.islice(numbers, episodes)):
            rows = np.concatenate([episode.support, episode.query], axis=1).reshape(-1)
            to_float_tensor(images.gather(rows), torch.device("cpu"))

    return work


def _image_set(pixels: np.ndarray, labels: np.ndarray) -> ImageSet:
    names = tuple(map(str, range(labels.max() + 1)))
    return ImageSet("made-up", "test", pixels, np.arange(len(labels)), labels, names, "0" * 64)


def _measured(works: dict[int, Work], rounds: int) -> list[tuple[int, float]]:
    """Median seconds per episode over rounds in which all alternate, each with enough episodes to be timed."""
    for work in works.values():
        work(10)
    counts = {value: max(2, int(10 * LONG_ENOUGH / _seconds(work, 10))) for value, work in works.items()}
    times = [{value: _seconds(work, counts[value]) for value, work in works.items()} for _ in range(rounds)]
    return [(value, statistics.median(turn[value] for turn in times) / counts[value]) for value in works]


def _seconds(work: Work, episodes: int) -> float:
    return pairs.seconds(lambda: work(episodes))


def plot(table: Growth, out: Path) -> Path:
    figure, axes = new_figure(3.2 * len(table), 3.4, columns=len(table))
    for axis, (name, points), color in zip(axes, table.items(), COLORS, strict=False):
        values, seconds = zip(*points, strict=True)
        axis.loglog(values, [1e6 * taken for taken in seconds], "o-", color=color)
        axis.set(xlabel=name, ylabel="µs an episode", title=name)
        axis.grid(alpha=0.3)
    return save(figure, out)
