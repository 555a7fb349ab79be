"""The episodes of a run as tensors; the next one is prepared while the network computes on this one.

An episode at which the run diverged is saved to a file that reproduces it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tapnet import hardware
from tapnet.backbones import PrecomputedFeatures
from tapnet.data import ImageSet
from tapnet.data.augmentation import AUGMENTATIONS, resized_crop
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.errors import NonFiniteError, UserError
from tapnet.hardware import to_device
from tapnet.methods import Method
from tapnet.paths import write_atomically
from tapnet.recipe import Recipe, recipe_from

_KEY, _WEIGHTS = "tapnet-episode", "weights/"


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


def save_episode(
    path: Path, recipe: Recipe, index: int, seed: int, episode: EpisodeImages, weights: Mapping[str, Tensor]
) -> None:
    """Write a file from which `episode_loss` computes the loss of this episode again.

    Its images are augmented; `seed` is that of the dropout.
    """
    optional = {"orders": episode.orders, "targets": episode.targets}
    tensors = {"images": episode.images, "classes": episode.classes}
    tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    tensors |= {_WEIGHTS + name: tensor for name, tensor in weights.items()}
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sizes = episode.way, episode.shot, episode.query
    header = json.dumps({"recipe": recipe.as_dict(), "episode": index, "seed": seed, "sizes": sizes}, sort_keys=True)
    write_atomically(path, save(packed, {_KEY: header}))


def episode_loss(path: Path) -> float:
    """Return the loss of a saved episode, computed again in float32 on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        recipe, seed = recipe_from(header["recipe"], str(path)), header["seed"]
        way, shot, query = header["sizes"]
        optional = tensors.get("orders"), tensors.get("targets")
        episode = EpisodeImages(tensors["images"], way, shot, query, tensors["classes"], *optional)
    except (SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a saved episode ({error!r}).") from None
    method = training_method(recipe, tuple(episode.images.shape[1:])).train()
    weights = {name.removeprefix(_WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(_WEIGHTS)}
    method.load_state_dict(weights)
    # as in training: the dropout mask depends on the memory layout
    layout = torch.channels_last if episode.images.dim() == 4 else torch.contiguous_format
    method.to(memory_format=layout)  # type: ignore[call-overload]
    episode = episode._replace(images=episode.images.contiguous(memory_format=layout))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        try:
            return method.loss(episode).loss.item()
        except NonFiniteError:
            return math.nan
