"""TapNet: Neural Network Augmented with Task-Adaptive Projection for Few-Shot Learning.

Sung Whan Yoon, Jun Seo, Jaekyun Moon. ICML 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet import functional
from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.methods.base import Head, LinearHead, PrototypeMethod, check_choice, check_positive

BASES = ("householder", "references")
SELECTIONS = tuple(rule for rule in functional.SELECTION_STRATEGIES if rule != "random")
REFERENCES = ("modified", "original")
SCORES = ("squared", "euclidean", "inner", "cosine")


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
    distance: str = "squared"  # one of SCORES
    shift: Tensor | None = None  # (..., way), added to the scores before they are divided by the temperature

    @property
    def ordered_errors(self) -> Tensor:
        """The errors in the order of the references: below full dimension the projection depends on their order."""
        return self.errors.take_along_dim(self.chosen.argsort(dim=-1).unsqueeze(-1), dim=-2)

    @property
    def leading_directions(self) -> Tensor | None:
        """The first directions of the projection if `basis` is `references`, else `None`."""
        return functional.reference_directions(self.references, self.errors) if self.basis == "references" else None

    def logits(self, query: Tensor) -> Tensor:
        scores = self._scores(query)
        if self.shift is not None:
            scores = self.shift.unsqueeze(-2) + scores
        return scores if self.temperature == 1 else scores / self.temperature

    def _scores(self, query: Tensor) -> Tensor:
        if self.distance == "squared" and self.projection_dim is None:
            return -functional.projected_distances(query, self.references, self.errors, None, self.differentiable)
        queries, references = self.project(query), self.project(self.references)
        if self.distance in ("squared", "euclidean"):
            distances = functional.euclidean_distances(queries, references)
            return -(distances.square() if self.distance == "squared" else distances)
        if self.distance == "cosine":
            queries, references = F.normalize(queries, dim=-1), F.normalize(references, dim=-1)
        return queries @ references.mT

    def linear(self) -> LinearHead | None:
        if self.distance != "squared":
            return None
        errors = self.errors if self.projection_dim is None else self.ordered_errors
        weight, bias = functional.linear_head(self.references, errors, self.projection_dim, self.leading_directions)
        shifted = bias if self.shift is None else bias + self.shift
        return LinearHead(weight / self.temperature, shifted / self.temperature, centers=self.references)

    def project(self, features: Tensor) -> Tensor:
        """Return coordinates (..., n, D) inside the projection; at full dimension their residuals (..., n, L)."""
        if self.projection_dim is None:
            return functional.residuals(features, self.errors if self.differentiable else self.errors.detach())
        return functional.null_coordinates(features, self.ordered_errors, self.projection_dim, self.leading_directions)

    @property
    def centers(self) -> Tensor:
        return self.references


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
    adapt_options: ClassVar[tuple[str, ...]] = ("selection", "projection_dim", "basis", "reference_shots")
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
            most = f"{backbone.dim - 1}, fewer than its backbone has features"
            raise UserError(f"TapNet needs `num_references` from 2 to {most}, got {num_references}.")
        self.projection_dim, self.selection, self.differentiable = projection_dim, selection, differentiable
        self.basis, self.reference_shots, self.temperature = basis, reference_shots, temperature
        self.check_options()
        self.max_way, self.max_projection_dim = num_references, backbone.dim - num_references
        if projection_dim is not None and not 1 <= projection_dim <= self.max_projection_dim:
            limit = f"dim - num_references = {self.max_projection_dim}"
            raise UserError(f"Expected projection_dim from 1 to {limit}, got {projection_dim}.")
        if projection_dim is not None and differentiable:
            raise UserError("`differentiable` needs the full projection: leave out `projection_dim`.")
        check_positive("temperature", temperature)
        check_positive("initial_norm", initial_norm)
        directions = torch.randn(num_references, backbone.dim) / math.sqrt(backbone.dim)
        self.references = nn.Parameter(initial_norm * directions)
        self.reference_bias: nn.Parameter | None = None  # only `TapNetVariant` has one

    def check_options(self) -> None:
        check_choice("selection", self.selection, SELECTIONS)
        check_choice("basis", self.basis, BASES)
        if self.projection_dim is not None and not isinstance(self.projection_dim, Integral):
            raise UserError(f"`projection_dim` needs to be a whole number or None, got {self.projection_dim!r}.")
        shots = self.reference_shots
        if shots is not None and not (isinstance(shots, int | float) and 0 <= shots < math.inf):
            raise UserError(f"`reference_shots` needs to be 0 or more, or None, got {shots!r}.")

    @property
    def prototypes_suffice(self) -> bool:
        return self.reference_shots is None

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> ProjectionHead:
        prototypes = functional.class_prototypes(support, labels, way, validate=False)
        head = self.adapt_to(prototypes)
        if self.reference_shots is None:
            return head
        shots = F.one_hot(labels, way).to(prototypes.dtype).sum(dim=-2).unsqueeze(-1)  # (..., way, 1)
        blended = functional.blended_references(head.references, prototypes, shots, self.reference_shots)
        return replace(head, references=blended)

    def adapt_to(self, prototypes: Tensor, chosen: Tensor | None = None) -> ProjectionHead:
        """Return the head for class prototypes (..., way, dim); `chosen` overrides the choice of references."""
        if not self.differentiable:
            prototypes = prototypes.detach()
        chosen = self.choose(prototypes) if chosen is None else chosen
        references = self.references[chosen]  # (..., way, dim)
        errors = functional.projection_errors(references, prototypes)
        options = self.projection_dim, self.differentiable, self.basis, self.temperature
        return ProjectionHead(references, errors, chosen, *options)

    def choose(self, prototypes: Tensor) -> Tensor:
        """Return which reference each class takes, (..., way)."""
        way, available = prototypes.shape[-2], len(self.references)
        if not self.training:
            return functional.select_references(prototypes, self.references, self.selection, bias=self.reference_bias)
        if way != available:
            advice = f"build TapNet with num_references={way}, or call .eval() to choose among the references"
            raise UserError(f"Training episodes need {available} classes, one per reference, got {way}: {advice}.")
        return torch.arange(available, device=prototypes.device).expand(prototypes.shape[:-1])

    def diagnostics(self) -> dict[str, float]:
        """Return the smallest distance between two normalized references, as in the paper's Figure 3."""
        return {"reference_distance": float(torch.pdist(F.normalize(self.references.detach().float(), dim=-1)).min())}

    def snapshot(self) -> dict[str, Tensor]:
        return {"references": self.references}


