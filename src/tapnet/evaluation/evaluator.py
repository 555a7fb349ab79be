"""Accuracy with its intervals: every image is embedded once, then episodes run in batches over the features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tapnet import distributed
from tapnet.data import ImageSet
from tapnet.data.batches import class_labels, episode_images
from tapnet.data.episodes import EpisodeBatch, EpisodeSampler, Indices
from tapnet.evaluation.embedding import cached_features, embed
from tapnet.hardware import resolve_precision
from tapnet.methods import EmbeddingMethod, LinearMethod, Method

__all__ = ["Accuracies", "Evaluation", "Evaluator", "embed", "mean_and_ci95"]

Accuracies = NDArray[np.float64]
Progress = Callable[[int, int], None]  # episodes done, of how many

_BATCH_VALUES = 2**22  # feature values of a batch of episodes, 16 MB
_CACHE_VALUES = 2**19  # gathered at a time on a CPU: more would leave its cache before they are used
REPLICATES, REPLICATE_EPISODES = 100, 100


@dataclass(frozen=True)
class Evaluation:
    """The mean accuracy over episodes, and what it was measured on. Accuracies are fractions.

    `ci95` is the usual half-width, 1.96 standard errors over episodes. Episodes share classes and images, so it only
    tells how well the accuracy on *these* classes is known. `ci95_bootstrap` is the half-width for other classes and
    images of the same kind. Neither knows about another training seed: one checkpoint is one run.
    """

    accuracy: float
    ci95: float
    ci95_bootstrap: float | None
    way: int
    shot: int
    query: int
    episodes: int
    seed: int
    dataset: str
    split: str
    classes: int  # of the split
    data_sha256: str
    precision: str
    transductive: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Evaluator:
    """Evaluates a method on one split; the split is embedded at the first need and its features kept.

    `cache` is a folder that keeps them for the next evaluator, too; `features` are given where they are known. Where
    several processes share a run, all call the same and get the same: each does every n-th batch, and a batch holds the
    same episodes whatever their number.
    """

    def __init__(
        self,
        method: Method,
        images: ImageSet,
        precision: str = "float32",
        cache: Path | None = None,
        features: Tensor | None = None,
    ) -> None:
        self.method, self.images, self.cache = method, images, cache
        self.device = next(method.parameters()).device
        self.precision = resolve_precision(precision, self.device)
        self._features = features

    @property
    def features(self) -> Tensor:
        """Features (n, dim) of every image of the split, float32."""
        if self._features is None:
            assert isinstance(self.method, EmbeddingMethod)
            job = (self.method, self.images, self.precision)
            self._features = cached_features(*job, self.cache) if self.cache else embed(*job)
        return self._features

    def evaluate(
        self,
        way: int = 5,
        shot: int = 5,
        query: int = 15,
        episodes: int = 600,
        seed: int = 0,
        bootstrap: bool = True,
        progress: Progress | None = None,
    ) -> Evaluation:
        accuracies = self.accuracies(way, shot, query, episodes, seed, progress)
        accuracy, ci95 = mean_and_ci95(accuracies)
        wide = self._bootstrap_half_width(way, shot, query, seed, ci95) if bootstrap else None
        return Evaluation(
            accuracy=accuracy,
            ci95=ci95,
            ci95_bootstrap=wide,
            way=way,
            shot=shot,
            query=query,
            episodes=episodes,
            seed=seed,
            dataset=self.images.name,
            split=self.images.split,
            classes=len(self.images.class_names),
            data_sha256=self.images.fingerprint,
            precision=self.precision,
            transductive=self.method.transductive,
        )

    def accuracies(
        self, way: int, shot: int, query: int, episodes: int, seed: int = 0, progress: Progress | None = None
    ) -> Accuracies:
        """The accuracy of each of the episodes 0, 1, … of this seed."""
        if episodes < 2:
            raise ValueError(f"An accuracy with its interval needs at least 2 episodes, got {episodes}.")
        sampler = self.images.episodes(way, shot, query, seed)
        size = self._batch_size(way * (shot + query))
        if isinstance(self.method, EmbeddingMethod):
            _ = self.features  # by all processes together, also by one that has no batch to do
        values = torch.zeros(episodes, dtype=torch.float64)
        for start in range(distributed.rank() * size, episodes, distributed.size() * size):
            stop = min(start + size, episodes)
            values[start:stop] = torch.from_numpy(self._batch_accuracies(sampler.batch(start, stop)))
            if progress:
                progress(stop, episodes)
        return distributed.all_reduce_sum(values).numpy()

    def _batch_size(self, images: int, values: int = _BATCH_VALUES) -> int:
        """How many episodes of so many images hold that many feature values."""
        dim = self.method.backbone.dim
        return max(1, values // (images * dim)) if isinstance(self.method, EmbeddingMethod) else 1

    @torch.inference_mode()
    def _batch_accuracies(self, batch: EpisodeBatch) -> Accuracies:
        if isinstance(self.method, LinearMethod):
            scores = self._linear_scores(self.method, batch)
        elif isinstance(self.method, EmbeddingMethod):
            scores = self._feature_logits(self.method, batch)
        else:
            scores = torch.stack([self._image_logits(batch, index) for index in range(len(batch))])
        answers = class_labels(batch.query.shape[1], batch.query.shape[2], scores.device)
        correct = (scores.argmax(dim=-1) == answers).double().mean(dim=-1)
        return correct.cpu().numpy()

    def _linear_scores(self, method: LinearMethod, batch: EpisodeBatch) -> Tensor:
        """What `logits` gives, but for a number that is the same for all classes of a query."""
        weight, bias = method.head(self.prototypes(batch.support))
        size = self._batch_size(batch.query[0].size, _CACHE_VALUES) if self.device.type == "cpu" else len(batch)
        return torch.cat(
            [
                torch.baddbmm(b.unsqueeze(-2), self.gathered(query), w.mT)
                for b, query, w in zip(bias.split(size), _split(batch.query, size), weight.split(size), strict=True)
            ]
        )

    def _feature_logits(self, method: EmbeddingMethod, batch: EpisodeBatch) -> Tensor:
        count, way, shot = batch.support.shape
        labels = class_labels(way, shot, self.device).expand(count, -1)
        return method.logits(self.gathered(batch.support), labels, self.gathered(batch.query))

    def prototypes(self, support: Indices) -> Tensor:
        """Class averages (episodes, way, dim) of images (episodes, way, shot)."""
        count, way, shot = support.shape
        rows = torch.from_numpy(support.reshape(count * way, shot)).to(self.device)
        return F.embedding_bag(rows, self.features, mode="mean").view(count, way, -1)

    def gathered(self, indices: Indices) -> Tensor:
        """Features (episodes, n, dim) of images (episodes, way, n / way)."""
        flat = torch.from_numpy(indices.reshape(-1)).to(self.device)
        return self.features.index_select(0, flat).view(len(indices), -1, self.features.shape[1])

    def _image_logits(self, batch: EpisodeBatch, index: int) -> Tensor:
        episode = episode_images(self.images, batch.episode(index), self.device)
        logits: Tensor = self.method(episode.support_images, episode.support_labels, episode.query_images)
        return logits

    def _bootstrap_half_width(self, way: int, shot: int, query: int, seed: int, ci95: float) -> float | None:
        """1.96 standard errors over classes, images and episodes.

        Each replicate sees a random half of the classes, and of each class a random half of its images, without
        replacement (an episode could not hold a class twice): half-samples vary around the whole as the whole varies
        around its population. Where half of the classes are too few for an episode the share is larger and the variance
        scaled up to match; `None` where an episode needs all of them. What the few episodes of a replicate add to the
        variance is taken off again.
        """
        labels = self.images.labels
        kinds = (
            self.images.groups[labels] if self.images.one_rotation_per_class else labels
        )  # of which an episode has one class each
        if len(np.unique(kinds)) == way:
            return None
        generator = np.random.Generator(np.random.Philox(key=np.array([seed, 2**63], dtype=np.uint64)))
        means, noises, scale = torch.zeros(REPLICATES).double(), torch.zeros(REPLICATES).double(), 1.0
        for replicate in range(REPLICATES):
            rows, scale = _half(labels, kinds, way, shot + 1, generator)
            if replicate % distributed.size() == distributed.rank():
                values = self._replicate(rows, way, shot, query, replicate)
                means[replicate], noises[replicate] = values.mean(), values.var(ddof=1) / len(values)
        means, noises = distributed.all_reduce_sum(means), distributed.all_reduce_sum(noises)
        population = max(0.0, float(means.var() - noises.mean())) * scale
        return math.sqrt(1.96**2 * population + ci95**2)

    def _replicate(self, rows: Indices, way: int, shot: int, query: int, seed: int) -> Accuracies:
        """Accuracies of some episodes that see only these images."""
        labels = self.images.labels[rows]
        fewest = int(np.unique(labels, return_counts=True)[1].min())
        groups = self.images.groups[np.unique(labels)] if self.images.one_rotation_per_class else None
        sampler = EpisodeSampler(labels, way, shot, min(query, fewest - shot), seed, groups)
        batches = _batches(sampler, REPLICATE_EPISODES, self._batch_size(way * (shot + query)))
        return np.concatenate([self._batch_accuracies(batch.among(rows)) for batch in batches])


def mean_and_ci95(values: Accuracies) -> tuple[float, float]:
    """The mean, and 1.96 standard errors of it."""
    return float(values.mean()), 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))


def _half(
    labels: NDArray[np.int64], kinds: NDArray[np.int64], way: int, images: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], float]:
    """Positions of a random half of the kinds and of their images, and by how much its variance falls short."""
    drawn = generator.permutation(np.unique(kinds))
    kept = max(way, -(-len(drawn) // 2))
    rows = []
    for label in (label for kind in drawn[:kept] for label in np.unique(labels[kinds == kind])):
        members = generator.permutation(np.flatnonzero(labels == label))
        rows.append(members[: max(images, -(-len(members) // 2))])
    return np.concatenate(rows), kept / (len(drawn) - kept)


def _split(indices: Indices, size: int) -> Iterator[Indices]:
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _batches(sampler: EpisodeSampler, episodes: int, size: int) -> Iterator[EpisodeBatch]:
    for start in range(0, episodes, size):
        yield sampler.batch(start, min(start + size, episodes))
