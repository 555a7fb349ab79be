"""Logistic regression over the directions of the features. Nothing is learned besides the backbone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from tapnet.functional import class_prototypes
from tapnet.methods.base import Method, way_of
from tapnet.methods.head import LinearHead

LENGTH = 10.0  # of the features when the weights are penalized
Array = NDArray[np.float64]


class LogisticRegression(Method):
    """scikit-learn's logistic regression with C = 1 on features scaled to length 10."""

    batched = False
    trainable = False

    def adapt(self, support: Tensor, labels: Tensor) -> LinearHead:
        way, directions = way_of(labels), F.normalize(support.detach().double(), dim=-1)
        centers = F.normalize(class_prototypes(directions, labels, way), dim=-1)
        weight, bias = logistic_regression(LENGTH * directions.cpu().numpy(), labels.cpu().numpy(), way)
        parts = torch.from_numpy(weight * LENGTH), torch.from_numpy(bias), centers
        weights, biases, centers = (part.to(support.device, torch.float32) for part in parts)
        return LinearHead(weights, biases, normalize=True, class_centers=centers)


def logistic_regression(features: Array, labels: NDArray[np.int64], way: int) -> tuple[Array, Array]:
    """Return weight (way, dim) and bias (way,) of least cross-entropy plus half the squared weight.

    The weight lies in the span of the examples, so it is sought there: in as many dimensions as there are examples.
    """
    basis, coordinates = np.linalg.qr(features.T)  # (dim, r), (r, n)
    answers = np.eye(way)[labels]

    def loss(flat: Array) -> tuple[float, Array]:
        weight, bias = flat[way:].reshape(way, -1), flat[:way]
        logs = log_softmax(coordinates.T @ weight.T + bias, axis=1)
        wrong = np.exp(logs) - answers
        gradient = np.concatenate([wrong.sum(axis=0), (wrong.T @ coordinates.T + weight).ravel()])
        return float(-(answers * logs).sum() + 0.5 * np.square(weight).sum()), gradient

    start = np.zeros(way + way * len(coordinates))
    found: Any = minimize(loss, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-6})
    bias = found.x[:way]
    return found.x[way:].reshape(way, -1) @ basis.T, bias - bias.mean()
