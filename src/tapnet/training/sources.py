"""What a run learns from: images that pass the network, or features that a frozen backbone gave once."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tapnet.backbones import ImageShape, make_backbone
from tapnet.backbones.precomputed import PrecomputedFeatures
from tapnet.checkpoint import backbone_digest
from tapnet.data import ImageSet
from tapnet.data.augmentation import AUGMENTATIONS
from tapnet.data.batches import EpisodeImages, episode_images, to_device
from tapnet.data.episodes import Episode
from tapnet.errors import UserError
from tapnet.evaluation.embedding import cached_features, default_cache
from tapnet.methods import Method
from tapnet.recipe import Recipe


class EpisodeSource(Protocol):
    """The method as it is trained, and the tensors that it is trained on."""

    method: Method
    backbone_digest: str  # of a frozen backbone; empty if the checkpoint has the backbone's weights

    @property
    def validation_features(self) -> Tensor | None:
        """Features of the validation images, where they do not change; all processes ask together."""

    def episode(self, episode: Episode, generator: torch.Generator) -> EpisodeImages:
        """Return the tensors of an episode; the generator decides the augmentation."""


class ImageEpisodes:
    """The whole network learns from augmented images."""

    validation_features = None

    def __init__(self, recipe: Recipe, train_set: ImageSet, _: ImageSet, device: torch.device, __: str) -> None:
        self.method = recipe.build(train_set.image_shape).to(device)
        self.backbone_digest = ""  # its weights are in the checkpoint
        self._images, self._device = train_set, device
        self._augment = AUGMENTATIONS[recipe.training.augmentation]

    def episode(self, episode: Episode, generator: torch.Generator) -> EpisodeImages:
        tensors = episode_images(self._images, episode, self._device)
        return tensors._replace(images=self._augment(tensors.images, generator))


class FeatureEpisodes:
    """What a method has besides its backbone learns from features, which stand in the place of images."""

    def __init__(
        self, recipe: Recipe, train_set: ImageSet, validation_set: ImageSet, device: torch.device, precision: str
    ) -> None:
        backbone = make_backbone(recipe.backbone.name, train_set.image_shape, **recipe.backbone.options)
        self.method = method_over_features(recipe, backbone.dim).to(device)
        self._backbone = backbone.to(device).eval()
        self.backbone_digest = backbone_digest(backbone)
        self._sets, self._device, self._precision = (train_set, validation_set), device, precision

    @cached_property
    def _features(self) -> tuple[Tensor, Tensor]:
        job = self._precision, default_cache()
        train, validation = (cached_features(self._backbone, images, *job).clone() for images in self._sets)
        return train, validation

    @property
    def validation_features(self) -> Tensor:
        return self._features[1]

    def episode(self, episode: Episode, _: torch.Generator) -> EpisodeImages:
        features = self._features[0][to_device(episode.indices, self._device)]
        return EpisodeImages(features, *episode.sizes, to_device(episode.classes, self._device))


def method_over_features(recipe: Recipe, dim: int) -> Method:
    """Return the method of a recipe without its backbone, with fresh parameters; raise UserError if it has none."""
    method = recipe.over(PrecomputedFeatures(dim))
    if method.task_features or method.feature_maps:
        raise UserError(f"{recipe.method.name} does not learn from feature vectors: it cannot be trained frozen.")
    if not list(method.parameters()):
        raise UserError(f"{recipe.method.name} has nothing to learn besides its backbone.")
    return method


def method_for(recipe: Recipe, shape: torch.Size) -> Method:
    """The method as a run of this recipe trains it, for inputs of this shape."""
    if recipe.training.frozen_backbone:
        (dim,) = shape
        return method_over_features(recipe, dim)
    image_shape: ImageShape = (shape[0], shape[1], shape[2])
    return recipe.build(image_shape)
