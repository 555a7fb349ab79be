"""The temperature that the networks for photographs have, for networks and vectors that were not calibrated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tapnet.evaluation.calibration import Calibration

_WAYS, _SHOTS = (2, 5, 20), (1, 2, 5, 10)
_TEMPERATURES = {  # those of the networks for photographs, rounded
    "logistic": ((0.235, 0.295, 0.457, 0.446), (0.27, 0.316, 0.413, 0.454), (0.34, 0.372, 0.434, 0.513)),
    "centroid": ((0.0425, 0.036, 0.034, 0.0265), (0.0425, 0.034, 0.028, 0.0225), (0.0435, 0.032, 0.0235, 0.022)),
    "protonet": ((8.5, 6.2, 5.53, 4.21), (8.48, 6.02, 4.52, 3.46), (8.68, 5.59, 3.83, 3.37)),
}
_SPREADS = {"centroid": 0.705, "protonet": 70.5}  # of their features, to which these temperatures are proportional
USUAL = Calibration(
    {name: {"ways": _WAYS, "shots": _SHOTS, "temperatures": rows} for name, rows in _TEMPERATURES.items()}
)


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
