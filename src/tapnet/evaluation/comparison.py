"""Several networks on identical episodes: accuracies, paired differences and costs.

Runs that differ in their seed only are one group: its accuracy is the mean over the runs, and the spread over seeds is
reported apart from the interval over episodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import t as student

from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.candidates import Candidate, without_seed
from tapnet.evaluation.class_overlap import ClassOverlap
from tapnet.evaluation.evaluator import Evaluation, Progress
from tapnet.evaluation.intervals import Accuracies, holm, mean_and_ci95, paired_p_value
from tapnet.methods import Method

CORRECTION, LEVEL = "Holm", 0.05


@dataclass(frozen=True, eq=False)
class RunResult:
    """The accuracy of one run on the episodes, and its costs."""

    checkpoint: str
    method: str
    seed: int
    evaluation: Evaluation
    overlap: ClassOverlap
    extra_parameters: int  # besides the backbone's
    training_episodes: int
    training_seconds: float | None
    seconds_per_episode: float  # of testing, without the network if its features can be cached
    cached_features: bool
    recipe: Mapping[str, Any]
    accuracies: Accuracies  # (episodes,)

    def as_dict(self) -> dict[str, Any]:
        skipped = ("evaluation", "overlap", "recipe", "accuracies")
        costs = {name: value for name, value in vars(self).items() if name not in skipped}
        measured = ("accuracy", "ci95", "ci95_bootstrap", "transductive")
        return costs | {name: getattr(self.evaluation, name) for name in measured} | self.overlap.as_dict()


@dataclass(frozen=True)
class SeedSpread:
    """The mean accuracy of runs that differ in seed only, and its variation over episodes and over seeds."""

    accuracy: float
    ci95: float  # over episodes, of the mean of these runs
    seeds: tuple[int, ...]
    seed_deviation: float | None  # standard deviation of the accuracies of the runs
    seed_ci95: float | None  # for the mean over other seeds, Student's


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one recipe with different seeds."""

    name: str
    runs: tuple[RunResult, ...]
    spread: SeedSpread

    @property
    def accuracies(self) -> Accuracies:
        """The mean accuracy over the runs in each episode."""
        return _mean_over_runs([run.accuracies for run in self.runs])

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "checkpoints": [run.checkpoint for run in self.runs], **asdict(self.spread)}


