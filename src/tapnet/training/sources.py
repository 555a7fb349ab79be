"""The sources of training episodes: images, or features that a frozen backbone has computed once."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from tapnet.backbones import ImageShape, PrecomputedFeatures, make_backbone
from tapnet.checkpoint import backbone_digest
from tapnet.data import ImageSet
from tapnet.data.augmentation import AUGMENTATIONS, resized_crop
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.data.episodes import Episode
from tapnet.errors import UserError
from tapnet.evaluation.embedding import cached_features
from tapnet.hardware import to_device
from tapnet.methods import Method
from tapnet.paths import feature_cache
from tapnet.recipe import Recipe


class EpisodeSource(Protocol):
    """The method to train, and the tensors of its episodes."""

    method: Method
    backbone_digest: str  # of a frozen backbone; empty if the checkpoint has the backbone's weights

    @property
    def validation_features(self) -> Tensor | None:
        """Features of the validation images if training does not change them; all processes must ask together."""

    def episode(self, index: int, episode: Episode, generator: torch.Generator) -> EpisodeImages:
        """Return the tensors of an episode; the generator decides augmentation and divisions."""


class ImageEpisodes:
    """Augmented images, which train the whole network."""

    validation_features = None

    def __init__(self, recipe: Recipe, train_set: ImageSet, _: ImageSet, device: torch.device, __: str) -> None:
        self.method = recipe.build(train_set.image_shape).to(device)
        self.backbone_digest = ""  # its weights are in the checkpoint
        self._images, self._device = train_set, device
        self._training = recipe.training

    def episode(self, index: int, episode: Episode, generator: torch.Generator) -> EpisodeImages:
        tensors = episode_images(self._images, episode, self._device)
        size = self._training.image_size(index)
        augment = AUGMENTATIONS[self._training.augmentation] if size is None else partial(resized_crop, size=size)
        augmented = tensors._replace(images=augment(tensors.images, generator))
        return augmented.with_divisions(self._training.divisions, generator)


class FeatureEpisodes:
    """Features of a frozen backbone in place of images, which train the rest of the method."""

    def __init__(
        self, recipe: Recipe, train_set: ImageSet, validation_set: ImageSet, device: torch.device, precision: str
    ) -> None:
        backbone = make_backbone(recipe.backbone.name, train_set.image_shape, **recipe.backbone.options)
        self.method = method_over_features(recipe, backbone.dim).to(device)
        self._backbone = backbone.to(device).eval()
        self.backbone_digest = backbone_digest(backbone)
        self._sets, self._device, self._precision = (train_set, validation_set), device, precision
        self._divisions = recipe.training.divisions

    @cached_property
    def _features(self) -> tuple[Tensor, Tensor]:
        job = self._precision, feature_cache()
        train, validation = (cached_features(self._backbone, images, *job).clone() for images in self._sets)
        return train, validation

    @property
    def validation_features(self) -> Tensor:
        return self._features[1]

    def episode(self, index: int, episode: Episode, generator: torch.Generator) -> EpisodeImages:  # noqa: ARG002
        features = self._features[0][to_device(episode.indices, self._device)]
        classes = to_device(episode.classes, self._device)
        return EpisodeImages(features, *episode.sizes, classes).with_divisions(self._divisions, generator)


def method_over_features(recipe: Recipe, dim: int) -> Method:
    """Return the method of a recipe without its backbone, with fresh parameters; raise UserError if it has none."""
    method = recipe.build_method(PrecomputedFeatures(dim))
    if method.task_features or method.feature_maps:
        raise UserError(
            f"{recipe.method.name} does not learn from feature vectors: it cannot be trained with a frozen backbone."
        )
    if not list(method.parameters()):
        raise UserError(f"{recipe.method.name} has no parameters besides its backbone.")
    return method


def method_for(recipe: Recipe, shape: torch.Size) -> Method:
    """Return the method that a run of this recipe trains, for inputs of this shape."""
    if recipe.training.frozen_backbone:
        (dim,) = shape
        return method_over_features(recipe, dim)
    image_shape: ImageShape = (shape[0], shape[1], shape[2])
    return recipe.build(image_shape)
