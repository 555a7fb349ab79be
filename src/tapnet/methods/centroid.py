"""The cosine centroid: the class whose mean direction is closest. Only the backbone has parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.functional import class_prototypes, widened
from tapnet.methods.base import LinearHead, Method


class CosineCentroid(Method):
    """Assigns each query to the class whose mean direction has the largest cosine with it."""

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> LinearHead:
        return cosine_head(*mean_directions(widened(support), labels, way))


def cosine_head(directions: Tensor, centers: Tensor) -> LinearHead:
    """Return the head that scores by the cosine with the direction of each class, (..., way, dim)."""
    return LinearHead(directions, directions.new_zeros(directions.shape[:-1]), normalize=True, centers=centers)


def mean_directions(features: Tensor, labels: Tensor, way: int) -> tuple[Tensor, Tensor]:
    """Return the mean direction of each class (..., way, dim), and its center: as long as its features."""
    norms = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    directions = F.normalize(class_prototypes(F.normalize(features, dim=-1), labels, way, validate=False), dim=-1)
    return directions, directions * class_prototypes(norms, labels, way, validate=False)
