"""TapNet: Neural Network Augmented with Task-Adaptive Projection for Few-Shot Learning.

Sung Whan Yoon, Jun Seo, Jaekyun Moon. ICML 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.functional import (
    SELECTION_STRATEGIES,
    blended_references,
    class_prototypes,
    linear_head,
    null_coordinates,
    projected_distances,
    projection_errors,
    reference_directions,
    residuals,
    select_references,
)
from tapnet.methods.base import PrototypeMethod, check_choice, way_of
from tapnet.methods.head import Head, LinearHead

BASES = ("householder", "references")


@dataclass(frozen=True)
class ProjectionHead(Head):
    """Squared distances to the references inside the projection that hides the errors; all (..., way, dim)."""

    references: Tensor
    errors: Tensor
    chosen: Tensor  # (..., way), which reference each class took
    projection_dim: int | None = None
    differentiable: bool = False
    basis: str = "householder"
    shift: Tensor | float = 0.0  # added to the logits, (..., way)

    @property
    def ordered_errors(self) -> Tensor:
        """The errors in the order of the references: below full dimension the projection depends on their order."""
        return self.errors.take_along_dim(self.chosen.argsort(dim=-1).unsqueeze(-1), dim=-2)

    @property
    def first(self) -> Tensor | None:
        """The directions that the projection takes first, if they are those of the references."""
        return reference_directions(self.references, self.errors) if self.basis == "references" else None

    def logits(self, query: Tensor) -> Tensor:
        if self.projection_dim is None:
            distances = projected_distances(query, self.references, self.errors, None, self.differentiable)
        else:
            distances = torch.cdist(
                self.project(query), self.project(self.references), compute_mode="donot_use_mm_for_euclid_dist"
            ).square()
        return self._shifted(-distances)

    def linear(self) -> LinearHead | None:
        errors = self.errors if self.projection_dim is None else self.ordered_errors
        weight, bias = linear_head(self.references, errors, self.projection_dim, self.first)
        return LinearHead(weight, bias + self.shift, class_centers=self.references)

    def project(self, features: Tensor) -> Tensor:
        """Return coordinates (..., n, D) inside the projection; at full dimension the visible part (..., n, L)."""
        if self.projection_dim is None:
            return residuals(features, self.errors.detach())
        return null_coordinates(features, self.ordered_errors, self.projection_dim, self.first)

    @property
    def centers(self) -> Tensor:
        return self.references

    def _shifted(self, logits: Tensor) -> Tensor:
        return logits + self.shift.unsqueeze(-2) if isinstance(self.shift, Tensor) else logits


class TapNet(PrototypeMethod):
    """A backbone and `num_references` learned references; each episode gets its projection in closed form.

    In training an episode has as many classes as there are references, and class k keeps reference k. In eval mode an
    episode may have fewer: each class takes a reference by `selection`. With the paper's `closest` the result can
    depend on the order in which the classes are listed, with `optimal` it cannot. `projection_dim` is the paper's D,
    all of the null space by default; `basis` orders its columns, where `references` loses nothing at D = way - 1.
    `differentiable` passes gradients through the projection, with which short training gets further.
    Inside the projection a class stands where its reference does, as in the paper; with `reference_shots` at the mean
    of its examples and of the reference, which counts for so many examples.
    """

    way_option = "num_references"
    follows_class_order = False  # under `closest`
    order_free_options = {"selection": "optimal"}  # noqa: RUF012

    def __init__(
        self,
        backbone: Backbone,
        num_references: int,
        projection_dim: int | None = None,
        selection: str = "closest",
        differentiable: bool = False,
        basis: str = "householder",
        reference_shots: float | None = None,
    ) -> None:
        super().__init__(backbone)
        if not 2 <= num_references < backbone.dim:
            raise UserError(f"TapNet needs 2 to {backbone.dim - 1} references for its backbone, got {num_references}.")
        limit = backbone.dim - num_references
        if projection_dim is not None and not 1 <= projection_dim <= limit:
            raise UserError(f"Expected projection_dim from 1 to dim - num_references = {limit}, got {projection_dim}.")
        if projection_dim is not None and differentiable:
            raise UserError("`differentiable` needs the full projection: leave out `projection_dim`.")
        check_choice("selection", selection, tuple(rule for rule in SELECTION_STRATEGIES if rule != "random"))
        check_choice("basis", basis, BASES)
        if reference_shots is not None and not 0 <= reference_shots < math.inf:
            raise UserError(f"`reference_shots` needs to be a number from 0 on, or none, got {reference_shots}.")
        self.projection_dim, self.selection, self.differentiable = projection_dim, selection, differentiable
        self.basis, self.reference_shots = basis, reference_shots
        self.references = nn.Parameter(torch.randn(num_references, backbone.dim) / math.sqrt(backbone.dim))

    @property
    def max_way(self) -> int:
        return len(self.references)

    @property
    def max_projection_dim(self) -> int:
        return self.backbone.dim - len(self.references)

    @property
    def prototypes_suffice(self) -> bool:
        return self.reference_shots is None

    def adapt(self, support: Tensor, labels: Tensor) -> ProjectionHead:
        prototypes = class_prototypes(support, labels, way := way_of(labels))
        head = self.adapt_to(prototypes)
        if self.reference_shots is None:
            return head
        shots = F.one_hot(labels, way).to(prototypes.dtype).sum(dim=-2).unsqueeze(-1)  # (..., way, 1)
        blended = blended_references(head.references, prototypes, shots, self.reference_shots)
        return replace(head, references=blended)

    def adapt_to(self, prototypes: Tensor, chosen: Tensor | None = None) -> ProjectionHead:
        """Return the head for class prototypes (..., way, dim); `chosen` names a reference for each class."""
        if not self.differentiable:
            prototypes = prototypes.detach()
        chosen = self.choose(prototypes) if chosen is None else chosen
        references = self.references[chosen]  # (..., way, dim)
        errors = projection_errors(references, prototypes)
        return ProjectionHead(references, errors, chosen, self.projection_dim, self.differentiable, self.basis)

    def choose(self, prototypes: Tensor) -> Tensor:
        """Return which reference each class takes, (..., way)."""
        way, available = prototypes.shape[-2], len(self.references)
        if not self.training:
            return select_references(prototypes, self.references, self.selection)
        if way != available:
            raise UserError(
                f"Training episodes need {available} classes, one per reference, got {way}: build TapNet with "
                f"num_references={way}, or call .eval() to choose among the references."
            )
        return torch.arange(available, device=prototypes.device).expand(prototypes.shape[:-1])

    def diagnostics(self) -> dict[str, float]:
        """Return the smallest distance between two normalized references, as in the paper's Figure 3."""
        return {"reference_distance": float(torch.pdist(F.normalize(self.references.detach().float(), dim=-1)).min())}

    def snapshot(self) -> dict[str, Tensor]:
        return {"references": self.references}

    @classmethod
    def adapt_options(cls) -> tuple[str, ...]:
        return ("selection", "projection_dim", "basis", "reference_shots")
