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
        means = class_prototypes(F.normalize(support.float(), dim=-1), labels, way_of(labels))
        directions = F.normalize(means, dim=-1)
        bias = torch.zeros(directions.shape[:-1], device=directions.device)
        return LinearHead(directions, bias, normalize=True, class_centers=directions)
