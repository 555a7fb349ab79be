"""Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks.

Chelsea Finn, Pieter Abbeel, Sergey Levine. ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.methods.base import FixedWayMethod, Head, cross_entropy, with_tensors

Weights = dict[str, Tensor]
Statistics = list[tuple[Tensor, Tensor]]  # mean and variance of each batch normalization, in the order of the network


@dataclass(frozen=True)
class AdaptedNetwork(Head):
    """The network with the weights of one task; `statistics` of its support set, or none for those of the queries."""

    method: MAML
    weights: Weights
    statistics: Statistics | None
    way: int

    def logits(self, query: Tensor) -> Tensor:
        return self.method.run(query, self.weights, self.statistics)[..., : self.way]

    def project(self, features: Tensor) -> Tensor:
        return self.method.features(features, self.weights, self.statistics)


class MAML(FixedWayMethod):
    r"""A network and a linear layer that adapt to a task by gradient descent on its support set.

    $\theta' = \theta - \alpha\,\nabla L_{support}(\theta)$, repeated; training minimizes $L_{query}(\theta')$,
    differentiated through the steps, or with `first_order` as if $\nabla L_{support}$ were a constant. `steps` and
    `rate` ($\alpha$) hold in training, `test_steps` and `test_rate` in eval mode. L is the mean over the images; the
    authors' is `way` times as much, so their rates are `way` times smaller. With `zero_classifier` the linear layer
    starts at zero, where no class is preferred, in place of random weights.

    Weights of the convolutions and of the linear layer adapt; those of batch normalization are learned, not adapted.
    Running statistics of batch normalization are neither used nor updated, in training as at test: the support set is
    normalized by its own statistics, and so are the queries, by those of the support set. With `batch_statistics`, as
    published, they are normalized by those of all queries of the episode, which makes the method transductive.
    """

    task_features = True
    batched = False
    adapt_options = ("test_steps", "test_rate")

    def __init__(
        self,
        backbone: Backbone,
        way: int,
        steps: int = 1,
        rate: float = 0.4,
        test_steps: int | None = None,
        test_rate: float | None = None,
        first_order: bool = False,
        batch_statistics: bool = False,
        zero_classifier: bool = False,
    ) -> None:
        super().__init__(backbone, way)
        self.steps, self.rate, self.first_order = steps, rate, first_order
        self.test_steps = steps if test_steps is None else test_steps
        self.test_rate = rate if test_rate is None else test_rate
        self.check_options()
        self.batch_statistics = self.transductive = batch_statistics
        self.classifier = nn.Linear(backbone.dim, way)
        if zero_classifier:
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)

    def check_options(self) -> None:
        if min(self.steps, self.test_steps) < 0 or min(self.rate, self.test_rate) < 0:
            raise UserError("`steps`, `test_steps`, `rate` and `test_rate` need to be at least 0.")

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> AdaptedNetwork:
        self.check_episode(support, labels, way)
        if torch.is_inference(support) or torch.is_inference(labels):  # which cannot take part in a gradient
            with torch.inference_mode(False):
                return self.adapt(support.clone(), labels.clone(), way)
        steps, rate = (self.steps, self.rate) if self.training else (self.test_steps, self.test_rate)
        weights = self.initial_weights()
        for _ in range(steps):
            weights = self.step(weights, support, labels, way, rate)
        if not self.training:
            weights = {name: weight.detach() for name, weight in weights.items()}
        statistics: Statistics | None = None
        if not self.batch_statistics:
            with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
                self.run(support, weights, collect=(statistics := []))
        return AdaptedNetwork(self, weights, statistics, way)

    def step(self, weights: Weights, support: Tensor, labels: Tensor, way: int, rate: float) -> Weights:
        """Return the weights after a step of gradient descent on the support set; those of the module stay."""
        names = self.adapted_names()
        with torch.enable_grad():
            loss = cross_entropy(self.run(support, weights)[:, :way], labels)
            second_order = self.training and not self.first_order
            gradients = torch.autograd.grad(loss, [weights[name] for name in names], create_graph=second_order)
            moved = {name: weights[name] - rate * slope for name, slope in zip(names, gradients, strict=True)}
        return weights | moved

    def initial_weights(self) -> Weights:
        """Return the module's own parameters; in eval mode apart from them, so that nothing leads back there."""
        parameters = dict(self.named_parameters())
        if self.training:
            return dict(parameters)
        return {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}

    def adapted_names(self) -> list[str]:
        """Return the names of the parameters that adapt: all but those of batch normalization."""
        return [
            f"{prefix}.{name}"
            for prefix, module in self.named_modules()
            if not isinstance(module, nn.BatchNorm2d)
            for name, _ in module.named_parameters(recurse=False)
        ]

    def run(
        self, images: Tensor, weights: Weights, statistics: Statistics | None = None, collect: Statistics | None = None
    ) -> Tensor:
        """Return logits (n, way) under these weights; `collect` is filled with the statistics of the images."""
        features = self.features(images, weights, statistics, collect)
        return F.linear(features, weights["classifier.weight"], weights["classifier.bias"])

    def features(
        self, images: Tensor, weights: Weights, statistics: Statistics | None = None, collect: Statistics | None = None
    ) -> Tensor:
        """Return what the backbone makes of the images under these weights, (n, dim)."""
        own = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}  # BatchNorm2d counts in place
        start = "backbone."
        own |= {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}
        with BatchNormStatistics(statistics, collect):
            features: Tensor = with_tensors(self.backbone, own)(images)
        return features


class BatchNormStatistics(TorchFunctionMode):
    """Inside, batch normalization takes the given statistics, in order, or without them those of its batch.

    Gradients pass through the statistics, which `F.batch_norm` itself would not do for given ones.
    """

    def __init__(self, given: Statistics | None = None, collect: Statistics | None = None) -> None:
        super().__init__()
        self._given, self._collect = None if given is None else iter(given), collect

    def __torch_function__(self, func: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None) -> Any:
        replaced = self._normalize if func is F.batch_norm else func
        return replaced(*args, **(kwargs or {}))

    def _normalize(self, maps: Tensor, _mean: Any, _var: Any, weight: Tensor, bias: Tensor, **options: Any) -> Tensor:
        eps = options["eps"]
        if self._given is not None:
            mean, variance = next(self._given)
        elif self._collect is not None:
            variance, mean = torch.var_mean(maps.to(weight.dtype), dim=(0, 2, 3), correction=0)
            self._collect.append((mean, variance))
        else:
            return F.batch_norm(maps, None, None, weight, bias, training=True, eps=eps)
        scale = weight * torch.rsqrt(variance + eps)
        return maps * scale.view(-1, 1, 1) + (bias - mean * scale).view(-1, 1, 1)
