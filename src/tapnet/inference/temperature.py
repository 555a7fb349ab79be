"""The temperature of a task: from the calibration of its network or, where that has none, from its examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.evaluation.calibration import Calibration, fit_temperature
from tapnet.inference.adaptation import adapt, held_out_logits
from tapnet.inference.examples import Examples
from tapnet.inference.networks import EmbeddingModel
from tapnet.methods import PARAMETER_FREE, Head

_ROUNDS = 5  # of leaving one example of every class out
_USUAL_COUNT = 40  # held-out examples that count as much as the usual temperature
_WAYS, _SHOTS = (2, 5, 20), (1, 2, 5, 10)
_TEMPERATURES = {  # usual ones: those of the networks for photographs, rounded
    "logistic": ((0.235, 0.295, 0.457, 0.446), (0.27, 0.316, 0.413, 0.454), (0.34, 0.372, 0.434, 0.513)),
    "centroid": ((0.0425, 0.036, 0.034, 0.0265), (0.0425, 0.034, 0.028, 0.0225), (0.0435, 0.032, 0.0235, 0.022)),
    "protonet": ((8.5, 6.2, 5.53, 4.21), (8.48, 6.02, 4.52, 3.46), (8.68, 5.59, 3.83, 3.37)),
}
_SPREADS = {"centroid": 0.705, "protonet": 70.5}  # of their features, to which these temperatures are proportional
USUAL = Calibration(
    {name: {"ways": _WAYS, "shots": _SHOTS, "temperatures": rows} for name, rows in _TEMPERATURES.items()}
)


def temperature_of(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return the temperature of the network's calibration for this method.

    For what the network was not calibrated for, it is the usual one, mixed with that of examples that are left out, one
    of every class at a time; where a class has one only, the usual one remains. They are sorted first, so that a task
    does not depend on the order in which they came.
    """
    shots, calibration = np.bincount(examples.labels).tolist(), model.calibration
    if method in PARAMETER_FREE and method not in calibration.tables:
        calibration, usual = USUAL, usual_temperature(method, examples.features, examples.labels)
    else:
        usual = calibration.temperature(method, shots) * _dimension_factor(model, options, len(shots))
        if options.get("reference_shots") is None:
            return usual
        usual *= _blend_factor(head, examples, model, method, options)
    held = held_out_logits(examples.sorted(), model, method, options, _ROUNDS)
    return usual if held is None else mixed_temperature(usual, growth_factor(calibration, method, shots), *held)


def _dimension_factor(model: EmbeddingModel, options: Mapping[str, Any], way: int) -> float:
    """Return how much larger differences of squared distances are than at the projection dimension of the calibration.

    With the directions of the references first, their differences are the same at any dimension that holds these.
    """
    asked, basis = options.get("projection_dim"), options.get("basis") or getattr(model.method, "basis", None)
    if asked is None or basis == "references":
        return 1.0
    full = model.method.backbone.dim - way
    return float(asked / (getattr(model.method, "projection_dim", None) or full))


def _blend_factor(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return how much farther apart logits are than with the references alone, for which networks are calibrated."""
    plain = adapt(examples, model, method, {**options, "reference_shots": None})
    blended, alone = (_logit_scale(each) for each in (head, plain))
    return blended / alone


def _logit_scale(head: Head) -> float:
    linear = head.linear()
    assert linear is not None
    return float((linear.weight - linear.weight.mean(dim=-2, keepdim=True)).norm())


def mixed_temperature(usual: float, factor: float, logits: NDArray[np.float64], answers: NDArray[np.int64]) -> float:
    """Return the usual temperature and that of held-out examples, averaged by their number in logarithms.

    `factor` is by how much a head with all examples needs another temperature than one without those held out.
    """
    share = len(answers) / (len(answers) + _USUAL_COUNT)
    held = factor * fit_temperature(logits, answers)
    return float(np.exp(share * np.log(held) + (1 - share) * np.log(usual)))


def growth_factor(calibration: Calibration, method: str, shots: Sequence[int]) -> float:
    """Return by how much a temperature changes from one example less in every class."""
    fewer = [max(shot - 1, 1) for shot in shots]
    return calibration.temperature(method, shots) / calibration.temperature(method, fewer)


def usual_temperature(method: str, features: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the temperature that the networks for photographs have, scaled to the spread of these features.

    The spread is half the mean squared distance between examples of different classes, of unit length for "centroid".
    """
    temperature = USUAL.temperature(method, np.bincount(labels).tolist())
    if method not in _SPREADS:
        return temperature
    points = features.astype(np.float64)
    if method == "centroid":
        points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    ratio = spread(points, labels) / _SPREADS[method]
    return temperature * ratio if ratio > 1e-9 else temperature


def spread(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean square of the points less the mean dot product of two of different classes."""
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), points.shape[1]))
    np.add.at(sums, labels, points)
    pairs = len(labels) ** 2 - np.square(counts).sum()
    dots = (np.square(sums.sum(axis=0)).sum() - np.square(sums).sum()) / pairs
    return float(np.square(points).sum(axis=1).mean() - dots)
