"""The cosine centroid: the class whose mean direction is closest. Only the backbone has parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.functional import class_prototypes
from tapnet.methods.base import Method, way_of
from tapnet.methods.head import LinearHead


class CosineCentroid(Method):
    """Assigns each query to the class whose mean direction has the largest cosine with it."""

    def adapt(self, support: Tensor, labels: Tensor) -> LinearHead:
        directions, centers = mean_directions(support.float(), labels)
        bias = torch.zeros(directions.shape[:-1], device=directions.device)
        return LinearHead(directions, bias, normalize=True, class_centers=centers)


def mean_directions(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean direction of each class (..., way, dim), and its center: as long as its features."""
    norms = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    way = way_of(labels)
    directions = F.normalize(class_prototypes(F.normalize(features, dim=-1), labels, way), dim=-1)
    return directions, directions * class_prototypes(norms, labels, way)
