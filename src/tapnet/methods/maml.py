"""Methods that adapt a whole network by gradient descent: MAML and Reptile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.methods.base import EpisodeLoss, FixedWayMethod, FunctionHead, cross_entropy, with_tensors

Weights = dict[str, Tensor]
Statistics = list[tuple[Tensor, Tensor]]  # mean and variance of each batch normalization, in the order of the network


class MAML(FixedWayMethod):
    r"""A network and a linear layer that adapt to a task by gradient descent on its support set.

    Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks. Chelsea Finn, Pieter Abbeel, Sergey Levine. ICML
    2017.

    $\theta' = \theta - \alpha\,\nabla L_{support}(\theta)$, repeated; training minimizes $L_{query}(\theta')$,
    differentiated through the steps, or with `first_order` as if $\nabla L_{support}$ were a constant. $\alpha$ is the
    `rate`; there are `steps` in training and `test_steps` in eval mode. L is the mean over the images; the authors' is
    `way` times as much, so their rates are `way` times smaller. With `zero_classifier` the linear layer starts at zero,
    where no class is preferred, in place of random weights.

    Weights of the convolutions and of the linear layer adapt; those of batch normalization are learned, not adapted.
    Running statistics of batch normalization are neither used nor updated, in training as at test: the support set is
    normalized by its own statistics, and so are the queries, by those of the support set. With `batch_statistics`, as
    published, they are normalized by those of all queries of the episode, which makes the method transductive.
    """

    task_features = True
    batched = False

    def __init__(
        self,
        backbone: Backbone,
        way: int,
        steps: int = 1,
        rate: float = 0.4,
        test_steps: int | None = None,
        first_order: bool = False,
        batch_statistics: bool = False,
        zero_classifier: bool = False,
    ) -> None:
        super().__init__(backbone, way)
        self.steps, self.rate, self.first_order = steps, rate, first_order
        self.test_steps = steps if test_steps is None else test_steps
        if min(steps, self.test_steps, rate) < 0:
            raise UserError("`steps`, `test_steps` and `rate` need to be at least 0.")
        self.transductive = batch_statistics
        self.classifier = nn.Linear(backbone.dim, way)
        if zero_classifier:
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        self.check_episode(support, labels, way)
        if torch.is_inference(support) or torch.is_inference(labels):  # which cannot take part in a gradient
            with torch.inference_mode(False):
                return self.adapt(support.clone(), labels.clone(), way)
        weights: Weights = dict(self.named_parameters())
        if not self.training:  # nothing is to lead back to the module
            weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        for _ in range(self.steps if self.training else self.test_steps):
            weights = self.step(weights, support, labels, way)
        if not self.training:
            weights = {name: weight.detach() for name, weight in weights.items()}
        statistics: Statistics | None = None if self.transductive else []
        if statistics is not None:
            with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
                self.run(support, weights, statistics)
        return FunctionHead(
            lambda query: self.run(query, weights, statistics)[..., :way],
            lambda images: self.features(images, weights, statistics),
        )

    def step(self, weights: Weights, support: Tensor, labels: Tensor, way: int) -> Weights:
        """Return the weights after a step of gradient descent on the support set; those of the module stay."""
        names = self.adapted_names()
        with torch.enable_grad():
            loss = cross_entropy(self.run(support, weights)[:, :way], labels)
            second_order = self.training and not self.first_order
            gradients = torch.autograd.grad(loss, [weights[name] for name in names], create_graph=second_order)
            moved = {name: weights[name] - self.rate * slope for name, slope in zip(names, gradients, strict=True)}
        return weights | moved

    def adapted_names(self) -> list[str]:
        """Return the names of the parameters that adapt: all but those of batch normalization."""
        modules = ((name, part) for name, part in self.named_modules() if not isinstance(part, nn.BatchNorm2d))
        return [f"{module}.{name}" for module, part in modules for name, _ in part.named_parameters(recurse=False)]

    def run(self, images: Tensor, weights: Weights, statistics: Statistics | None = None) -> Tensor:
        """Return logits (n, way) under these weights, with `statistics` as in `features`."""
        features = self.features(images, weights, statistics)
        return F.linear(features, weights["classifier.weight"], weights["classifier.bias"])

    def features(self, images: Tensor, weights: Weights, statistics: Statistics | None = None) -> Tensor:
        """Return what the backbone makes of the images under these weights, (n, dim).

        Batch normalization takes the `statistics`, or those of the images: then it fills an empty list with them.
        """
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}  # BatchNorm2d counts in place
        with BatchNormStatistics(statistics):
            return with_tensors(self.backbone, weights | buffers, "backbone.")(images)


class Reptile(MAML):
    r"""A network and a linear layer that move toward the weights which gradient descent finds for each task.

    On First-Order Meta-Learning Algorithms. Alex Nichol, Joshua Achiam, John Schulman. arXiv 2018.

    $\phi \leftarrow \phi - \varepsilon\,(\phi - \tilde\phi)$, where $\tilde\phi$ are the weights after `steps` of
    gradient descent on a task, each on `batch` of its labeled images, support and query alike. $\phi - \tilde\phi$ is
    the gradient of `loss`, so the optimizer of training makes the step: SGD with a rate of $\varepsilon$ is the
    published one. The authors descend with Adam, without momentum, in place of plain gradient descent.

    At test it adapts as MAML does, by `test_steps` on the support set. All weights adapt, those of batch normalization
    too; its statistics are those of MAML, as are the other `options`.
    """

    def __init__(
        self, backbone: Backbone, way: int, steps: int = 5, rate: float = 0.1, batch: int = 10, **options: Any
    ) -> None:
        super().__init__(backbone, way, steps, rate, first_order=True, **options)
        if batch < 2:
            raise UserError(f"Reptile needs `batch` to be at least 2, got {batch}.")
        self.batch = batch

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the queries' cross-entropy after adaptation; its gradient is φ - φ̃."""
        labels = torch.cat([episode.support_labels, episode.query_labels])
        self.check_episode(episode.images, labels, episode.way)
        start = dict(self.named_parameters())
        weights = {name: parameter.detach().requires_grad_() for name, parameter in start.items()}
        for _ in range(self.steps):
            drawn = torch.randperm(len(labels), device=labels.device)[: self.batch]
            weights = self.step(weights, episode.images[drawn], labels[drawn], episode.way)
        with torch.no_grad():
            logits = self.run(episode.query_images, weights)
        meta_gradient = {name: (start[name] - weights[name]).detach() for name in start}
        carrier = torch.stack([(start[name] * meta_gradient[name]).sum() for name in start]).sum()
        return EpisodeLoss(cross_entropy(logits, episode.query_labels) + carrier - carrier.detach(), logits)

    def adapted_names(self) -> list[str]:
        return [name for name, _ in self.named_parameters()]


class BatchNormStatistics(TorchFunctionMode):
    """Inside, batch normalization takes the given statistics, in order, or those of its batch: it fills an empty list.

    Gradients pass through the statistics, which `F.batch_norm` itself would not do for given ones.
    """

    def __init__(self, statistics: Statistics | None) -> None:
        super().__init__()
        self._given, self._filled = iter(statistics) if statistics else None, statistics

    def __torch_function__(self, func: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None) -> Any:
        replaced = self._normalize if func is F.batch_norm else func
        return replaced(*args, **(kwargs or {}))

    def _normalize(self, maps: Tensor, _mean: Any, _var: Any, weight: Tensor, bias: Tensor, **options: Any) -> Tensor:
        eps = options["eps"]
        if self._filled is None:
            return F.batch_norm(maps, None, None, weight, bias, training=True, eps=eps)
        if self._given is not None:
            mean, variance = next(self._given)
        else:
            variance, mean = torch.var_mean(maps.to(weight.dtype), dim=(0, 2, 3), correction=0)
            self._filled.append((mean, variance))
        scale = weight * torch.rsqrt(variance + eps)
        return maps * scale.view(-1, 1, 1) + (bias - mean * scale).view(-1, 1, 1)
