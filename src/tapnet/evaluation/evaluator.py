"""Accuracy with its intervals: every image is embedded once, then episodes run in batches over the features.

Episodes share classes and images, so the usual interval over episodes only says how well the accuracy on *these*
classes is known. The interval over classes comes from half-samples: replicates with a random half of the classes and
of their images vary around the whole as the whole varies around its population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2, ttest_1samp
from scipy.stats import t as student
from torch import Tensor
from torch.nn import functional as F

from tapnet import hardware
from tapnet.backbones.base import check_features
from tapnet.data import ImageSet
from tapnet.data.batches import class_labels
from tapnet.data.episodes import Episode, EpisodeSampler, EpisodeSpec, Indices
from tapnet.errors import NonFiniteError, UserError
from tapnet.evaluation.embedding import cached_features
from tapnet.hardware import device_of, resolve_precision, to_float_tensor
from tapnet.methods import LinearHead, Method, PrototypeMethod

Accuracies = NDArray[np.float64]
Progress = Callable[[int, int], None]  # episodes done, of how many

MOST_EPISODES = 10**9  # their accuracies are kept in memory
REPLICATES, REPLICATE_EPISODES = 100, 100
_BATCH_VALUES = 2**22  # feature values of a batch of episodes, 16 MB
_CACHE_VALUES = 2**19  # gathered at a time on a CPU: more would leave its cache before they are used


@dataclass(frozen=True)
class Evaluation:
    """The mean accuracy over episodes, and what it was measured on. Accuracies are fractions.

    `ci95` is 1.96 standard errors over episodes. `ci95_bootstrap` is the half-width for other classes and images of the
    same kind. Where the variance of the classes is lost in that of the episodes it is `None`, and
    `ci95_bootstrap_at_most` bounds it. Neither knows about another training seed: one checkpoint is one run.
    """

    accuracy: float
    ci95: float
    ci95_bootstrap: float | None
    ci95_bootstrap_at_most: float | None
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


@dataclass(frozen=True)
class SeedSpread:
    """The mean accuracy of runs that differ in seed only, and its variation over episodes and over seeds."""

    accuracy: float
    ci95: float  # over episodes, of the mean of these runs
    seeds: tuple[int, ...]
    seed_deviation: float | None  # standard deviation of the accuracies of the runs
    seed_ci95: float | None  # for the mean over other seeds, Student's


class Evaluator:
    """Evaluates a method on one split, whose features are computed when they are first needed and then kept.

    `cache` is a folder that keeps them for later evaluators, too; `features` passes them if they are known already. If
    several processes share a run, all make the same calls and get the same results: each does every n-th batch, and a
    batch holds the same episodes whatever the number of processes.
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
        self.device = device_of(method)
        self.precision = resolve_precision(precision, self.device)
        self._features = None if features is None else check_features(features)

    @property
    def features(self) -> Tensor:
        """Features (n, *feature_shape) of every image of the split, float32."""
        if self._features is None:
            backbone, maps = self.method.backbone, self.method.feature_maps
            self._features = check_features(cached_features(backbone, self.images, self.precision, self.cache, maps))
        return self._features

    def evaluate(
        self,
        spec: EpisodeSpec | None = None,
        bootstrap: bool = True,
        progress: Progress | None = None,
        accuracies: Accuracies | None = None,
    ) -> Evaluation:
        """Return the accuracy on the episodes of the spec, and with `bootstrap` its interval over classes.

        `accuracies` are those of the episodes, if they are known already. `progress` counts the episodes, then those of
        the interval over classes.
        """
        spec = spec or EpisodeSpec()
        accuracy, ci95 = mean_and_ci95(self.accuracies(spec, progress) if accuracies is None else accuracies)
        over_classes = self._class_interval(spec, ci95, progress) if bootstrap else (None, None)
        return Evaluation(
            accuracy,
            ci95,
            *over_classes,
            **asdict(spec),
            dataset=self.images.name,
            split=self.images.split,
            classes=len(self.images.class_names),
            data_sha256=self.images.fingerprint,
            precision=self.precision,
            transductive=self.method.transductive,
        )

    def accuracies(self, spec: EpisodeSpec, progress: Progress | None = None) -> Accuracies:
        """Return the accuracy of each of the episodes 0, 1, … of the spec."""
        if not 2 <= spec.episodes <= MOST_EPISODES:
            raise UserError(
                f"An accuracy with its interval needs 2 to {MOST_EPISODES:,} episodes, got {spec.episodes:,}."
            )
        sampler = self.images.sampler(spec)
        size = self._batch_size(spec.way * (spec.shot + spec.query))
        if not self.method.task_features:
            _ = self.features  # computed by all processes together, even one without a batch
        values = torch.zeros(spec.episodes, dtype=torch.float64)
        for start in range(hardware.rank() * size, spec.episodes, hardware.world_size() * size):
            stop = min(start + size, spec.episodes)
            values[start:stop] = torch.from_numpy(self._batch_accuracies(sampler.batch(start, stop)))
            if progress:
                progress(stop, spec.episodes)
        return hardware.all_reduce_sum(values).numpy()

    def _batch_size(self, images: int, values: int = _BATCH_VALUES) -> int:
        """Return the number of episodes with this many images each that together have `values` feature values."""
        return max(1, values // (images * math.prod(self.method.feature_shape))) if self.method.batched else 1

    def _batch_accuracies(self, batch: Episode) -> Accuracies:
        with torch.inference_mode():
            scores = self._scores(batch).detach()
        if not scores.abs().amax().isfinite():  # faster than to look at each
            raise NonFiniteError(f"{type(self.method).__name__} returned logits of NaN or infinity: it has diverged.")
        answers = class_labels(batch.query.shape[1], batch.query.shape[2], scores.device)
        correct = (scores.argmax(dim=-1) == answers).double().mean(dim=-1)
        return correct.cpu().numpy()

    def _scores(self, batch: Episode) -> Tensor:
        """Return logits (episodes, query, way), up to a constant per query."""
        if isinstance(self.method, PrototypeMethod) and self.method.prototypes_suffice:
            head = self.method.adapt_to(self.prototypes(batch.support))
            linear = head.linear()
            return head.logits(self.gathered(batch.query)) if linear is None else self._linear_scores(linear, batch)
        count, way, shot = batch.support.shape
        labels = class_labels(way, shot, self.device)
        support, query = self.gathered(batch.support), self.gathered(batch.query)
        if self.method.batched:
            return self.method.logits(support, labels.expand(count, -1), query, way)
        return torch.stack([self.method.logits(support[i], labels, query[i], way) for i in range(count)])

    def _linear_scores(self, head: LinearHead, batch: Episode) -> Tensor:
        size = self._batch_size(batch.query[0].size, _CACHE_VALUES) if self.device.type == "cpu" else len(batch.query)
        scores = []
        for start in range(0, len(batch.query), size):
            part = slice(start, start + size)
            queries = head.project(self.gathered(batch.query[part]))
            scores.append(torch.baddbmm(head.bias[part].unsqueeze(-2), queries, head.weight[part].mT))
        return torch.cat(scores)

    def prototypes(self, support: Indices) -> Tensor:
        """Return class prototypes (episodes, way, dim) of images (episodes, way, shot)."""
        count, way, shot = support.shape
        rows = torch.from_numpy(support.reshape(count * way, shot)).to(self.device)
        return F.embedding_bag(rows, self.features, mode="mean").view(count, way, -1)

    def gathered(self, indices: Indices) -> Tensor:
        """Return features (episodes, n, *feature_shape) of images (episodes, way, n / way)."""
        count = len(indices)
        if self.method.task_features:
            images = to_float_tensor(self.images.gather(indices.reshape(-1)), self.device)
            return images.view(count, -1, *images.shape[1:])
        flat = torch.from_numpy(indices.reshape(-1)).to(self.device)
        return self.features.index_select(0, flat).view(count, -1, *self.method.feature_shape)

    def _class_interval(
        self, spec: EpisodeSpec, ci95: float, progress: Progress | None
    ) -> tuple[float | None, float | None]:
        """Return the half-width of the 95% interval over classes, images and episodes, or a bound; see `class_ci95`.

        Each replicate has a random half of the classes, and of each class a random half of its images, without
        replacement, since an episode cannot hold a class twice. All rotations of a character are drawn together, since
        they are not independent classes. If half of the classes are too few for an episode, the share is larger and the
        variance scaled up to match; there is neither interval nor bound if an episode needs all of them. The variance
        due to the few episodes of a replicate is subtracted.
        """
        labels, images = self.images.labels, self.images
        units = images.groups[labels]
        least = spec.way if images.one_rotation_per_class else -(-spec.way // images.rotations)
        if (count := len(np.unique(units))) == least:
            return None, None
        generator = np.random.Generator(np.random.Philox(key=np.array([spec.seed, 2**63], dtype=np.uint64)))
        means, noises, scale = torch.zeros(REPLICATES).double(), torch.zeros(REPLICATES).double(), 1.0
        for replicate in range(REPLICATES):
            rows, scale = half_sample(labels, units, least, spec.shot + 1, generator)
            if replicate % hardware.world_size() == hardware.rank():
                values = self._replicate(rows, spec, replicate)
                means[replicate], noises[replicate] = values.mean(), values.var(ddof=1) / len(values)
            if progress:
                progress((replicate + 1) * REPLICATE_EPISODES, REPLICATES * REPLICATE_EPISODES)
        means, noises = hardware.all_reduce_sum(means), hardware.all_reduce_sum(noises)
        return class_ci95(float(means.var()) * scale, float(noises.mean()) * scale, count, ci95)

    def _replicate(self, rows: Indices, spec: EpisodeSpec, seed: int) -> Accuracies:
        """Return accuracies of some episodes with only these images."""
        labels = self.images.labels[rows]
        fewest = int(np.unique(labels, return_counts=True)[1].min())
        groups = self.images.groups[np.unique(labels)] if self.images.one_rotation_per_class else None
        spec = replace(spec, query=min(spec.query, fewest - spec.shot), episodes=REPLICATE_EPISODES, seed=seed)
        sampler = EpisodeSampler(labels, spec, groups)
        size = self._batch_size(spec.way * (spec.shot + spec.query))
        starts = range(0, spec.episodes, size)
        batches = (sampler.batch(start, min(start + size, spec.episodes)) for start in starts)
        episodes = (Episode(batch.classes, rows[batch.support], rows[batch.query]) for batch in batches)
        return np.concatenate([self._batch_accuracies(batch) for batch in episodes])


def mean_and_ci95(values: Accuracies) -> tuple[float, float]:
    """Return the mean, and 1.96 standard errors of it."""
    return float(values.mean()), 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))


