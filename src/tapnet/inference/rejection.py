"""What "unknown" means: a threshold from the examples of a task, so that nobody has to guess one.

An image is unknown if it looks too little like the classes of the task, compared with examples that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from scipy.special import log_softmax
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.functional import class_prototypes
from tapnet.inference.networks import EmbeddingModel, exact_head
from tapnet.inference.predictor import LOSE
from tapnet.inference.task import Examples, Task
from tapnet.paths import BUNDLED

FOLDS = 5  # at most
FEWEST = 2  # different examples per class
MOST_CLASSES = 5  # that are left out in turn
LOG_WEIGHT = 0.1  # of the log probability; this and the next two were chosen on validation classes
BACKGROUND_WEIGHT, NEAREST = 0.5, 3  # of the mean cosine with so many of the nearest background classes
ADVANTAGE = 0.02  # of the area under the ROC curve, for which a score that is usually behind is taken
BACKGROUND = BUNDLED / "background"
Scores = NDArray[np.float64]
Directions = NDArray[np.float32]


@dataclass(frozen=True)
class KnownClassScores:
    r"""How much an image looks like one of the classes of a task, by several scores.

    - `probability`: $\max_k \log p_k$, without a temperature
    - `similarity`: $\max_k \cos(x, c_k) + 0.1 \max_k \log p_k$, with the mean directions $c_k$ of the classes
    - `background`: the same less half the mean of the three largest cosines with public classes, if there are any
    """

    centers: Directions  # (way, dim), of unit length
    background: Directions | None = None  # (classes, dim), of unit length

    def __call__(self, features: NDArray[np.float32], logits: Scores) -> dict[str, Scores]:
        """Return each score (n,) by name, the one that is best on validation classes first."""
        directions = F.normalize(torch.from_numpy(features), dim=1)
        probability: Scores = log_softmax(logits, axis=1).max(axis=1)
        similarity = _cosines(directions, self.centers).max(axis=1) + LOG_WEIGHT * probability
        scores = {"similarity": similarity, "probability": probability}
        if self.background is None:
            return scores
        nearest = np.sort(_cosines(directions, self.background), axis=1)[:, -NEAREST:].mean(axis=1)
        return {"background": similarity - BACKGROUND_WEIGHT * nearest} | scores


@dataclass(frozen=True)
class Rejection:
    """Calls an image unknown if its score is below the threshold."""

    known: KnownClassScores
    score: str
    threshold: float

    def rejected(self, features: NDArray[np.float32], logits: Scores) -> NDArray[np.bool_]:
        """Return which images, by their features (n, dim) and logits (n, way), are of no class of the task."""
        return self.known(features, logits)[self.score] < self.threshold


def fit_rejection(task: Task, model: EmbeddingModel, lose: float = LOSE) -> Rejection:
    """Return the rejection that loses at most about a share `lose` of the known images, as far as the examples tell.

    The examples are divided into up to 5 folds, and each fold is scored by a head fitted to the others. The threshold
    is the lower bound of one more such score (`lower_bound`): an image is scored by the head of all examples, which
    favors it a little. The score is chosen by leaving one class out at a time. Raise UserError if a class has fewer
    than 2 different examples.
    """
    if not 0 < lose < 1:
        raise UserError(f"Expected `lose` to be a share between 0 and 1, got {lose:g}.", parameter="lose")
    if task.examples.features.ndim != 2:
        raise UserError(f"A task fitted by {task.method} has no feature vectors: reject below a probability instead.")
    once, ranks = task.examples.distinct()
    counts = np.bincount(once.labels, minlength=len(task.classes))
    if counts.min() < FEWEST:
        raise UserError(
            f"A threshold from the examples needs {FEWEST} different images of every class, got {counts.min()} of "
            f"{task.classes[int(counts.argmin())]!r}: add images, or reject below a probability such as 0.6.",
            parameter="reject",
        )
    background = read_background(model)

    def held_out_scores(rest: Examples, left: Examples) -> dict[str, Scores]:
        head = exact_head(model.adapt(rest.features, rest.labels, task.method, task.options))
        known = KnownClassScores(class_centers(rest), background)
        return known(left.features, model.logits(head, left.features))

    folds = [(once.take(ranks % FOLDS != fold), once.take(ranks % FOLDS == fold)) for fold in range(FOLDS)]
    folds = [(rest, left) for rest, left in folds if len(left)]
    held = [held_out_scores(rest, left) for rest, left in folds]
    score = _best_score(folds, held_out_scores) if len(task.classes) > 2 else next(iter(held[0]))
    threshold = lower_bound(np.concatenate([scores[score] for scores in held]), lose)
    return Rejection(KnownClassScores(class_centers(once), background), score, threshold)


def _best_score(
    folds: Sequence[tuple[Examples, Examples]], held_out_scores: Callable[[Examples, Examples], dict[str, Scores]]
) -> str:
    """Return the score that tells each class best from the others when it is left out.

    The first score is the best on validation classes: another one has to be clearly better, as examples are few.
    """
    way = int(folds[0][0].labels.max()) + 1
    parts: list[dict[str, Scores]] = []
    known: list[NDArray[np.bool_]] = []
    for absent in np.linspace(0, way - 1, min(way, MOST_CLASSES)).astype(int):
        for rest, left in folds:
            others = rest.take(rest.labels != absent)
            labels = np.unique(others.labels, return_inverse=True)[1].astype(np.int64)  # from 0 on
            known.append(left.labels != absent)
            parts.append(held_out_scores(replace(others, labels=labels), left))
    answers = np.concatenate(known)
    areas = {
        name: float(roc_auc_score(answers, np.concatenate([scores[name] for scores in parts]))) for name in parts[0]
    }
    first, best = next(iter(areas)), max(areas, key=lambda name: areas[name])
    return best if areas[best] > areas[first] + ADVANTAGE else first


def lower_bound(scores: Scores, share: float) -> float:
    r"""Return the bound below which one more score falls with the probability `share`, if they are normal.

    $\bar s - t_{n-1} \hat\sigma \sqrt{1 + 1/n}$: the fewer scores there are, the lower. A quantile of the scores
    themselves would be their minimum, or above it, wherever $n$ is less than one over the share.
    """
    count = len(scores)
    factor = student.ppf(1 - share, count - 1) * np.sqrt(1 + 1 / count)
    return float(scores.mean() - factor * scores.std(ddof=1))


def class_centers(examples: Examples) -> Directions:
    """Return the mean direction of each class (way, dim), of unit length."""
    labels = torch.from_numpy(examples.labels)
    directions = F.normalize(torch.from_numpy(examples.features), dim=1)
    centers: Directions = F.normalize(class_prototypes(directions, labels, int(labels.max()) + 1), dim=1).numpy()
    return centers


def _cosines(directions: torch.Tensor, others: Directions) -> Scores:
    return (directions @ torch.from_numpy(others).T).double().numpy()


def read_background(model: EmbeddingModel) -> Directions | None:
    """Return directions (classes, dim) of public classes, or `None` if there are none for this very network.

    They are what an image may show if no class of a task. The file, which tools/build_background.py writes, keeps
    square roots of averaged features, in bytes; as maps of one pixel they go through the metric of the backbone.
    """
    path = BACKGROUND / f"{model.name}.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("network_sha256") != model.sha256:
            return None
        roots = file.get_tensor("square_roots").float()
    with torch.inference_mode():
        features = model.method.backbone.pool(roots.square()[:, :, None, None].to(model.device))
        directions: Directions = F.normalize(features, dim=1).cpu().numpy()
    return directions
