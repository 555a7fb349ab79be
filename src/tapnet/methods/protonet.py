"""Prototypical Networks for Few-shot Learning.

Jake Snell, Kevin Swersky, Richard Zemel. NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tapnet.methods.base import PrototypeMethod
from tapnet.methods.head import Head, LinearHead


@dataclass(frozen=True)
class PrototypeHead(Head):
    """Negative squared distances to the prototypes (..., way, dim)."""

    prototypes: Tensor

    def logits(self, query: Tensor) -> Tensor:
        queries = query.to(self.prototypes.dtype)
        return -torch.cdist(queries, self.prototypes, compute_mode="donot_use_mm_for_euclid_dist").square()

    def linear(self) -> LinearHead:
        return LinearHead(2 * self.prototypes, -self.prototypes.square().sum(dim=-1), class_centers=self.prototypes)

    @property
    def centers(self) -> Tensor:
        return self.prototypes


class PrototypicalNetwork(PrototypeMethod):
    """Queries go to the class whose mean feature is nearest, by squared Euclidean distance."""

    def adapt_to(self, prototypes: Tensor) -> PrototypeHead:
        return PrototypeHead(prototypes)
