"""TapNet's head: distances to the references inside the projection of one episode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tapnet.functional import (
    euclidean_distances,
    linear_head,
    null_coordinates,
    projected_distances,
    reference_directions,
    residuals,
)
from tapnet.methods.head import Head, LinearHead

BASES = ("householder", "references")


@dataclass(frozen=True)
class ProjectionHead(Head):
    """Scores queries by their squared distances to the references, inside the projection that hides the errors."""

    references: Tensor  # (..., way, dim)
    errors: Tensor  # (..., way, dim)
    chosen: Tensor  # (..., way), which reference each class took
    projection_dim: int | None = None
    differentiable: bool = False
    basis: str = "householder"
    temperature: float = 1.0
    shift: Tensor | None = None  # (..., way), added to the scores before they are divided by the temperature

    @property
    def ordered_errors(self) -> Tensor:
        """The errors in the order of the references: below full dimension the projection depends on their order."""
        return self.errors.take_along_dim(self.chosen.argsort(dim=-1).unsqueeze(-1), dim=-2)

    @property
    def leading(self) -> Tensor | None:
        """The first directions of the projection if `basis` is `references`, else `None`."""
        return reference_directions(self.references, self.errors) if self.basis == "references" else None

    def logits(self, query: Tensor) -> Tensor:
        if self.projection_dim is None:
            distances = projected_distances(query, self.references, self.errors, None, self.differentiable)
        else:
            distances = euclidean_distances(self.project(query), self.project(self.references)).square()
        scores = -distances if self.shift is None else self.shift.unsqueeze(-2) - distances
        return scores if self.temperature == 1 else scores / self.temperature

    def linear(self) -> LinearHead | None:
        errors = self.errors if self.projection_dim is None else self.ordered_errors
        weight, bias = linear_head(self.references, errors, self.projection_dim, self.leading)
        shifted = bias if self.shift is None else bias + self.shift
        return LinearHead(weight / self.temperature, shifted / self.temperature, class_centers=self.references)

    def project(self, features: Tensor) -> Tensor:
        """Return coordinates (..., n, D) inside the projection; at full dimension their residuals (..., n, L)."""
        if self.projection_dim is None:
            return residuals(features, self.errors if self.differentiable else self.errors.detach())
        return null_coordinates(features, self.ordered_errors, self.projection_dim, self.leading)

    @property
    def centers(self) -> Tensor:
        return self.references
