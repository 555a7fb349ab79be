"""Prototypical Networks for Few-shot Learning.

Jake Snell, Kevin Swersky, Richard Zemel. NeurIPS 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tapnet.functional import class_prototypes
from tapnet.methods.base import LinearMethod, way_of


class PrototypicalNetwork(LinearMethod):
    """Queries go to the class whose average feature is nearest, by squared Euclidean distance."""

    def logits(self, support_features: Tensor, support_labels: Tensor, query_features: Tensor) -> Tensor:
        prototypes = class_prototypes(support_features, support_labels, way_of(support_labels))
        queries = query_features.to(prototypes.dtype)
        return -torch.cdist(queries, prototypes, compute_mode="donot_use_mm_for_euclid_dist").square()

    def head(self, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * prototypes, -prototypes.square().sum(dim=-1)
