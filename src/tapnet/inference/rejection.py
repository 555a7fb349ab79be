"""A threshold for unknown classes from the examples of a task, so that nobody has to guess one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.functional import class_prototypes
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Examples, Task, adapt, distinct
from tapnet.methods import Head

FOLDS = 5  # and the fewest different examples per class
LOG_WEIGHT = 0.1  # chosen on validation classes
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Rejection:
    """Calls an image unknown if its score is below the threshold."""

    head: Head
    centers: NDArray[np.float32]  # (way, dim), of unit length
    threshold: float

    def rejected(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which images (n, dim) are of no class of the task."""
        return known_scores(self.head, self.centers, features) < self.threshold


def fit_rejection(task: Task, model: EmbeddingModel, lose: float = 0.05) -> Rejection:
    """Return the rejection that loses a share `lose` of the known images, as far as the examples tell.

    The examples are divided into 5 folds, and each fold is scored by a head fitted to the others: the threshold is the
    quantile `lose` of these scores. Raise UserError if a class has fewer than 5 different examples.
    """
    if not 0 < lose < 1:
        raise UserError(f"Expected `lose` to be a share between 0 and 1, got {lose:g}.", parameter="lose")
    if task.examples.features.ndim != 2:
        raise UserError(f"A task fitted by {task.method} has no feature vectors: reject below a probability instead.")
    once, ranks = distinct(task.examples)
    counts = np.bincount(once.labels, minlength=len(task.classes))
    if counts.min() < FOLDS:
        name = task.classes[int(counts.argmin())]
        raise UserError(
            f"A threshold from the examples needs {FOLDS} different images of every class, got {counts.min()} of "
            f"{name!r}: add images, or reject below a probability such as 0.6.",
            parameter="reject",
        )
    held = []
    for fold in range(FOLDS):
        rest = once.kept(ranks % FOLDS != fold)
        head = adapt(rest, model, task.method, task.options)
        held.append(known_scores(head, class_centers(rest), once.kept(ranks % FOLDS == fold).features))
    return Rejection(task.head, class_centers(once), float(np.quantile(np.concatenate(held), lose)))


def known_scores(head: Head, centers: NDArray[np.float32], features: NDArray[np.float32]) -> Scores:
    r"""Return $\max_k \cos(x, c_k) + 0.1 \max_k \log p_k$ of each image, high if it is known; p has no temperature."""
    directions = F.normalize(torch.from_numpy(features), dim=1)
    cosines = (directions @ torch.from_numpy(centers).T).amax(dim=1).double().numpy()
    logits = head.logits(torch.from_numpy(features)).detach().double().numpy()
    scores: Scores = cosines + LOG_WEIGHT * log_softmax(logits, axis=1).max(axis=1)
    return scores


def class_centers(examples: Examples) -> NDArray[np.float32]:
    """Return the mean direction of each class (way, dim), of unit length."""
    labels = torch.from_numpy(examples.labels)
    directions = F.normalize(torch.from_numpy(examples.features), dim=1)
    centers = F.normalize(class_prototypes(directions, labels, int(labels.max()) + 1), dim=1)
    found: NDArray[np.float32] = centers.numpy()
    return found