class TapNetVariant(TapNet):
    """TapNet with one part exchanged, for ablations, the authors' checkpoints and the comparison with MANN.

    - `projection_references`: `modified` references build the projection, as in the paper, or `original` ones.
    - `classification_references`: `original` references classify, as in the paper, or `modified` ones.
    - `distance`: `squared` as in the authors' code, `euclidean` as printed in eq. (1), `inner`: the inner product
      inside the projection, to which the paper reduces the read-out of memory-augmented networks, and `cosine`, the
      same with both sides normalized.
    - `reference_bias`: a learned $b_k$ per reference, as in the authors' code; it adds $2b_k$ to the logits and to the
      score by which references are selected, and does not affect the projection.

    All other `options` are TapNet's.
    """

    adapt_options = (*TapNet.adapt_options, "projection_references", "classification_references", "distance")

    def __init__(
        self,
        backbone: Backbone,
        num_references: int,
        projection_references: str = "modified",
        classification_references: str = "original",
        distance: str = "squared",
        reference_bias: bool = False,
        **options: Any,
    ) -> None:
        self.projection_references, self.classification_references = projection_references, classification_references
        self.distance = distance
        super().__init__(backbone, num_references, **options)  # checks all options
        if reference_bias and distance != "squared":
            raise UserError("`reference_bias` is for squared distances only: leave out `reference_bias` or `distance`.")
        if reference_bias:
            self.reference_bias = nn.Parameter(torch.zeros(num_references))

    def check_options(self) -> None:
        super().check_options()
        check_choice("projection_references", self.projection_references, REFERENCES)
        check_choice("classification_references", self.classification_references, REFERENCES[::-1])
        check_choice("distance", self.distance, SCORES)

    def adapt_to(self, prototypes: Tensor, chosen: Tensor | None = None) -> ProjectionHead:
        head = super().adapt_to(prototypes, chosen)
        references, errors, bias = head.references, head.errors, self.reference_bias
        if self.projection_references == "original":
            prototypes = prototypes if self.differentiable else prototypes.detach()
            errors = functional.projection_errors(references, prototypes, modified=False)
        if self.classification_references == "modified":
            references = functional.modified_references(references)
        shift = None if bias is None else 2 * bias[head.chosen]
        return replace(head, references=references, errors=errors, distance=self.distance, shift=shift)
