"""Prototypical Networks for Few-shot Learning.

Jake Snell, Kevin Swersky, Richard Zemel. NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tapnet.backbones import Backbone
from tapnet.functional import euclidean_distances
from tapnet.methods.base import Head, LinearHead, PrototypeMethod, check_positive


@dataclass(frozen=True)
class PrototypeHead(Head):
    """Scores by negative distances to the prototypes (..., way, dim), squared or not, multiplied by the scale."""

    prototypes: Tensor
    scale: Tensor | float = 1.0
    squared: bool = True

    def logits(self, query: Tensor) -> Tensor:
        distances = euclidean_distances(query.to(self.prototypes.dtype), self.prototypes)
        return -self.scale * (distances.square() if self.squared else distances)

    def linear(self) -> LinearHead | None:
        if not self.squared:
            return None
        bias = -self.scale * self.prototypes.square().sum(dim=-1)
        return LinearHead(2 * self.scale * self.prototypes, bias, centers=self.prototypes)

    @property
    def centers(self) -> Tensor:
        return self.prototypes


class PrototypicalNetwork(PrototypeMethod):
    r"""Assigns each query to the class whose mean feature is nearest: logits $-\|f(x) - c_k\|^2$ / temperature.

    A `temperature` above the paper's 1 suits a backbone whose features are long, such as one trained as a classifier.
    """

    def __init__(self, backbone: Backbone, temperature: float = 1.0) -> None:
        super().__init__(backbone)
        check_positive("temperature", temperature)
        self.temperature = temperature

    def adapt_to(self, prototypes: Tensor) -> PrototypeHead:
        return PrototypeHead(prototypes, 1 / self.temperature)
