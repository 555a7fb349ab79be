"""The base class of few-shot methods; the rest of the package knows methods only through it.

A method adapts: `adapt(support, labels, way)` returns a `Head`. A head scores: `head.logits(query)`. Both take the
features that `embed` returns. Everything else (`logits`, `forward`, the default `loss`) follows from these three.

Only `embed` and `forward` look at the values of images and labels, and only if they come from a user: the host would
wait for the device that computes them.
"""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import check_labels, check_one_label_each, class_prototypes, type_name
from tapnet.methods.head import Head

_BRIGHTEST = 10.0  # above any usual normalization, below the values of bytes


class EpisodeLoss(NamedTuple):
    """The loss of a training episode, and the logits of its queries for the accuracy."""

    loss: Tensor
    logits: Tensor  # (way · query, way)


class Method(nn.Module):
    """A backbone, and how a support set becomes a head over its features.

    The class attributes declare what a method needs and promises; training, evaluation, the feature cache and the tests
    rely on them. Where an option decides, the instance overrides the attribute.
    """

    feature_maps: ClassVar[bool] = False  # takes the backbone's last maps (channels, height, width), not its vectors
    task_features: ClassVar[bool] = False  # features depend on the task: `embed` returns the images themselves
    transductive: bool = False  # a query's logits may depend on the other queries
    follows_class_order: bool = True  # permuting the classes permutes the logits and does nothing else
    support_order_matters: bool = False  # permuting the support set may change the logits
    gradients_at_test: ClassVar[bool] = False  # adapts by gradient descent, so evaluation may not disable gradients
    batched: ClassVar[bool] = True  # `adapt` takes several episodes of one shape at once
    trainable: ClassVar[bool] = True  # has a gradient with respect to the features
    takes_windows: ClassVar[bool] = False  # `loss` takes images smaller than the backbone's image shape
    auxiliary_classes: ClassVar[bool] = False  # training sets its option `num_classes`
    training_only: ClassVar[tuple[str, ...]] = ()  # modules that only `loss` uses
    way_option: ClassVar[str | None] = None  # the option that equals the number of classes of a training episode
    order_free_options: ClassVar[dict[str, Any]] = {}  # passed to `with_options`, they make it follow the class order

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

    @property
    def max_way(self) -> int | None:
        """The largest number of classes of an episode in eval mode; `None` if there is no limit."""
        return None

    @property
    def max_projection_dim(self) -> int:
        """The largest `projection_dim` that `with_options` takes; 0 if the method has no such option."""
        return 0

    def embed(self, images: Tensor, validate: bool = True) -> Tensor:
        """Return features (n, *feature_shape) of float images (n, channels, height, width) in [0, 1].

        Without `validate` the values of the images are not looked at.
        """
        check_images(images, validate)
        if self.task_features:
            return images
        return self.backbone.maps(images) if self.feature_maps else self.backbone(images)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> Head:
        """Return the head for support features (..., n, *feature_shape) with labels (..., n) from 0 to way - 1."""
        raise NotImplementedError

    def logits(self, support: Tensor, labels: Tensor, query: Tensor, way: int) -> Tensor:
        """Return the logits (..., query, way) of query features in the episode of this support set."""
        return self.adapt(support, labels, way).logits(query)

    def forward(
        self, support_images: Tensor, support_labels: Tensor, query_images: Tensor, way: int | None = None
    ) -> Tensor:
        """Return logits (query, way); support and query pass through the network as one batch.

        Without `way`, the values of labels and images are checked, and the labels tell the number of classes.
        """
        validate = way is None
        for images in (support_images, query_images):
            check_images(images, validate)
        if way is None:
            way = check_labels(support_labels)
        check_one_label_each(support_images.flatten(1)[:, 0], support_labels)
        if support_images.shape[1:] != query_images.shape[1:]:
            raise UserError(
                "Support and query images need the same channels, height and width, got "
                f"{tuple(support_images.shape[1:])} and {tuple(query_images.shape[1:])}."
            )
        features = self.embed(torch.cat([support_images, query_images]), validate=False)
        support, query = features.split([len(support_images), len(query_images)])
        return self.logits(support, support_labels, query, way)

    def episode_logits(self, episode: EpisodeImages) -> list[Tensor]:
        """Return logits (way · query, way) for each division of the episode; its images are embedded once."""
        labels, features = episode.support_labels, self.embed(episode.images, validate=False)
        return [self.logits(support, labels, query, episode.way) for support, query in episode.divided(features)]

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the mean cross-entropy of the queries over the divisions of the episode into support and query.

        The episode's targets, if it has any, take the place of the labels. A method with a loss of its own overrides
        this.
        """
        scores = self.episode_logits(episode)
        targets = [episode.query_labels] * len(scores) if episode.targets is None else episode.targets
        losses = [cross_entropy(logits, target) for logits, target in zip(scores, targets, strict=True)]
        return EpisodeLoss(torch.stack(losses).mean(), scores[0])

    def diagnostics(self) -> dict[str, float]:
        """Return numbers to record at every point of the learning curve."""
        return {}

    def snapshot(self) -> dict[str, Tensor]:
        """Return tensors to keep at every point of the learning curve, by name."""
        return {}

    def with_options(self, **options: Any) -> Self:
        """Return this method, sharing its parameters, with other options of `adapt`."""
        changed = copy.copy(self)
        for name, value in options.items():
            if name not in self.adapt_options():
                known = ", ".join(self.adapt_options())
                takes = f"can be fitted with the options {known}" if known else "has no options to be fitted with"
                raise UserError(f"{type(self).__name__} {takes}, got {name!r}.")
            setattr(changed, name, value)
        changed.check_options()
        return changed

    def check_options(self) -> None:
        """Raise UserError if an option of `adapt` has a value that it cannot have."""

    @classmethod
    def adapt_options(cls) -> tuple[str, ...]:
        """Return the options that `with_options` may change."""
        return ()


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


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with labels (n,) or probabilities (n, way), in float32 if logits are half."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def support_members(support: Tensor, labels: Tensor, way: int) -> Tensor:
    """Return one-hot labels (..., n, way) as floats of the support set's precision, at least float32."""
    check_one_label_each(support, labels)
    return F.one_hot(labels, way).to(torch.promote_types(support.dtype, torch.float32))


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UserError unless the value of an option is one of the choices."""
    if value not in choices:
        raise UserError(f"`{option}` is one of {', '.join(choices)}, got {value!r}.")


def check_positive(option: str, value: float) -> None:
    """Raise UserError unless the value of an option is above 0 and finite."""
    if not 0 < value < math.inf:
        raise UserError(f"`{option}` needs to be a finite number above 0, got {value}.")


def check_images(images: Tensor, validate: bool = True) -> None:
    """Raise UserError unless images are floats, and if `validate` in [0, 1] or normalized by mean and deviation."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise UserError(
            f"Images need to be a tensor of floats in [0, 1], got {type_name(images)}: divide uint8 by 255."
        )
    if not validate or torch.compiler.is_compiling() or not images.numel():
        return
    if (most := images.detach().amax()) > _BRIGHTEST:
        raise UserError(f"Images need values in [0, 1], got up to {most:g}: divide them by 255.")
