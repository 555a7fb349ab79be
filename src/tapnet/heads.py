"""Heads: what a handful of labelled features becomes, a linear layer over the features. To add one: a line in `HEADS`.

Every head scores a feature x as `weight @ x + bias`, where x is first brought to unit length if `unit_length`. So every
fitted head predicts, is stored and is exported in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from tapnet.functional import class_prototypes, linear_head, null_space, projection_errors, select_references

Array = NDArray[np.float32]
Exact = NDArray[np.float64]
_LOGISTIC_LENGTH = 10.0


@dataclass(frozen=True)
class Adapted:
    """A head after `fit`: one row a class. TapNet's also keeps what its picture needs."""

    weight: Array  # (way, dim)
    bias: Array  # (way,)
    unit_length: bool
    projection_dim: int | None
    chosen: NDArray[np.int64]  # which reference each class took; empty for other heads
    references: Array  # (way, dim), those references; for other heads the centres of the classes
    errors_basis: Array  # Q (way, dim), orthonormal rows that span what the projection hides; empty for other heads
    reference_bias: Array  # (way,), those of the references; zero unless the network has some

    def scores(self, features: NDArray[np.floating]) -> Exact:
        """Logits (n, way), in float64: the same for a feature whatever its batch-mates."""
        scores: Exact = self._lengthened(features) @ self.weight.astype(np.float64).T + self.bias
        return scores

    def projected(self, features: NDArray[np.floating]) -> Exact:
        """Features as the head sees them: less what the projection hides, or of unit length."""
        exact = self._lengthened(features)
        basis = self.errors_basis.astype(np.float64)
        if self.projection_dim is not None:
            inside = null_space(torch.from_numpy(basis), self.projection_dim)
            coordinates: Exact = exact @ inside.numpy()
            return coordinates
        residuals: Exact = exact - (exact @ basis.T) @ basis
        return residuals

    def _lengthened(self, features: NDArray[np.floating]) -> Exact:
        exact: Exact = features.astype(np.float64)
        if not self.unit_length:
            return exact
        exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
        return exact


@dataclass(frozen=True)
class HeadOptions:
    """What TapNet's head needs besides features; the others ignore it."""

    references: Tensor | None = None  # (ways, dim) of the network
    selection: str = "optimal"
    projection_dim: int | None = None
    reference_bias: Tensor | None = None  # (ways,) of the network, if it has one


def adapt(head: str, features: Tensor, labels: Tensor, way: int, options: HeadOptions) -> Adapted:
    """The head fitted to features (n, dim) with labels 0 to way - 1."""
    if head not in HEADS:
        raise ValueError(f"A head is one of {', '.join(HEADS)}, got {head!r}.")
    if way < 2:
        raise ValueError(f"A classifier needs at least 2 classes, got {way} class.")
    return HEADS[head](features.float(), labels, way, options)


def _tapnet(features: Tensor, labels: Tensor, way: int, options: HeadOptions) -> Adapted:
    """The paper's: classes take references, and a projection hides how they differ from the class averages."""
    available = _checked_references(options.references, features.shape[1], way)
    prototypes = class_prototypes(features, labels, way)
    offsets = torch.zeros(len(available)) if options.reference_bias is None else options.reference_bias.float()
    chosen = select_references(prototypes, available, options.selection, bias=offsets)
    references = available[chosen]
    errors = projection_errors(references, prototypes)[chosen.argsort()]  # below full dimension the order matters
    basis = torch.linalg.qr(errors.mT).Q.mT  # has the same Householder reflections as the errors
    weight, bias = linear_head(references, errors, options.projection_dim)
    own = offsets[chosen]
    return _adapted(weight, bias + 2 * own, False, chosen, references, basis, options.projection_dim, own)


def _checked_references(references: Tensor | None, dim: int, way: int) -> Tensor:
    if references is None or references.shape[1] != dim:
        found = "no references" if references is None else f"references of dimension {references.shape[1]}"
        raise ValueError(
            f'head="tapnet" needs references of dimension {dim}, the network has {found}: use head="centroid", which '
            "needs none, or train references with `tapnet train --frozen-backbone`."
        )
    if dim <= way:
        raise ValueError(
            f'head="tapnet" needs more feature dimensions than classes, got {dim} dimensions and {way} classes: use '
            'head="centroid".'
        )
    if way > len(references):
        raise ValueError(f"{way} classes need {way} references, this network has {len(references)}.")
    return references.float()


def _centroid(features: Tensor, labels: Tensor, way: int, _: HeadOptions) -> Adapted:
    """The class whose average direction is closest, by the cosine."""
    centres = class_prototypes(F.normalize(features, dim=1), labels, way)
    directions = F.normalize(centres, dim=1)
    return _adapted(directions, torch.zeros(way), True, None, directions, None)


def _logistic(features: Tensor, labels: Tensor, way: int, _: HeadOptions) -> Adapted:
    """Logistic regression over directions, as scikit-learn's with C = 1 on features of length 10."""
    directions = F.normalize(features.double(), dim=1)
    weight, bias = logistic_regression(_LOGISTIC_LENGTH * directions.numpy(), labels.numpy(), way)
    centres = F.normalize(class_prototypes(directions, labels, way), dim=1)
    return _adapted(torch.from_numpy(weight) * _LOGISTIC_LENGTH, torch.from_numpy(bias), True, None, centres, None)


def logistic_regression(features: Exact, labels: NDArray[np.int64], way: int) -> tuple[Exact, Exact]:
    """Weight (way, dim) and bias (way,) of least cross-entropy plus half the squared weight.

    The weight lies in the span of the examples, so it is sought there: in as many dimensions as there are examples.
    """
    basis, coordinates = np.linalg.qr(features.T)  # (dim, r), (r, n)
    answers = np.eye(way)[labels]

    def loss(flat: Exact) -> tuple[float, Exact]:
        weight, bias = flat[way:].reshape(way, -1), flat[:way]
        logs = log_softmax(coordinates.T @ weight.T + bias, axis=1)
        wrong = np.exp(logs) - answers
        gradient = np.concatenate([wrong.sum(axis=0), (wrong.T @ coordinates.T + weight).ravel()])
        return float(-(answers * logs).sum() + 0.5 * np.square(weight).sum()), gradient

    found = minimize(loss, np.zeros(way + way * len(coordinates)), jac=True, method="L-BFGS-B", options={"gtol": 1e-6})
    bias = found.x[:way]
    return found.x[way:].reshape(way, -1) @ basis.T, bias - bias.mean()


def _adapted(
    weight: Tensor,
    bias: Tensor,
    unit_length: bool,
    chosen: Tensor | None,
    references: Tensor,
    basis: Tensor | None,
    projection_dim: int | None = None,
    reference_bias: Tensor | None = None,
) -> Adapted:
    def array(tensor: Tensor) -> Array:
        return tensor.detach().float().cpu().contiguous().numpy()

    return Adapted(
        array(weight),
        array(bias),
        unit_length,
        projection_dim,
        np.zeros(0, np.int64) if chosen is None else chosen.cpu().numpy(),
        array(references),
        np.zeros((0, weight.shape[1]), np.float32) if basis is None else array(basis),
        np.zeros(len(weight), np.float32) if reference_bias is None else array(reference_bias),
    )


HEADS: dict[str, Callable[[Tensor, Tensor, int, HeadOptions], Adapted]] = {
    "tapnet": _tapnet,
    "centroid": _centroid,
    "logistic": _logistic,
}