def class_ci95(variance: float, noise: float, units: int, ci95: float) -> tuple[float | None, float | None]:
    """Return the half-width for other classes and images, or `None` and what it is at most, if that is not resolved.

    `variance` is that of the replicates' means, of which `noise` is due to their episodes; `ci95` is the interval over
    episodes. The quantile is Student's for this number of units, which is wider than the normal one if they are few.
    The difference is an estimate and may be negative. Then its upper confidence limit takes its place: at 95%, as if
    replicates were independent, the variance is no larger than this one times their degrees of freedom over the 5%
    quantile of chi-squared.
    """
    quantile, freedom = float(student.ppf(0.975, max(units - 1, 1))), REPLICATES - 1
    highest = variance * freedom / float(chi2.ppf(0.05, freedom))
    half_width, at_most = (math.sqrt(quantile**2 * max(0.0, total - noise) + ci95**2) for total in (variance, highest))
    return (half_width, None) if variance > noise else (None, at_most)


def half_sample(
    labels: Indices, units: Indices, least: int, images: int, generator: np.random.Generator
) -> tuple[Indices, float]:
    """Return positions of a random half of the units and of their images, and the factor that corrects its variance.

    A unit is an independent draw from the population: a class, or a character with all its rotations. At least `least`
    units are kept, and `images` images of each class.
    """
    drawn = generator.permutation(np.unique(units))
    kept = max(least, -(-len(drawn) // 2))
    rows = []
    for label in (label for unit in drawn[:kept] for label in np.unique(labels[units == unit])):
        members = generator.permutation(np.flatnonzero(labels == label))
        rows.append(members[: max(images, -(-len(members) // 2))])
    return np.concatenate(rows), kept / (len(drawn) - kept)


def seed_spread(accuracies: Sequence[Accuracies], seeds: Sequence[int]) -> SeedSpread:
    """Return the mean of runs on identical episodes, with its intervals over episodes and over seeds."""
    accuracy, ci95 = mean_and_ci95(np.mean(accuracies, axis=0))
    if len(accuracies) < 2:
        return SeedSpread(accuracy, ci95, tuple(seeds), None, None)
    means = np.mean(accuracies, axis=1)
    half = float(ttest_1samp(means, accuracy).confidence_interval().high) - accuracy if np.ptp(means) else 0.0
    return SeedSpread(accuracy, ci95, tuple(seeds), float(means.std(ddof=1)), half)
