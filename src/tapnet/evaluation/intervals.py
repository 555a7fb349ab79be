"""Intervals of a mean accuracy, over episodes and by half-samples over classes and images, and tests of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tapnet.data.episodes import Indices

Accuracies = NDArray[np.float64]

REPLICATES, REPLICATE_EPISODES = 100, 100
_Z = 1.96


def mean_and_ci95(values: Accuracies) -> tuple[float, float]:
    """Return the mean, and 1.96 standard errors of it."""
    return float(values.mean()), _Z * float(values.std(ddof=1)) / math.sqrt(len(values))


def wide_ci95(population: float, units: int, ci95: float) -> float:
    """Return the half-width for other classes and images, from their variance and the interval over episodes.

    The quantile is Student's for this number of units, which is wider than the normal one if they are few.
    """
    quantile = float(student.ppf(0.975, max(units - 1, 1)))
    return math.sqrt(quantile**2 * max(0.0, population) + ci95**2)


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


def paired_p_value(differences: Accuracies) -> float:
    """Return the two-sided p-value of Student's paired test that the mean difference is zero."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    if error == 0:
        return 1.0 if differences.mean() == 0 else 0.0
    return float(2 * student.sf(abs(float(differences.mean())) / error, len(differences) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down procedure (1979)."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
