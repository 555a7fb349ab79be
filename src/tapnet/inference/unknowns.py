"""Numbers: how well a task tells images of its classes from images of others, and how honest it is about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.calibration import Calibration
from tapnet.functional import class_prototypes
from tapnet.inference.examples import Examples
from tapnet.inference.rejection import Directions, Familiarity, class_centers
from tapnet.methods import Method, method_name

QUERY = 5
_BINS = 15
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Detection:
    """A score that is high for known images: the area under its ROC curve, and what catching unknowns costs."""

    auroc: float  # over the images of all episodes
    auroc_by_task: float  # the mean over episodes: a task has a threshold of its own
    knowns_lost_at_80: float  # share of known images rejected when 80% of the unknown are
    knowns_lost_at_95: float
    caught_at_5: float  # share of unknown images rejected when 5% of the known are
    caught_at_20: float


@dataclass(frozen=True)
class Unknowns:
    """What was measured over episodes; half of the queries are of classes that the task does not know."""

    way: int
    shot: int
    episodes: int
    accuracy: float  # on known images
    calibration_error_before: float  # expected calibration error, temperature 1
    calibration_error_after: float
    by_probability: Detection
    by_distance: Detection
    by_known_score: Detection  # what `reject="auto"` goes by, unless the examples of a task prefer another score

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_unknowns(
    method: Method,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    calibration: Calibration,
    way: int = 5,
    shot: int = 5,
    episodes: int = 500,
    seed: int = 0,
    background: Directions | None = None,
) -> Unknowns:
    """Episodes of twice as many classes: the first half are known, the second half are not.

    `background` are directions of classes that are in no episode, as `EmbeddingModel.background`.
    """
    sampler = EpisodeSampler(labels, EpisodeSpec(2 * way, shot, QUERY, episodes, seed))
    temperature = calibration.temperature(method_name(method), [shot] * way)
    scores, distances, known_by = [], [], []
    for index in range(episodes):
        episode = sampler[index]
        support = torch.from_numpy(features[episode.support[:way].reshape(-1)])
        head = method.adapt(support, class_labels(way, shot))
        queries = torch.from_numpy(features[episode.query.reshape(-1)])
        scores.append((head.linear() or head).logits(queries).detach().double().numpy())
        centers = class_prototypes(support, class_labels(way, shot), way) if head.centers is None else head.centers
        inside, marks = head.project(queries), head.project(centers)
        examples = Examples(support.numpy(), class_labels(way, shot).numpy(), (), ())
        familiarity = Familiarity(head.linear() or head, class_centers(examples), background)
        known_by.append(next(iter(familiarity.scores(queries.numpy()).values())))
        distances.append(torch.cdist(inside, marks).square().amin(dim=1).detach().double().numpy())
    logits = np.stack(scores)  # (episodes, 2 · way · QUERY, way)
    known = np.tile(np.repeat([True, False], way * QUERY), episodes)
    answers = np.tile(np.repeat(np.arange(way), QUERY), episodes)
    flat = logits.reshape(-1, way)
    sure = softmax(flat / temperature, axis=1).max(axis=1)
    right = flat[known].argmax(axis=1) == answers
    return Unknowns(
        way=way,
        shot=shot,
        episodes=episodes,
        accuracy=float(right.mean()),
        calibration_error_before=calibration_error(softmax(flat[known], axis=1).max(axis=1), right),
        calibration_error_after=calibration_error(sure[known], right),
        by_probability=detection(sure, known, episodes),
        by_distance=detection(-np.concatenate(distances), known, episodes),
        by_known_score=detection(np.concatenate(known_by), known, episodes),
    )


def detection(score: Values, known: NDArray[np.bool_], episodes: int = 1) -> Detection:
    """Return how well a score of each image, episode after episode, tells known classes from others."""
    lost = [float((score[known] < np.quantile(score[~known], share)).mean()) for share in (0.8, 0.95)]
    caught = [float((score[~known] < np.quantile(score[known], share)).mean()) for share in (0.05, 0.2)]
    parts = zip(np.split(known, episodes), np.split(score, episodes), strict=True)
    by_task = float(np.mean([roc_auc_score(*part) for part in parts]))
    return Detection(float(roc_auc_score(known, score)), by_task, *lost, *caught)


def calibration_error(sure: Values, right: NDArray[np.bool_]) -> float:
    """The expected calibration error: how far confidence and accuracy lie apart, over 15 bins of equal width."""
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs(sure[bins == k].mean() - right[bins == k].mean()) * (bins == k).mean() for k in np.unique(bins)]
    return float(sum(gaps))
