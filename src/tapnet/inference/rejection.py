"""A threshold for unknown classes from the examples of a task, so that nobody has to guess one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.functional import class_prototypes
from tapnet.inference.adaptation import adapt
from tapnet.inference.examples import Examples, distinct
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.predictor import LOSE
from tapnet.inference.task import Task
from tapnet.methods import Head

FOLDS = 5  # at most
FEWEST = 2  # different examples per class
MOST_CLASSES = 5  # that are left out in turn
LOG_WEIGHT = 0.1  # of the log probability; this and the next two were chosen on validation classes
BACKGROUND_WEIGHT, NEAREST = 0.5, 3  # of the mean cosine with so many of the nearest background classes
ADVANTAGE = 0.02  # of the area under the ROC curve, for which a score that is usually behind is taken
Scores = NDArray[np.float64]
Directions = NDArray[np.float32]


@dataclass(frozen=True)
class Familiarity:
    r"""What is known of a task's classes: how much an image looks like one of them, by several scores.

    - `probability`: $\max_k \log p_k$, without a temperature
    - `similarity`: $\max_k \cos(x, c_k) + 0.1 \max_k \log p_k$, with the mean directions $c_k$ of the classes
    - `background`: the same less half the mean of the three largest cosines with public classes, if there are any
    """

    head: Head
    centers: Directions  # (way, dim), of unit length
    background: Directions | None = None  # (classes, dim), of unit length

    def scores(self, features: NDArray[np.float32]) -> dict[str, Scores]:
        """Return each score (n,) by name, the one that is best on validation classes first."""
        directions = F.normalize(torch.from_numpy(features), dim=1)
        logits = self.head.logits(torch.from_numpy(features)).detach().double().numpy()
        probability: Scores = log_softmax(logits, axis=1).max(axis=1)
        similarity = _cosines(directions, self.centers).max(axis=1) + LOG_WEIGHT * probability
        found = {"similarity": similarity, "probability": probability}
        if self.background is None:
            return found
        nearest = np.sort(_cosines(directions, self.background), axis=1)[:, -NEAREST:].mean(axis=1)
        return {"background": similarity - BACKGROUND_WEIGHT * nearest} | found


@dataclass(frozen=True)
class Rejection:
    """Calls an image unknown if its score is below the threshold."""

    familiarity: Familiarity
    score: str
    threshold: float

    def rejected(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which images (n, dim) are of no class of the task."""
        return self.familiarity.scores(features)[self.score] < self.threshold


def fit_rejection(task: Task, model: EmbeddingModel, lose: float = LOSE) -> Rejection:
    """Return the rejection that loses at most about a share `lose` of the known images, as far as the examples tell.

    The examples are divided into up to 5 folds, and each fold is scored by a head fitted to the others. The threshold
    is the lower bound of one more such score (`lower_bound`): an image is scored by the head of all examples, which
    favors it a little. Which score it is, the classes tell: each in turn plays the unknown for a head fitted to the
    others. Raise UserError if a class has fewer than 2 different examples.
    """
    once, ranks = distinct(task.examples)
    _check(task, once, lose)

    def familiarity(examples: Examples) -> Familiarity:
        return Familiarity(adapt(examples, model, task.method, task.options), class_centers(examples), model.background)

    held: dict[str, list[Scores]] = {}
    for rest, left in _folds(once, ranks):
        for name, scores in familiarity(rest).scores(left.features).items():
            held.setdefault(name, []).append(scores)
    score = _best_score(once, ranks, familiarity) or next(iter(held))
    whole = Familiarity(task.head, class_centers(once), model.background)
    return Rejection(whole, score, lower_bound(np.concatenate(held[score]), lose))


def lower_bound(scores: Scores, share: float) -> float:
    r"""Return the bound below which one more score falls with the probability `share`, if they are normal.

    $\bar s - t_{n-1} \hat\sigma \sqrt{1 + 1/n}$: the fewer scores there are, the lower. A quantile of the scores
    themselves would be their minimum, or above it, wherever $n$ is less than one over the share.
    """
    count = len(scores)
    factor = student.ppf(1 - share, count - 1) * np.sqrt(1 + 1 / count)
    return float(scores.mean() - factor * scores.std(ddof=1))


def _check(task: Task, once: Examples, lose: float) -> None:
    if not 0 < lose < 1:
        raise UserError(f"Expected `lose` to be a share between 0 and 1, got {lose:g}.", parameter="lose")
    if task.examples.features.ndim != 2:
        raise UserError(f"A task fitted by {task.method} has no feature vectors: reject below a probability instead.")
    counts = np.bincount(once.labels, minlength=len(task.classes))
    if counts.min() < FEWEST:
        name = task.classes[int(counts.argmin())]
        raise UserError(
            f"A threshold from the examples needs {FEWEST} different images of every class, got {counts.min()} of "
            f"{name!r}: add images, or reject below a probability such as 0.6.",
            parameter="reject",
        )


def _folds(examples: Examples, ranks: NDArray[np.int64]) -> Iterator[tuple[Examples, Examples]]:
    """Yield the examples without each fold, and the fold."""
    for fold in range(min(FOLDS, int(ranks.max()) + 1)):
        chosen = ranks % FOLDS == fold
        yield examples.kept(~chosen), examples.kept(chosen)


def _best_score(
    examples: Examples, ranks: NDArray[np.int64], familiarity: Callable[[Examples], Familiarity]
) -> str | None:
    """Return the score that tells each class best from the others when it is left out; `None` below three classes.

    The first score is the best on validation classes: another one has to be clearly better, as examples are few.
    """
    way = int(examples.labels.max()) + 1
    if way < 3:
        return None
    found: dict[str, list[Scores]] = {}
    known: list[NDArray[np.bool_]] = []
    for absent in np.linspace(0, way - 1, min(way, MOST_CLASSES)).astype(int):
        for rest, left in _folds(examples, ranks):
            others = rest.kept(rest.labels != absent)
            labels = np.unique(others.labels, return_inverse=True)[1].astype(np.int64)  # from 0 on
            known.append(left.labels != absent)
            for name, scores in familiarity(replace(others, labels=labels)).scores(left.features).items():
                found.setdefault(name, []).append(scores)
    answers = np.concatenate(known)
    areas = {name: float(roc_auc_score(answers, np.concatenate(parts))) for name, parts in found.items()}
    first, best = next(iter(areas)), max(areas, key=lambda name: areas[name])
    return best if areas[best] > areas[first] + ADVANTAGE else first


def class_centers(examples: Examples) -> Directions:
    """Return the mean direction of each class (way, dim), of unit length."""
    labels = torch.from_numpy(examples.labels)
    directions = F.normalize(torch.from_numpy(examples.features), dim=1)
    centers = F.normalize(class_prototypes(directions, labels, int(labels.max()) + 1), dim=1)
    found: Directions = centers.numpy()
    return found


def _cosines(directions: torch.Tensor, others: Directions) -> Scores:
    cosines: Scores = (directions @ torch.from_numpy(others).T).double().numpy()
    return cosines
