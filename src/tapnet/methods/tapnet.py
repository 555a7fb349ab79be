"""TapNet: Neural Network Augmented with Task-Adaptive Projection for Few-Shot Learning.

Sung Whan Yoon, Jun Seo, Jaekyun Moon. ICML 2019.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.functional import (
    SELECTION_STRATEGIES,
    blended_references,
    class_prototypes,
    projection_errors,
    select_references,
)
from tapnet.methods.base import PrototypeMethod, check_choice, check_positive
from tapnet.methods.projection_head import BASES, ProjectionHead


class TapNet(PrototypeMethod):
    """A backbone and `num_references` learned references; each episode gets its projection in closed form.

    A training episode has as many classes as there are references, and class k always has reference k. In eval mode an
    episode may have fewer classes, and each takes a reference by `selection`.

    - `projection_dim`: the paper's D; the whole null space by default.
    - `selection`: `closest`, as in the paper, can depend on the order of the classes; `optimal` does not.
    - `differentiable`: pass gradients through the projection, which helps short training.
    - `basis`: which directions come first if D is small; with `references`, D = way - 1 loses nothing.
    - `temperature`, `initial_norm`: what the squared distances are divided by, and the norm of the references before
      training. Above the paper's 1 they suit a backbone with long features, such as one trained as a classifier.
    - `reference_shots`: classify by the mean of a class's examples and its reference, which counts as so many examples,
      in place of the paper's reference.
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
        temperature: float = 1.0,
        initial_norm: float = 1.0,
    ) -> None:
        super().__init__(backbone)
        if not 2 <= num_references < backbone.dim:
            raise UserError(
                f"TapNet needs `num_references` from 2 to {backbone.dim - 1}, fewer than its backbone has features, "
                f"got {num_references}."
            )
        limit = backbone.dim - num_references
        self.projection_dim, self.selection, self.differentiable = projection_dim, selection, differentiable
        self.basis, self.reference_shots, self.temperature = basis, reference_shots, temperature
        TapNet.check_options(self)  # those of a subclass are not set yet
        if projection_dim is not None and not 1 <= projection_dim <= limit:
            raise UserError(f"Expected projection_dim from 1 to dim - num_references = {limit}, got {projection_dim}.")
        if projection_dim is not None and differentiable:
            raise UserError("`differentiable` needs the full projection: leave out `projection_dim`.")
        check_positive("temperature", temperature)
        check_positive("initial_norm", initial_norm)
        directions = torch.randn(num_references, backbone.dim) / math.sqrt(backbone.dim)
        self.references = nn.Parameter(initial_norm * directions)

    def check_options(self) -> None:
        check_choice("selection", self.selection, tuple(rule for rule in SELECTION_STRATEGIES if rule != "random"))
        check_choice("basis", self.basis, BASES)
        if self.projection_dim is not None and not isinstance(self.projection_dim, Integral):
            raise UserError(f"`projection_dim` needs to be a whole number or None, got {self.projection_dim!r}.")
        if self.reference_shots is not None and not (
            isinstance(self.reference_shots, int | float) and 0 <= self.reference_shots < math.inf
        ):
            raise UserError(f"`reference_shots` needs to be 0 or more, or None, got {self.reference_shots!r}.")

    @property
    def max_way(self) -> int:
        return len(self.references)

    @property
    def max_projection_dim(self) -> int:
        return self.backbone.dim - len(self.references)

    @property
    def prototypes_suffice(self) -> bool:
        return self.reference_shots is None

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> ProjectionHead:
        prototypes = class_prototypes(support, labels, way, validate=False)
        head = self.adapt_to(prototypes)
        if self.reference_shots is None:
            return head
        shots = F.one_hot(labels, way).to(prototypes.dtype).sum(dim=-2).unsqueeze(-1)  # (..., way, 1)
        blended = blended_references(head.references, prototypes, shots, self.reference_shots)
        return replace(head, references=blended)

    def adapt_to(self, prototypes: Tensor, chosen: Tensor | None = None) -> ProjectionHead:
        """Return the head for class prototypes (..., way, dim); `chosen` overrides the choice of references."""
        if not self.differentiable:
            prototypes = prototypes.detach()
        chosen = self.choose(prototypes) if chosen is None else chosen
        references = self.references[chosen]  # (..., way, dim)
        errors = projection_errors(references, prototypes)
        options = self.projection_dim, self.differentiable, self.basis, self.temperature
        return ProjectionHead(references, errors, chosen, *options)

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
