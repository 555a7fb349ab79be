"""How the cost of an episode's head grows with way, shot, query and dim, and of drawing with the number of images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tapnet.analysis.plotting import COLOURS, new_figure, save
from tapnet.backbones import Backbone
from tapnet.batches import as_input
from tapnet.datasets import ImageSet
from tapnet.episodes import EpisodeSampler
from tapnet.evaluation import Evaluator
from tapnet.methods import TapNet

BASE = {"way": 5, "shot": 5, "query": 15, "dim": 512}
AXES = {
    "way": (5, 10, 20, 40, 64),
    "shot": (1, 2, 5, 10, 20),
    "query": (5, 15, 30, 60),
    "dim": (64, 128, 256, 512, 1024, 2304),
}
IMAGES = (1_000, 10_000, 100_000, 1_000_000)


class Nothing(Backbone):
    """Stands where the backbone would; its features are made up."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.image_shape = dim, (1, 1, 1)


def growth() -> dict[str, list[tuple[int, float]]]:
    """For each axis the values and the seconds an episode; for images the seconds to draw and gather one."""
    table = {axis: [(value, _episode_seconds(**(BASE | {axis: value}))) for value in AXES[axis]] for axis in AXES}
    with tempfile.TemporaryDirectory() as folder:
        table["images"] = [(count, _gather_seconds(count, Path(folder))) for count in IMAGES]
    return table


def _episode_seconds(way: int, shot: int, query: int, dim: int, episodes: int = 200) -> float:
    torch.manual_seed(0)
    labels = np.repeat(np.arange(70), 100)
    method = TapNet(Nothing(dim), ways=min(64, dim - 1)).eval().requires_grad_(False)
    if way > len(method.references):
        way = len(method.references)
    pixels = np.zeros((len(labels), 1, 1, 1), np.uint8)
    images = ImageSet("made-up", "test", pixels, np.arange(len(labels)), labels, tuple(map(str, range(70))), "0" * 64)
    judge = Evaluator(method, images)
    judge._features = torch.randn(len(labels), dim)
    return _best(lambda: judge.accuracies(way, shot, query, episodes)) / episodes


def _gather_seconds(count: int, folder: Path, episodes: int = 50) -> float:
    """Draw an episode and gather its images from a memory-mapped file of so many 28×28 images."""
    path = folder / f"{count}.bin"
    pixels = np.memmap(path, np.uint8, "w+", shape=(count, 28, 28, 1))
    labels = np.arange(count) % (count // 100)
    names = tuple(map(str, range(count // 100)))
    images = ImageSet("made-up", "test", pixels, np.arange(count), labels, names, "0" * 64)
    sampler = EpisodeSampler(labels, 5, 5, 15)

    def work() -> None:
        for index in range(episodes):
            episode = sampler[index]
            as_input(
                images.gather(np.concatenate([episode.support, episode.query], axis=1).reshape(-1)),
                torch.device("cpu"),
            )

    seconds = _best(work) / episodes
    path.unlink()
    return seconds


def _best(work: Callable[[], object], times: int = 5) -> float:
    """The fastest of several: the one that was disturbed least."""
    work()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def plot(table: dict[str, list[tuple[int, float]]], out: Path) -> Path:
    figure, axes = new_figure(3.2 * len(table), 3.4, columns=len(table))
    for axis, (name, points), colour in zip(axes, table.items(), COLOURS, strict=False):
        values, seconds = zip(*points, strict=True)
        axis.loglog(values, [1e6 * each for each in seconds], "o-", color=colour)
        axis.set(xlabel=name, ylabel="µs an episode", title=name)
        axis.grid(alpha=0.3)
    return save(figure, out)
