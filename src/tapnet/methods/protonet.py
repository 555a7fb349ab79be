"""Prototypical Networks for Few-shot Learning.

Jake Snell, Kevin Swersky, Richard Zemel. NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tapnet.backbones import Backbone
from tapnet.functional import euclidean_distances
from tapnet.methods.base import PrototypeMethod, check_positive
from tapnet.methods.head import Head, LinearHead


@dataclass(frozen=True)
class PrototypeHead(Head):
    """Scores by negative squared distances to the prototypes (..., way, dim), divided by the temperature."""

    prototypes: Tensor
    temperature: float = 1.0

    def logits(self, query: Tensor) -> Tensor:
        distances = euclidean_distances(query.to(self.prototypes.dtype), self.prototypes)
        return -distances.square() / self.temperature

    def linear(self) -> LinearHead:
        weight, bias = 2 * self.prototypes, -self.prototypes.square().sum(dim=-1)
        return LinearHead(weight / self.temperature, bias / self.temperature, class_centers=self.prototypes)

    @property
    def centers(self) -> Tensor:
        return self.prototypes


class PrototypicalNetwork(PrototypeMethod):
    """Assigns each query to the class whose mean feature is nearest, by squared Euclidean distance.

    A `temperature` above the paper's 1 suits a backbone whose features are long, such as one trained as a classifier.
    """

    def __init__(self, backbone: Backbone, temperature: float = 1.0) -> None:
        super().__init__(backbone)
        check_positive("temperature", temperature)
        self.temperature = temperature

    def adapt_to(self, prototypes: Tensor) -> PrototypeHead:
        return PrototypeHead(prototypes, self.temperature)
