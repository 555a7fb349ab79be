"""Logistic regression on the directions of the features. Only the backbone has parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from tapnet.methods.base import Method
from tapnet.methods.centroid import mean_directions
from tapnet.methods.head import LinearHead

LENGTH = 10.0  # to which features are scaled before the weights are penalized
_RANK_TOLERANCE = 1e-12  # of eigenvalues, relative to the largest
Array = NDArray[np.float64]


class LogisticRegression(Method):
    """scikit-learn's logistic regression with C = 1 on features scaled to length 10."""

    batched = False
    trainable = False

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> LinearHead:
        features = support.detach().double()
        _, centers = mean_directions(features, labels, way)
        scaled = LENGTH * F.normalize(features, dim=-1)
        weight, bias = logistic_regression(scaled.cpu().numpy(), labels.cpu().numpy(), way)
        parts = torch.from_numpy(weight * LENGTH), torch.from_numpy(bias), centers
        weights, biases, centers = (part.to(support.device, torch.float32) for part in parts)
        return LinearHead(weights, biases, normalize=True, class_centers=centers)


def logistic_regression(features: Array, labels: NDArray[np.int64], way: int) -> tuple[Array, Array]:
    """Return weight (way, dim) and bias (way,) of least cross-entropy plus half the squared weight.

    The weight lies in the span of the examples, so the search has only as many dimensions as there are examples.
    """
    coordinates, basis = _span_coordinates(features)
    targets = np.eye(way)[labels]

    def loss(flat: Array) -> tuple[float, Array]:
        weight, bias = flat[way:].reshape(way, -1), flat[:way]
        logs = log_softmax(coordinates.T @ weight.T + bias, axis=1)
        residual = np.exp(logs) - targets
        gradient = np.concatenate([residual.sum(axis=0), (residual.T @ coordinates.T + weight).ravel()])
        return float(-(targets * logs).sum() + 0.5 * np.square(weight).sum()), gradient

    start = np.zeros(way + way * len(coordinates))
    solution: Any = minimize(loss, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-6})
    bias = solution.x[:way]
    return solution.x[way:].reshape(way, -1) @ basis, bias - bias.mean()


def _span_coordinates(features: Array) -> tuple[Array, Array]:
    """Return the coordinates (r, n) of the rows in an orthonormal basis (r, dim) of their span.

    By the eigenvectors of their dot products, which is faster than a QR decomposition.
    """
    count, dim = features.shape
    if count >= dim:
        return features.T, np.eye(dim)
    values, vectors = np.linalg.eigh(features @ features.T)
    kept = values > _RANK_TOLERANCE * values[-1]
    vectors, lengths = vectors[:, kept], np.sqrt(values[kept])
    return (vectors * lengths).T, (vectors / lengths).T @ features
