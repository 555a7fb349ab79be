"""TapNet with one part exchanged, for ablations, the authors' checkpoints and the comparison with MANN."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.functional import euclidean_distances, modified_references, projection_errors, select_references
from tapnet.methods.base import LinearHead, check_choice
from tapnet.methods.tapnet import ProjectionHead, TapNet

REFERENCES = ("modified", "original")
SCORES = ("squared", "euclidean", "inner", "cosine")


@dataclass(frozen=True)
class VariantHead(ProjectionHead):
    """A projection head that scores by one of SCORES in place of the squared distance."""

    distance: str = "squared"

    def logits(self, query: Tensor) -> Tensor:
        if self.distance == "squared":
            return super().logits(query)
        queries, references = self.project(query), self.project(self.references)
        if self.distance == "euclidean":
            return -euclidean_distances(queries, references) / self.temperature
        if self.distance == "cosine":
            queries, references = F.normalize(queries, dim=-1), F.normalize(references, dim=-1)
        return queries @ references.mT / self.temperature

    def linear(self) -> LinearHead | None:
        return super().linear() if self.distance == "squared" else None


class TapNetVariant(TapNet):
    """TapNet with other references in the projection or the classifier, another score or bias; `options` are TapNet's.

    - `projection_references`: `modified` references build the projection, as in the paper, or `original` ones.
    - `classification_references`: `original` references classify, as in the paper, or `modified` ones.
    - `distance`: `squared` as in the authors' code, `euclidean` as printed in eq. (1), `inner`: the inner product
      inside the projection, to which the paper reduces the read-out of memory-augmented networks, and `cosine`, the
      same with both sides normalized.
    - `reference_bias`: a learned $b_k$ per reference, as in the authors' code; it adds $2b_k$ to the logits and to the
      score by which references are selected, and does not affect the projection.
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
            raise UserError(
                "`reference_bias` is defined for squared distances only: leave out `reference_bias` or `distance`."
            )
        self.reference_bias = nn.Parameter(torch.zeros(num_references)) if reference_bias else None

    def check_options(self) -> None:
        super().check_options()
        check_choice("projection_references", self.projection_references, REFERENCES)
        check_choice("classification_references", self.classification_references, REFERENCES[::-1])
        check_choice("distance", self.distance, SCORES)

    def adapt_to(self, prototypes: Tensor, chosen: Tensor | None = None) -> VariantHead:
        """Return the head for class prototypes (..., way, dim); `chosen` overrides the choice of references."""
        head = super().adapt_to(prototypes, chosen)
        changed = {field.name: getattr(head, field.name) for field in fields(head)} | {"distance": self.distance}
        if self.projection_references == "original":
            prototypes = prototypes if self.differentiable else prototypes.detach()
            changed["errors"] = projection_errors(head.references, prototypes, modified=False)
        if self.classification_references == "modified":
            changed["references"] = modified_references(head.references)
        if self.reference_bias is not None:
            changed["shift"] = 2 * self.reference_bias[head.chosen]
        return VariantHead(**changed)

    def choose(self, prototypes: Tensor) -> Tensor:
        if self.training:
            return super().choose(prototypes)
        return select_references(prototypes, self.references, self.selection, bias=self.reference_bias)
