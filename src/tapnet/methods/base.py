"""The base classes of few-shot methods and of heads; the rest of the package knows methods only through them.

A method adapts: `adapt(support, labels, way)` returns a `Head`. A head scores: `head.logits(query)`. Both take the
features that `embed` returns. Everything else (`logits`, `forward`, the default `loss`) follows from these three.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import check_labels, check_one_label_each, class_prototypes, type_name, widened

_BRIGHTEST = 10.0  # above any usual normalization, below the values of bytes


class Head(ABC):
    """The classifier of one episode, or of a batch of episodes in the leading dimensions of its tensors."""

    @abstractmethod
    def logits(self, query: Tensor) -> Tensor:
        """Return scores (..., query, way) of query features (..., query, *feature_shape)."""

    def linear(self) -> LinearHead | None:
        """Return the linear layer over the features that has the softmax of `logits`, or `None` if there is none."""
        return None

    def project(self, features: Tensor) -> Tensor:
        """Return the features (..., n, dim) in the space in which the head compares them."""
        return features

    @property
    def centers(self) -> Tensor | None:
        """The point that represents each class among the features, (..., way, dim); `None` if there is none."""
        return None


@dataclass(frozen=True)
class LinearHead(Head):
    r"""Scores $w_k \cdot x + b_k$, where x is first scaled to unit length if `normalize`."""

    weight: Tensor  # (..., way, dim)
    bias: Tensor  # (..., way)
    normalize: bool = False
    centers: Tensor | None = None

    def logits(self, query: Tensor) -> Tensor:
        return self.project(query.to(self.weight.dtype)) @ self.weight.mT + self.bias.unsqueeze(-2)

    def linear(self) -> LinearHead:
        return self

    def project(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1) if self.normalize else features


@dataclass(frozen=True)
class FunctionHead(Head):
    """Scores by a function of the queries; `projection` gives the features as the function compares them."""

    function: Callable[[Tensor], Tensor]
    projection: Callable[[Tensor], Tensor] | None = None

    def logits(self, query: Tensor) -> Tensor:
        return self.function(query)

    def project(self, features: Tensor) -> Tensor:
        return features if self.projection is None else self.projection(features)


class EpisodeLoss(NamedTuple):
    """The loss of a training episode, and the logits of its queries for the accuracy."""

    loss: Tensor
    logits: Tensor  # (way · query, way)


class Method(nn.Module):
    """A backbone, and how a support set becomes a head over its features.

    The class attributes declare where a method differs from the default; where an option decides, the instance does.
    """

    feature_maps: bool = False  # takes the backbone's last maps (channels, height, width), not its vectors
    task_features: ClassVar[bool] = False  # features depend on the task: `embed` returns the images themselves
    transductive: bool = False  # a query's logits may depend on the other queries
    batched: ClassVar[bool] = True  # `adapt` takes several episodes of one shape at once
    takes_windows: ClassVar[bool] = False  # `loss` takes images smaller than the backbone's image shape
    training_only: ClassVar[tuple[str, ...]] = ()  # modules that only `loss` uses
    way_option: ClassVar[str | None] = None  # the option that equals the number of classes of a training episode
    adapt_options: ClassVar[tuple[str, ...]] = ()  # options that `with_options` may change
    order_free_options: ClassVar[dict[str, Any]] = {}  # those with which the order of the classes does not matter
    max_way: int | None = None  # the largest number of classes of an episode in eval mode
    max_projection_dim: int = 0  # the largest `projection_dim` that `with_options` takes

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        if backbone.normalize and (self.feature_maps or self.task_features or self.takes_windows):
            name = type(self).__name__
            raise UserError(f"{name} cannot be trained on normalized features: leave out the backbone's `normalize`.")
        self.backbone = backbone

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of what `embed` returns for one image."""
        if self.task_features:
            return self.backbone.image_shape
        return self.backbone.map_shape if self.feature_maps else (self.backbone.dim,)

    def embed(self, images: Tensor, validate: bool = True) -> Tensor:
        """Return features (n, *feature_shape) of float images (n, channels, height, width) in [0, 1].

        Without `validate` the values of the images are not looked at, for which the host would wait for the device.
        """
        self._check_images(images, validate)
        if self.task_features:
            return images
        return self.backbone.maps(images) if self.feature_maps else self.backbone(images)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> Head:
        """Return the head for support features (..., n, *feature_shape) with labels (..., n) from 0 to way - 1."""
        raise NotImplementedError

    def logits(self, support: Tensor, labels: Tensor, query: Tensor, way: int) -> Tensor:
        """Return the logits (..., query, way) of query features in the episode of this support set."""
        self._check_precision(support)
        return self.adapt(support, labels, way).logits(query)

    def forward(
        self, support_images: Tensor, support_labels: Tensor, query_images: Tensor, way: int | None = None
    ) -> Tensor:
        """Return logits (query, way); support and query pass through the network as one batch.

        Without `way`, the values of labels and images are checked, and the labels tell the number of classes.
        """
        for images in (support_images, query_images):
            self._check_images(images, validate=way is None)
        if (shape := support_images.shape[1:]) != query_images.shape[1:]:
            shapes = f"{tuple(shape)} and {tuple(query_images.shape[1:])}"
            raise UserError(f"Support and query images need the same channels, height and width, got {shapes}.")
        way = check_labels(support_labels) if way is None else way
        check_one_label_each(support_labels, support_images.shape[:1])
        features = self.embed(torch.cat([support_images, query_images]), validate=False)
        support, query = features.split([len(support_images), len(query_images)])
        return self.logits(support, support_labels, query, way)

    def episode_logits(self, episode: EpisodeImages) -> list[Tensor]:
        """Return logits (way · query, way) for each division of the episode; its images are embedded once."""
        labels, features = episode.support_labels, self.embed(episode.images, validate=False)
        return [self.logits(support, labels, query, episode.way) for support, query in episode.divided(features)]

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the mean cross-entropy of the queries over the divisions, by the episode's targets if it has any."""
        scores = self.episode_logits(episode)
        targets = [episode.query_labels] * len(scores) if episode.targets is None else episode.targets
        losses = [cross_entropy(logits, target) for logits, target in zip(scores, targets, strict=True)]
        return EpisodeLoss(torch.stack(losses).mean(), scores[0])

    def members(self, support: Tensor, labels: Tensor, way: int) -> Tensor:
        """Return one-hot labels (..., n, way) as floats of the support set's precision, at least float32."""
        check_one_label_each(labels, support.shape[: support.dim() - len(self.feature_shape)])
        return F.one_hot(labels, way).to(widened(support).dtype)

    def diagnostics(self) -> dict[str, float]:
        """Return numbers to record at every point of the learning curve."""
        return {}

    def snapshot(self) -> dict[str, Tensor]:
        """Return tensors to keep at every point of the learning curve, by name."""
        return {}

    def with_options(self, **options: Any) -> Self:
        """Return this method, sharing its parameters, with other options of `adapt`."""
        changed, known = copy.copy(self), ", ".join(self.adapt_options)
        for name, value in options.items():
            if name not in self.adapt_options:
                takes = f"can be fitted with the options {known}" if known else "has no options to be fitted with"
                raise UserError(f"{type(self).__name__} {takes}, got {name!r}.")
            setattr(changed, name, value)
        changed.check_options()
        return changed

    def check_options(self) -> None:
        """Raise UserError if an option of `adapt` has a value that it cannot have."""

    def _check_images(self, images: Tensor, validate: bool) -> None:
        """Raise UserError unless images are floats, and if `validate` in [0, 1] or normalized by mean and deviation."""
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = f"got {type_name(images)}: divide uint8 by 255"
            raise UserError(f"Images need to be a tensor of floats in [0, 1], {got}.")
        self._check_precision(images)
        looks = validate and images.numel() and not torch.compiler.is_compiling()
        if looks and (most := images.detach().amax()) > _BRIGHTEST:
            raise UserError(f"Images need values in [0, 1], got up to {most:g}: divide them by 255.")

    def _check_precision(self, inputs: Tensor) -> None:
        """Raise UserError if either the inputs or the weights are float64, not both."""
        weight = next(self.parameters(), inputs)
        if (weight.dtype == torch.float64) != (inputs.dtype == torch.float64):
            got = f"got {type_name(inputs)}: convert one of them by .float() or .double()"
            raise UserError(f"The network computes in {type_name(weight)}, {got}.")