@dataclass(frozen=True)
class Pair:
    """The difference of two groups, second minus first, on the same episodes."""

    first: str
    second: str
    difference: float
    ci95: float
    p_value: float  # of a paired t-test over episodes, two-sided
    corrected_p_value: float  # for the number of pairs
    significant: bool


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result: one row per run, per group of runs and per pair of groups."""

    spec: EpisodeSpec
    images: ImageSet
    precision: str
    runs: tuple[RunResult, ...]
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...]

    def as_dict(self) -> dict[str, Any]:
        first = self.runs[0].accuracies
        rows = []
        for run in self.runs:
            difference, ci95 = mean_and_ci95(run.accuracies - first)
            rows.append(run.as_dict() | {"difference": difference, "difference_ci95": ci95})
        return asdict(self.spec) | {
            "dataset": self.images.name,
            "split": self.images.split,
            "classes": len(self.images.class_names),
            "data_sha256": self.images.fingerprint,
            "precision": self.precision,
            "checkpoints": rows,
            "groups": [group.as_dict() for group in self.groups],
            "pairs": [asdict(pair) for pair in self.pairs],
            "correction": CORRECTION,
            "level": LEVEL,
        }


def compare(
    candidates: Iterable[Candidate],
    spec: EpisodeSpec,
    bootstrap: bool = True,
    progress: Callable[[str], Progress] | None = None,
) -> Comparison:
    """Return all candidates on the same episodes; raise UserError if their data differ.

    Without `bootstrap` the interval over classes is left out. `progress` is called with the name of each candidate and
    returns the function that is called with the number of episodes done. Candidates are taken one after the other, so
    with a generator the features of only one are in memory at a time.
    """
    runs, first = [], None
    for candidate in candidates:
        images = candidate.evaluator.images
        first = first or candidate
        if _data(images) != _data(first.evaluator.images):
            raise UserError(
                "These checkpoints were trained on different data: name one dataset for all.", parameter="dataset"
            )
        runs.append(_measure(candidate, spec, bootstrap, progress))
    if first is None or len(runs) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(runs)}.")
    groups = _groups(runs)
    return Comparison(
        spec, first.evaluator.images, first.evaluator.precision, tuple(runs), groups, paired_differences(groups)
    )


def _data(images: ImageSet) -> tuple[str, int, bool]:
    return images.fingerprint, images.rotations, images.one_rotation_per_class


def _measure(
    candidate: Candidate, spec: EpisodeSpec, bootstrap: bool, progress: Callable[[str], Progress] | None
) -> RunResult:
    evaluator, header, name = candidate.evaluator, candidate.header, candidate.name
    method = evaluator.method
    if not method.task_features:
        _ = evaluator.features  # outside of the time per episode
    started = time.perf_counter()
    accuracies = evaluator.accuracies(spec, progress and progress(name))
    seconds = time.perf_counter() - started
    over_classes = progress(f"{name}, over classes") if progress and bootstrap else None
    return RunResult(
        checkpoint=name,
        method=header.recipe.method.name,
        seed=header.recipe.seed,
        evaluation=evaluator.evaluate(spec, bootstrap, over_classes, accuracies),
        overlap=candidate.overlap,
        extra_parameters=extra_parameters(method),
        training_episodes=header.episode,
        training_seconds=candidate.training_seconds,
        seconds_per_episode=seconds / spec.episodes,
        cached_features=not method.task_features,
        recipe=without_seed(header.recipe.as_dict()),
        accuracies=accuracies,
    )


def extra_parameters(method: Method) -> int:
    """Return the number of parameters of a method besides those of its backbone, and those that only training needs."""
    left_out = tuple(f"{module}." for module in ("backbone", *method.training_only))
    return sum(parameter.numel() for name, parameter in method.named_parameters() if not name.startswith(left_out))


def seed_spread(accuracies: Sequence[Accuracies], seeds: Sequence[int]) -> SeedSpread:
    """Return the mean of runs on identical episodes, with its intervals over episodes and over seeds."""
    means = np.array([values.mean() for values in accuracies])
    accuracy, ci95 = mean_and_ci95(_mean_over_runs(accuracies))
    if len(means) < 2:
        return SeedSpread(accuracy, ci95, tuple(seeds), None, None)
    deviation = float(means.std(ddof=1))
    half_width = float(student.ppf(0.975, len(means) - 1)) * deviation / math.sqrt(len(means))
    return SeedSpread(accuracy, ci95, tuple(seeds), deviation, half_width)


def _mean_over_runs(accuracies: Sequence[Accuracies]) -> Accuracies:
    mean: Accuracies = np.stack(list(accuracies)).mean(axis=0)
    return mean


def _groups(runs: Sequence[RunResult]) -> tuple[Group, ...]:
    """Return the runs by recipe, in the order of their first runs; runs of one seed stay apart."""
    members: list[list[RunResult]] = []
    for run in runs:
        for group in members:
            if group[0].recipe == run.recipe and run.seed not in {other.seed for other in group}:
                group.append(run)
                break
        else:
            members.append([run])
    return tuple(
        Group(
            group[0].checkpoint,
            tuple(group),
            seed_spread([run.accuracies for run in group], [run.seed for run in group]),
        )
        for group in members
    )


def paired_differences(groups: Sequence[Group]) -> tuple[Pair, ...]:
    """Return every pair of groups with the difference of its accuracies, tested over episodes."""
    pairs, differences, p_values = list(combinations(groups, 2)), [], []
    for first, second in pairs:
        values = second.accuracies - first.accuracies
        differences.append(mean_and_ci95(values))
        p_values.append(paired_p_value(values))
    corrected = holm(p_values)
    rows = zip(pairs, differences, p_values, corrected, strict=True)
    return tuple(
        Pair(first.name, second.name, mean, ci95, p, corrected_p, corrected_p < LEVEL)
        for (first, second), (mean, ci95), p, corrected_p in rows
    )
