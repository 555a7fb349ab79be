"""The episodes of a run as tensors; the next one is prepared while the network computes on this one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tapnet import hardware
from tapnet.backbones import PrecomputedFeatures
from tapnet.data import ImageSet
from tapnet.data.augmentation import AUGMENTATIONS, resized_crop
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.errors import UserError
from tapnet.hardware import to_device
from tapnet.methods import Method
from tapnet.recipe import Recipe


class EpisodeLoader:
    """Episodes by number, of augmented images. A thread prepares the one that this process needs next.

    An episode with its augmentation is a pure function of seed and number, so it does not matter when it is prepared.
    With a frozen backbone, `features` of all images take the place of the images.
    """

    features: Tensor | None = None

    def __init__(self, recipe: Recipe, images: ImageSet, device: torch.device) -> None:
        self.sampler = images.sampler(recipe.training.episode_spec(recipe.seed))
        self._training, self._seed, self._images, self._device = recipe.training, recipe.seed, images, device
        self._thread = ThreadPoolExecutor(1, "episodes")
        self._ahead: tuple[int, Future[EpisodeImages]] | None = None

    def __getitem__(self, index: int) -> EpisodeImages:
        ahead, following = self._ahead, index + hardware.world_size()
        episode = ahead[1].result() if ahead and ahead[0] == index else self.prepare(index)
        is_more = following < self.sampler.spec.episodes
        self._ahead = (following, self._thread.submit(self.prepare, following)) if is_more else None
        return episode

    def prepare(self, index: int) -> EpisodeImages:
        """Return the augmented images of an episode; with a frozen backbone, their features."""
        generator = torch.Generator().manual_seed(derived_seed(self._seed, index))
        episode, training = self.sampler[index], self._training
        if self.features is not None:
            rows, classes = (to_device(numbers, self._device) for numbers in (episode.indices, episode.classes))
            tensors = EpisodeImages(self.features[rows], *episode.sizes, classes)
        else:
            tensors = episode_images(self._images, episode, self._device)
            size = training.image_size(index)
            augment = AUGMENTATIONS[training.augmentation] if size is None else partial(resized_crop, size=size)
            tensors = tensors._replace(images=augment(tensors.images, generator))
        return tensors.with_divisions(training.divisions, generator)

    def close(self) -> None:
        """End the thread and drop the episode that it was preparing."""
        self._thread.shutdown(cancel_futures=True)


def training_method(recipe: Recipe, shape: tuple[int, ...]) -> Method:
    """Return the method that a run of this recipe trains, with fresh parameters, for inputs of this shape.

    With a frozen backbone these are its features, and the method comes without it; raise UserError if there is then
    nothing to learn.
    """
    if not recipe.training.frozen_backbone:
        channels, height, width = shape
        return recipe.build((channels, height, width))
    method = recipe.build_method(PrecomputedFeatures(*shape))
    if method.task_features or method.feature_maps:
        raise UserError(
            f"{recipe.method.name} does not learn from feature vectors: it cannot be trained with a frozen backbone."
        )
    if not list(method.parameters()):
        raise UserError(f"{recipe.method.name} has no parameters besides its backbone.")
    return method


def derived_seed(*key: int) -> int:
    """Return a seed of 63 bits that follows from the key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed the global random state (dropout, initialization) by the key; restore it on exit."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(*key))
        yield