class PrototypeMethod(Method):
    """A method that needs nothing but the mean feature of each class."""

    @property
    def prototypes_suffice(self) -> bool:
        """Whether `adapt_to` is equivalent to `adapt`; false if an option needs more of the support set."""
        return True

    def adapt_to(self, prototypes: Tensor) -> Head:
        """Return the head for class prototypes (..., way, dim)."""
        raise NotImplementedError

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> Head:
        return self.adapt_to(class_prototypes(support, labels, way, validate=False))


class FixedWayMethod(Method):
    """A method whose network has `way` outputs; output k is trained to be class k of every episode.

    In eval mode an episode may have fewer classes: the outputs without a class are left out of the logits.
    """

    way_option = "way"

    def __init__(self, backbone: Backbone, way: int) -> None:
        super().__init__(backbone)
        if way < 2:
            raise UserError(f"{type(self).__name__} needs `way` to be at least 2, got {way}.")
        self.way = self.max_way = way

    def check_episode(self, support: Tensor, labels: Tensor, way: int) -> None:
        """Raise UserError if the network was not built for so many classes, or an image lacks a label."""
        check_one_label_each(labels, support.shape[: support.dim() - len(self.feature_shape)])
        if way > self.way or (self.training and way < self.way):
            takes = f"takes {'exactly' if self.training else 'at most'} {self.way} classes, got {way}"
            name = type(self).__name__
            raise UserError(f"{name} was built for {self.way}-way episodes and {takes}: build it with way={way}.")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with labels (n,) or probabilities (n, way), in float32 if logits are half."""
    return F.cross_entropy(widened(logits), targets)


def perceptron(*sizes: int) -> nn.Sequential:
    """Return linear layers between these sizes with a ReLU after each except the last."""
    layers = [layer for inputs, outputs in pairwise(sizes) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> nn.Module:
    """Return the module with other parameters and buffers, by their names after the prefix; it shares everything else.

    The given module is never changed, as it is by `torch.func.functional_call`, so several threads may use it at once.
    """
    changed = copy.copy(module)
    for kind in ("_parameters", "_buffers"):
        own = getattr(module, kind)
        setattr(changed, kind, {name: tensors.get(prefix + name, tensor) for name, tensor in own.items()})
    changed._modules = {
        name: None if part is None else with_tensors(part, tensors, f"{prefix}{name}.")
        for name, part in module._modules.items()
    }
    return changed


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UserError unless the value of an option is one of the choices."""
    if value not in choices:
        raise UserError(f"`{option}` is one of {', '.join(choices)}, got {value!r}.")


def check_positive(option: str, value: float) -> None:
    """Raise UserError unless the value of an option is above 0 and finite."""
    if not 0 < value < math.inf:
        raise UserError(f"`{option}` needs to be a finite number above 0, got {value}.")
