"""TapNet: Neural Network Augmented with Task-Adaptive Projection for Few-Shot Learning.

Sung Whan Yoon, Jun Seo, Jaekyun Moon. ICML 2019.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.functional import (
    SELECTION_STRATEGIES,
    class_prototypes,
    linear_head,
    modified_references,
    projected_distances,
    projection_errors,
    select_references,
)
from tapnet.methods.base import LinearMethod, way_of

CHOICES: dict[str, tuple[str, ...]] = {  # of the options that are words; the first is the paper's or its authors'
    "selection": tuple(strategy for strategy in SELECTION_STRATEGIES if strategy != "random"),  # a method has no dice
    "projection_references": ("modified", "original"),
    "classification_references": ("original", "modified"),
    "distance": ("squared", "euclidean"),
}


class TapNet(LinearMethod):
    """A backbone and `num_references` learned references; each episode gets its projection in closed form.

    In training an episode has as many classes as there are references, and class k keeps reference k. In eval mode an
    episode may have fewer: each class takes a reference by `selection`. With the paper's `closest` the result can
    depend on the order in which the classes are listed, with `optimal` it cannot.

    The other options are as the authors have them unless set: whether gradients pass the projection (`differentiable`,
    with which short training gets further); and, for study, which references build it and which classify, modified or
    original, the `distance` of the logits, and the length of the references before training (`initial_norm`).
    `reference_bias` is the authors' and not the paper's: a learned b_k a reference, which adds 2b_k to its logits and
    to its score when references are selected. The projection does not see it.
    """

    follows_class_order = False  # under `closest`; true of `optimal`

    def __init__(
        self,
        backbone: Backbone,
        num_references: int,
        projection_dim: int | None = None,
        selection: str = "closest",
        differentiable: bool = False,
        projection_references: str = "modified",
        classification_references: str = "original",
        distance: str = "squared",
        initial_norm: float = 1.0,
        reference_bias: bool = False,
    ) -> None:
        super().__init__(backbone)
        if not 2 <= num_references < backbone.dim:
            raise ValueError(
                f"TapNet needs 2 <= num_references < dim = {backbone.dim} of its backbone, got num_references={num_references}."
            )
        self.selection, self.distance = selection, distance
        self.projection_references, self.classification_references = projection_references, classification_references
        for option, choices in CHOICES.items():
            if getattr(self, option) not in choices:
                raise ValueError(f"`{option}` is one of {', '.join(choices)}, got {getattr(self, option)!r}.")
        if not 0 < initial_norm < math.inf:
            raise ValueError(f"`initial_norm` is a length above 0, got {initial_norm}.")
        if projection_dim is not None and not 1 <= projection_dim <= backbone.dim - num_references:
            raise ValueError(
                f"{num_references} num_references in {backbone.dim} dimensions allow projection_dim from 1 to {backbone.dim - num_references}, got "
                f"{projection_dim}."
            )
        if reference_bias and distance != "squared":
            raise ValueError("A bias of the references is defined for squared distances only: leave one of them out.")
        self.projection_dim, self.differentiable = projection_dim, differentiable
        normal = torch.randn(num_references, backbone.dim) / math.sqrt(backbone.dim)  # LeCun's, each near length 1
        self.references = nn.Parameter(normal * initial_norm)
        self.reference_bias = nn.Parameter(torch.zeros(num_references)) if reference_bias else None

    def logits(self, support_features: Tensor, support_labels: Tensor, query_features: Tensor) -> Tensor:
        prototypes = class_prototypes(support_features, support_labels, way_of(support_labels))
        chosen = self.choose(prototypes)
        references, errors = self.adapt_to(prototypes, chosen=chosen)
        logits = -projected_distances(
            query_features, references, errors, self.projection_dim, self.differentiable, self.distance == "squared"
        )
        return logits + self.shift(chosen).unsqueeze(-2)

    def adapt_to(self, prototypes: Tensor, ordered: bool = True, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The references that classify, and the errors for the projection to hide, each (..., way, dim).

        Below full dimension the projection depends on the order of the errors: they come in that of the references, or
        with `ordered` = False in that of the class averages. `chosen` (..., way) says which reference each class takes,
        in place of `selection`.
        """
        if not self.differentiable:
            prototypes = prototypes.detach()  # they serve the projection alone
        if chosen is None:
            chosen = self.choose(prototypes)  # (..., way)
        references = self.references[chosen]  # (..., way, dim)
        errors = projection_errors(references, prototypes, self.projection_references == "modified")
        if self.classification_references == "modified":
            references = modified_references(references)
        if ordered:
            errors = errors.take_along_dim(chosen.argsort(dim=-1).unsqueeze(-1), dim=-2)
        return references, errors

    def head(self, prototypes: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """That of squared distances: for Euclidean ones it has the same order of the classes, not the softmax."""
        chosen = self.choose(prototypes) if chosen is None else chosen
        references, errors = self.adapt_to(prototypes, self.projection_dim is not None, chosen)
        weight, bias = linear_head(references, errors, self.projection_dim)
        return weight, bias + self.shift(chosen)

    def shift(self, chosen: Tensor) -> Tensor:
        """What the bias adds to the logits of classes with these references, (..., way); zero without a bias."""
        if self.reference_bias is None:
            return torch.zeros(chosen.shape, device=chosen.device)
        return 2 * self.reference_bias[chosen]

    @property
    def uses_references_as_published(self) -> bool:
        """Whether modified references build the projection and original ones classify."""
        return (self.projection_references, self.classification_references) == ("modified", "original")

    def choose(self, prototypes: Tensor) -> Tensor:
        """Which reference each class takes, (..., way)."""
        way, num_references = prototypes.shape[-2], len(self.references)
        if not self.training:
            return select_references(prototypes, self.references, self.selection, bias=self.reference_bias)
        if way != num_references:
            raise ValueError(
                f"Training episodes need {num_references} classes, one a reference, got {way}: build TapNet with num_references={way}, or "
                "call .eval() to choose among the references."
            )
        return torch.arange(num_references, device=prototypes.device).expand(prototypes.shape[:-1])
