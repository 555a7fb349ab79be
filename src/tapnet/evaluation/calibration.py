"""Temperatures that calibrate a method's probabilities, by way and shot, fitted on classes not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from tapnet import hardware
from tapnet.checkpoint import read_checkpoint
from tapnet.data import ImageSet
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.embedding import embed
from tapnet.methods import METHODS, PARAMETER_FREE, Method, method_name

QUERY = 5
GRID = ((2, 5, 20, 60), (1, 2, 5, 20), 20)  # ways, shots, episodes of each pair
SLOW_GRID = ((2, 5, 20), (1, 2, 5), 4)  # for methods that take one episode at a time, whose temperature varies less
SEED = 2**32 + 1  # not the episodes that choose the checkpoint
Logits = NDArray[np.float64]
Labeled = tuple[Tensor, NDArray[np.int64]]  # features and labels
Grid = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Calibration:
    """The temperatures of each method: `{"ways": […], "shots": […], "temperatures": [[…]]}`, one row per way."""

    tables: Mapping[str, Any] = field(default_factory=dict)

    def temperature(self, method: str, shots: Sequence[int]) -> float:
        """Return the temperature for a task with these numbers of examples per class; 1 if there is no calibration."""
        if method not in self.tables:
            return 1.0
        table = self.tables[method]
        shot = float(np.log(shots).mean())
        by_way = [np.interp(shot, np.log(table["shots"]), np.log(row)) for row in table["temperatures"]]
        return float(np.exp(np.interp(np.log(len(shots)), np.log(table["ways"]), by_way)))


def calibrate(method: Method, *sets: Labeled, grid: Grid | None = None) -> dict[str, Any]:
    """Return the table of a method and of those without parameters, from features of classes not trained on.

    Each episode is from one set of features and labels; a set with fewer classes than a way has no episodes of that
    way. `grid` is (ways, shots, episodes of each pair in each set). TapNet's table is for the projection dimension of
    the network; `inference.model_selection` scales it for tasks with another one.
    """
    counts = [np.unique(labels, return_counts=True)[1] for _, labels in sets]
    others = () if method.task_features or method.feature_maps else PARAMETER_FREE
    methods = {name: METHODS[name](method.backbone) for name in others} | {method_name(method): method}
    most, fewest = max(map(len, counts)), min(int(per_class.min()) for per_class in counts)
    if most < 2 or fewest <= QUERY or method.transductive:
        return {}
    tables = {}
    for name, candidate in methods.items():
        candidate = candidate.with_options(**candidate.order_free_options).eval()
        limit = min(most, candidate.max_way or most)
        ways_, shots_, episodes = grid or (GRID if candidate.batched else SLOW_GRID)
        ways = sorted({min(way, limit) for way in ways_})
        shots = [shot for shot in shots_ if shot + QUERY <= fewest]
        specs = [[EpisodeSpec(way, shot, QUERY, episodes, SEED) for shot in shots] for way in ways]
        temperatures = [[_temperature(candidate, sets, spec) for spec in row] for row in specs]
        tables[name] = {"ways": ways, "shots": shots, "temperatures": temperatures}
    return tables


def _temperature(method: Method, sets: Sequence[Labeled], spec: EpisodeSpec) -> float:
    large = [(features, labels) for features, labels in sets if len(np.unique(labels)) >= spec.way]
    logits, answers = zip(*(logits_and_answers(method, *labeled, spec) for labeled in large), strict=True)
    return fit_temperature(np.concatenate(logits), np.concatenate(answers))


def calibrate_checkpoint(path: Path, images: ImageSet, features: Tensor | None = None) -> None:
    """Store in a checkpoint the temperatures that fit these images, of classes that it was not trained on.

    `features` are those of the images, if they are known already.
    """
    checkpoint = read_checkpoint(path)
    method = checkpoint.method()
    if method.task_features or method.transductive:
        return
    if features is None:
        features = embed(method.backbone, images, maps=method.feature_maps)  # shared by all processes
    if hardware.rank() == 0:
        tables = calibrate(method, (features.cpu(), images.labels))
        replace(checkpoint, header=replace(checkpoint.header, calibration=tables)).write(path)


def logits_and_answers(
    method: Method, features: Tensor, labels: NDArray[np.int64], spec: EpisodeSpec
) -> tuple[Logits, NDArray[np.int64]]:
    """Return logits (n, way) of the queries of these episodes, in float64, and their classes."""
    sampler, logits = EpisodeSampler(labels, spec), []
    support_labels = class_labels(spec.way, spec.shot)
    for index in range(spec.episodes):
        support, query = features[sampler[index].indices].split([len(support_labels), spec.way * spec.query])
        with torch.no_grad():
            head = method.adapt(support, support_labels, spec.way)
            logits.append((head.linear() or head).logits(query).detach().double().numpy())
    return np.concatenate(logits), np.tile(np.repeat(np.arange(spec.way), spec.query), spec.episodes)


def fit_temperature(logits: Logits, answers: NDArray[np.int64]) -> float:
    """Return the temperature of least cross-entropy, between e⁻⁷ and e⁷, as if there were two more answers, one wrong.

    This is Platt's correction: if all answers are right, the least cross-entropy alone would mean certainty.
    """
    count, way = logits.shape
    wrong = 1 / (count + 2)

    def loss(log_temperature: float) -> float:
        logs = log_softmax(logits / np.exp(log_temperature), axis=1)
        right = logs[np.arange(count), answers]
        others = (logs.sum(axis=1) - right) / (way - 1)
        return float(-((1 - wrong) * right + wrong * others).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x))


def calibration_error(confidences: NDArray[np.float64], correct: NDArray[np.bool_]) -> float:
    """Return how far confidence and accuracy lie apart, over 15 bins of equal width; `tools/` and tests measure it."""
    bins = np.minimum((confidences * 15).astype(int), 14)
    members = [bins == k for k in np.unique(bins)]
    return float(sum(abs(confidences[one].mean() - correct[one].mean()) * one.mean() for one in members))
