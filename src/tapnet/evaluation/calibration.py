"""Temperatures that make a head's probabilities honest, by way and shot, fitted on classes not trained on."""

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

from tapnet import distributed
from tapnet.checkpoint import read_checkpoint
from tapnet.data import ImageSet
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler
from tapnet.evaluation.embedding import embed
from tapnet.heads import HEADS, HeadOptions, adapt
from tapnet.methods import EmbeddingMethod, references_of

QUERY = 5
GRIDS = {  # ways, shots and episodes a cell; a logistic regression takes longer, and its temperature moves less
    "tapnet": ((2, 5, 20, 60), (1, 2, 5, 20), 20),
    "centroid": ((2, 5, 20, 60), (1, 2, 5, 20), 20),
    "logistic": ((2, 5, 20), (1, 2, 5), 4),
}
SEED = 2**32 + 1  # other episodes than those that choose the checkpoint
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """For every head its temperatures: `{"ways": […], "shots": […], "temperatures": [[…]]}`, a row a way."""

    tables: Mapping[str, Any] = field(default_factory=dict)

    def temperature(self, head: str, shots: Sequence[int]) -> float:
        """For a task with this number of examples of each class; 1 when the network was not calibrated."""
        if head not in self.tables:
            return 1.0
        table = self.tables[head]
        shot = float(np.log(shots).mean())
        by_way = [np.interp(shot, np.log(table["shots"]), np.log(row)) for row in table["temperatures"]]
        return float(np.exp(np.interp(np.log(len(shots)), np.log(table["ways"]), by_way)))


def calibrate(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    references: torch.Tensor | None,
    reference_bias: torch.Tensor | None = None,
    projection_dim: int | None = None,
) -> dict[str, Any]:
    """The tables of every head that can be fitted, from features of classes that were not trained on.

    TapNet's is for `projection_dim`, that of the network; where a task has another, `tasks.task` scales it.
    """
    classes, counts = np.unique(labels, return_counts=True)
    limit = len(classes) if references is None else min(len(classes), len(references), features.shape[1] - 1)
    heads = [head for head in HEADS if head != "tapnet" or references is not None]
    if limit < 2 or counts.min() <= QUERY:
        return {}
    options, tables = HeadOptions(references, projection_dim=projection_dim, reference_bias=reference_bias), {}
    for head in heads:
        ways = sorted({min(way, limit) for way in GRIDS[head][0]})
        shots = [shot for shot in GRIDS[head][1] if shot + QUERY <= counts.min()]
        cells = [[scores_and_answers(head, features, labels, options, way, shot) for shot in shots] for way in ways]
        temperatures = [[fit_temperature(*cell) for cell in row] for row in cells]
        tables[head] = {"ways": ways, "shots": shots, "temperatures": temperatures}
    return tables


def calibrate_checkpoint(path: Path, images: ImageSet, features: torch.Tensor | None = None) -> None:
    """Store in a checkpoint the temperatures that fit these images, of classes that it was not trained on.

    `features` are those of the images, where they are known.
    """
    checkpoint = read_checkpoint(path)
    method = checkpoint.method()
    if isinstance(method, EmbeddingMethod):
        if features is None:
            features = embed(method, images)  # the work of all processes; the rest is that of the first
        if distributed.rank() > 0:
            return
        others = (getattr(method, name, None) for name in ("reference_bias", "projection_dim"))
        tables = calibrate(features.cpu().numpy(), images.labels, references_of(method), *others)
        replace(checkpoint, header=replace(checkpoint.header, calibration=tables)).write(path)


def scores_and_answers(
    head: str,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    options: HeadOptions,
    way: int,
    shot: int,
) -> tuple[Scores, NDArray[np.int64]]:
    """Logits (n, way) of the queries of a cell's episodes, and their classes."""
    sampler = EpisodeSampler(labels, way, shot, QUERY, SEED)
    scores = []
    for index in range(GRIDS[head][2]):
        episode = sampler[index]
        support = torch.from_numpy(features[episode.support.reshape(-1)])
        adapted = adapt(head, support, class_labels(way, shot), way, options)
        scores.append(adapted.scores(features[episode.query.reshape(-1)]))
    return np.concatenate(scores), np.tile(np.repeat(np.arange(way), QUERY), len(scores))


def fit_temperature(scores: Scores, answers: NDArray[np.int64]) -> float:
    """The temperature of least cross-entropy, between e⁻⁷ and e⁷, as if of two answers more one had been wrong.

    This is Platt's correction: where all answers are right, the least cross-entropy alone would be that of certainty.
    """
    count, way = scores.shape
    wrong = 1 / (count + 2)

    def loss(log_temperature: float) -> float:
        logs = log_softmax(scores / np.exp(log_temperature), axis=1)
        right = logs[np.arange(count), answers]
        others = (logs.sum(axis=1) - right) / (way - 1)
        return float(-((1 - wrong) * right + wrong * others).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x))
