"""TADAM: Task Dependent Adaptive Metric for Improved Few-Shot Learning.

Boris N. Oreshkin, Pau Rodriguez, Alexandre Lacoste. NeurIPS 2018.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import class_prototypes, widened
from tapnet.methods import base
from tapnet.methods.base import EpisodeLoss, FunctionHead, Head, PrototypeMethod, cross_entropy
from tapnet.methods.protonet import PrototypeHead

MULTIPLIER_PENALTY = 0.01  # times half the squares of the post-multipliers, as TensorFlow's `l2_regularizer`
AUXILIARY_WEIGHT = 0.4  # the authors take an auxiliary step with a probability that falls from 0.9, 0.4 on average


class TadamAlpha(PrototypeMethod):
    r"""Prototypical Networks with a metric scale: logits $-\alpha \|f(x) - c_k\|$.

    `scale` is α, where training begins or, without `learned_scale`, what it stays. The authors' code does not square
    the distance and chooses a fixed α on validation classes; their text calls it learned.
    """

    def __init__(self, backbone: Backbone, scale: float = 1.0, learned_scale: bool = True) -> None:
        super().__init__(backbone)
        base.check_positive("scale", scale)
        log = nn.Parameter(torch.full((), math.log(scale)), requires_grad=learned_scale)
        self.scale = nn.ParameterDict({"log": log})  # so that α stays above 0

    def adapt_to(self, prototypes: Tensor) -> PrototypeHead:
        return PrototypeHead(prototypes, self.scale["log"].exp(), squared=False)

    def diagnostics(self) -> dict[str, float]:
        return {"metric_scale": self.scale["log"].exp().item()}


class TadamTC(TadamAlpha):
    r"""TADAM-α over a backbone that is conditioned on the task, with auxiliary classification of the training classes.

    A first pass without conditioning gives the mean of the prototypes. From it a task embedding network predicts a
    scale and a shift for every channel after every batch normalization, except in shortcuts; a second pass uses them.
    With `num_classes` a linear layer over the unconditioned features learns to tell the training classes apart, and
    its cross-entropy is added `auxiliary_weight` times. The authors take extra steps on random images for that; here
    the images of the episode serve, whose first pass is needed anyway. All other `options` are TADAM-α's.
    """

    task_features = True
    batched = False
    prototypes_suffice = False
    training_only = ("auxiliary",)

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int | None = None,
        auxiliary_weight: float = AUXILIARY_WEIGHT,
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        self.task_embedding = TaskEmbedding(backbone)
        self.auxiliary = nn.Linear(backbone.dim, num_classes) if num_classes else None
        self.auxiliary_weight = auxiliary_weight

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> Head:
        network = self._conditioned(self.backbone(support), labels, way)
        head = super().adapt(network(support), labels, way)
        return FunctionHead(lambda query: head.logits(network(query)), network)

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the cross-entropy of the queries, with the auxiliary one; support and query pass as one batch."""
        labels, way = episode.support_labels, episode.way
        plain = self.backbone(self.embed(episode.images, validate=False))
        features = self._conditioned(plain[: len(labels)], labels, way)(episode.images)
        support, query = features.split(episode.sizes)
        logits = super().adapt(support, labels, way).logits(query)
        loss = cross_entropy(logits, episode.query_labels) + self.task_embedding.penalty()
        if self.auxiliary is not None:
            loss = loss + self.auxiliary_weight * cross_entropy(self.auxiliary(plain), episode.split_labels)
        return EpisodeLoss(loss, logits)

    def diagnostics(self) -> dict[str, float]:
        sizes = self.task_embedding.multipliers.detach().abs().amax(dim=-1)
        return super().diagnostics() | {"gamma_0": sizes[0].item(), "beta_0": sizes[1].item()}

    def _conditioned(self, support: Tensor, labels: Tensor, way: int) -> nn.Module:
        """Return the backbone conditioned on the task of these unconditioned support features."""
        task = class_prototypes(support, labels, way, validate=False).mean(dim=-2)
        return base.with_tensors(self.backbone, self.task_embedding(self.backbone, task))


class TaskEmbedding(nn.Module):
    r"""Scales and shifts from the mean of the prototypes, for $h \to (1 + \gamma_0 \gamma) h + \beta_0 \beta$.

    The post-multipliers $\gamma_0, \beta_0$ begin at 0: training starts from the backbone as it is.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        widths = [layer.num_features for layer in conditioned_layers(backbone).values()]
        if not widths:
            raise UserError(f"{type(backbone).__name__} has no batch normalization to condition on the task.")
        parts = (nn.ModuleList(ResidualMLP(backbone.dim, width) for width in widths) for _ in range(2))
        self.gammas, self.betas = parts
        self.multipliers = nn.Parameter(torch.zeros(2, len(widths)))

    def forward(self, backbone: Backbone, task: Tensor) -> dict[str, Tensor]:
        """Return the weight and bias of each batch normalization that also scale and shift what it gives, by name."""
        tensors = {}
        layers = zip(conditioned_layers(backbone).items(), self.gammas, self.betas, *self.multipliers, strict=True)
        for (name, layer), gammas, betas, gamma_0, beta_0 in layers:
            scale = 1 + gamma_0 * widened(gammas(task))
            tensors[f"{name}.weight"] = scale * layer.weight
            tensors[f"{name}.bias"] = scale * layer.bias + beta_0 * widened(betas(task))
        return tensors

    def penalty(self) -> Tensor:
        return MULTIPLIER_PENALTY * self.multipliers.square().sum() / 2


class ResidualMLP(nn.Module):
    """Three linear layers, the last two with a skip connection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(size, outputs) for size in (inputs, outputs, outputs))

    def forward(self, task: Tensor) -> Tensor:
        hidden = F.relu(self.first(task))
        hidden = F.relu(hidden + self.second(hidden))
        return hidden + self.third(hidden)


def conditioned_layers(backbone: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the batch normalizations by name, without those of shortcuts."""
    layers = ((name, module) for name, module in backbone.named_modules() if isinstance(module, nn.BatchNorm2d))
    return {name: layer for name, layer in layers if "shortcut" not in name.split(".")}
